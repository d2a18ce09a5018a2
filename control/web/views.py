"""The addresses: the page, its facts as JSON, an engine's last hour, and the event stream that keeps it live."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from flask import Blueprint, Response, jsonify, render_template, request

from control.web.poller import FleetView
from control.web.render import Rendered, Renderer, tables
from control.web.safety import text_answer
from control.web.texts import LANGUAGES, Words

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


def language() -> str:
    """``?lang=`` when it is one of ours, else the browser's preference, else English."""
    wanted = request.args.get("lang", "")
    return wanted if wanted in LANGUAGES else request.accept_languages.best_match(LANGUAGES, "en") or "en"


def blueprint(view: FleetView, renderer: Renderer, listeners: Listeners, heartbeat: float) -> Blueprint:
    """The routes over one view. ``heartbeat`` in seconds."""
    pages = Blueprint("fleet", __name__)

    @pages.get("/")
    def page() -> Response:
        words, snapshot = Words(language()), view.snapshot
        rendered = renderer.parts(snapshot, words)
        answer = Response(render_template("page.html", w=words, snapshot=snapshot, **tables(rendered)))
        answer.headers["Vary"] = "Accept-Language"
        answer.headers["Content-Language"] = words("html_lang")
        return answer

    @pages.get("/api/fleet")
    def facts() -> Response:
        return jsonify(view.snapshot.as_json())

    @pages.get("/api/samples/<identity>")
    def samples(identity: str) -> Response:
        return jsonify([asdict(sample) for sample in view.samples(identity)])

    @pages.get("/api/events")
    def events() -> Response:
        if request.method == "HEAD":
            return Response(content_type="text/event-stream; charset=utf-8")
        leave = listeners.enter()
        if leave is None:
            answer = text_answer(503, "Too many pages are watching. Close a tab, or reload this one by hand.")
            answer.headers["Retry-After"] = "5"
            return answer
        gone: Gone = request.environ.get("waitress.client_disconnected", lambda: False)
        answer = Response(
            stream(view, renderer, Words(language()), gone, heartbeat), content_type="text/event-stream; charset=utf-8"
        )
        answer.call_on_close(leave)  # not the generator's finally: one that never started has none
        return answer

    return pages


def stream(view: FleetView, renderer: Renderer, words: Words, gone: Gone, heartbeat: float) -> Iterator[str]:
    """Server-sent events until the view closes or the reader is gone: first the whole, then what changed."""
    shown: Rendered | None = None
    seen, spoke = -1, time.monotonic()
    while not view.closed and not gone():
        snapshot = view.wait(seen, timeout=1.0)
        if snapshot is not None:
            seen = snapshot.version
            rendered = renderer.parts(snapshot, words)
            message = _message(shown, rendered, renderer, words)
            shown = rendered
            if message:
                spoke = time.monotonic()
                yield message
        if time.monotonic() - spoke >= heartbeat:
            spoke = time.monotonic()
            yield ": still here\n\n"


def _message(shown: Rendered | None, rendered: Rendered, renderer: Renderer, words: Words) -> str:
    """The event that brings a page from ``shown`` to ``rendered``; empty when they look the same."""
    changes = None if shown is None else rendered.changes(shown)
    if changes is None:
        whole = {"main": renderer.main(rendered, words), "parts": {"part-summary": rendered.parts["part-summary"]}}
        return _event("whole", whole)
    return _event("parts", changes) if changes else ""


def _event(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
