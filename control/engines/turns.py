"""Whose turn it is to be restarted on purpose: of one model one engine after another, while enough others serve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from control.errors import SignalboxError

#: States of a backend in which it takes requests.
SERVING = ("ready", "busy")

#: Model and state of each backend as the edge sees them; None when no edge runs.
States = Callable[[], Mapping[str, tuple[str, str]] | None]


def others_lack(states: Mapping[str, tuple[str, str]] | None, backend: str, model: str, min_ready: int) -> str:
    """What the other backends of the model lack so that this one can be taken out; empty when it can. Pure.

    So many others must be ready: ``min_ready``, or all there are. Where nobody is served by ``backend``, nobody loses
    anything.
    """
    if states is None or (states and states.get(backend, ("", ""))[1] not in SERVING):
        return ""
    others = [state for name, (of, state) in states.items() if of == model and name != backend]
    needed = min(min_ready, len(others))
    ready = sum(state in SERVING for state in others)
    return "" if ready >= needed else f"{ready} of {needed} are ready"


class Turns:
    """Who of each model has the turn. One keeps it until it is ready: when its new settings fail, no other follows."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._lock = threading.Lock()
        self._holders: dict[str, str] = {}

    def take(self, backend: str, model: str, min_ready: int) -> str:
        """Take the turn; empty when ``backend`` has it now, else what it waits for, in words."""
        with self._lock:
            holder = self._holders.setdefault(model, backend)
        if holder != backend:
            return f"{holder} is restarted before it"
        try:
            states = self._states()
        except SignalboxError:
            states = {}
        lack = others_lack(states, backend, model, min_ready)
        if lack:
            self.give(backend)
            return f"waiting for other backends: {lack}"
        return ""

    def give(self, backend: str) -> None:
        """The next one may go. Nothing happens when it was not its turn."""
        with self._lock:
            self._holders = {model: holder for model, holder in self._holders.items() if holder != backend}
