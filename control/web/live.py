"""The event stream that keeps an open page as new as the control plane."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

from control.web.poller import FleetView
from control.web.render import Rendered, Renderer
from control.web.texts import Words
from control.web.views.view import View

Gone = Callable[[], bool]


class Listeners:
    """How many event streams are open: each holds a thread of the server."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._lock = threading.Lock()

    @property
    def open(self) -> int:
        """Streams open now."""
        with self._lock:
            return self._open

    def enter(self) -> Callable[[], None] | None:
        """Take a place; the function that is returned gives it back, once however often called. None: all taken."""
        with self._lock:
            if self._open >= self._most:
                return None
            self._open += 1
        held = threading.Lock()

        def leave() -> None:
            if held.acquire(blocking=False):
                with self._lock:
                    self._open -= 1

        return leave


def stream(
    fleet: FleetView, renderer: Renderer, view: View, words: Words, gone: Gone, heartbeat: float
) -> Iterator[str]:
    """Server-sent events until the fleet's view closes or ``gone()``: first the whole page, then what changed."""
    shown: Rendered | None = None
    seen, spoke = -1, time.monotonic()
    while not fleet.closed and not gone():
        if view.name == "requests":
            fleet.watch_requests()
        snapshot = fleet.wait(seen, timeout=1.0)
        if snapshot is not None:
            seen = snapshot.version
            rendered = renderer.parts(view, snapshot, words)
            message = _message(shown, rendered, renderer, view, words)
            shown = rendered
            if message:
                spoke = time.monotonic()
                yield message
        if time.monotonic() - spoke >= heartbeat:
            spoke = time.monotonic()
            yield ": still here\n\n"


def _message(shown: Rendered | None, rendered: Rendered, renderer: Renderer, view: View, words: Words) -> str:
    """The event that brings a page from ``shown`` to ``rendered``; empty when they look the same."""
    changes = None if shown is None else rendered.changes(shown)
    if changes is None:
        parts = {"part-summary": rendered.parts["part-summary"]}
        return _event("whole", {"main": renderer.main(view, rendered, words), "parts": parts})
    return _event("parts", changes) if changes else ""


def _event(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
