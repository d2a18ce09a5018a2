"""Before an engine is ended on purpose: it gets nothing new, and what runs on it may finish."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from control.engines import processes
from control.errors import SignalboxError

log = logging.getLogger(__name__)

#: So many looks in a row at an edge that runs and does not answer, and nobody is taken to be served by it.
MISSES = 3


class Gate(Protocol):
    """The edge as the supervisor needs it (``control.edge.gate.EdgeGate``)."""

    def running(self, address: str) -> tuple[int, list[str]] | None:
        """How many sequences run at ``HOST:PORT``, and the ids of the backends there; None when no edge runs.

        Raises SignalboxError when the edge does not answer as it should.
        """

    def states(self) -> Mapping[str, tuple[str, str]] | None:
        """Model and state of each backend; None when no edge runs. Raises SignalboxError."""

    def hold(self, backend: str) -> bool:
        """Let nothing new in; True when that is news. Raises SignalboxError."""

    def release(self, backend: str) -> None:
        """Let requests in again, if nobody else keeps them out. Never raises: the wish runs out by itself."""

    def undo(self) -> None:
        """Take back what a control plane that was killed has left. Never raises."""


class Place(Protocol):
    """Where an engine listens, such as ``processes.Record``."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def sequences(count: int) -> str:
    """``1 sequence``, ``3 sequences``."""
    return "1 sequence" if count == 1 else f"{count} sequences"


class Drain:
    """Waits until nothing runs on one engine. Its time goes on when the wait is interrupted and taken up again."""

    def __init__(
        self,
        gate: Gate | None,
        identity: str,
        record: Place,
        purpose: str,
        alive: Callable[[Any], bool] = processes.alive,
    ) -> None:
        """``purpose``: what happens to the engine then, such as "restarted"; ``alive``: does ``record`` still run."""
        self.record = record
        self._alive = alive
        self._gate = gate
        self._id = identity
        self._purpose = purpose
        host = f"[{record.host}]" if ":" in record.host else record.host
        self._address = f"{host}:{record.port}"
        self._began = time.monotonic()
        self._held: set[str] = set()
        self._told = False
        self._misses = 0

    def wait(self, seconds: float, poll: float, pause: Callable[[float], bool], tell: Callable[[int], None]) -> bool:
        """True when the engine may be ended: empty, ``seconds`` over, dead, or nobody is served by an edge.

        False when ``pause`` says that there is something else to do. ``tell`` gets the number of sequences meanwhile.
        """
        while self._alive(self.record):
            count = self._look()
            if count == 0:
                if self._told:
                    log.info("%s: nothing runs there any more; it is %s.", self._id, self._purpose)
                return True
            if count is not None:
                self._say(count, seconds)
                tell(count)
            if time.monotonic() - self._began > seconds:
                log.warning("%s: requests still ran after %.0f s (engine.drain_timeout).", self._id, seconds)
                return True
            if pause(poll):
                return False
        return True

    def release(self) -> None:
        """Let requests in again that ``wait`` kept out."""
        held, self._held = self._held, set()
        for backend in held:
            assert self._gate is not None
            self._gate.release(backend)

    def leave(self) -> None:
        """Go away without letting requests in: that wish runs out by itself, a little later."""
        self._held = set()

    def _look(self) -> int | None:
        """How many sequences run; 0 also when no edge serves anybody, None when that is not known yet."""
        if self._gate is None:
            return 0
        try:
            found = self._gate.running(self._address)
            if found is None:
                return 0
            count, backends = found
            # Only a count that is younger than the wish says that nothing comes any more.
            news = [backend for backend in backends if self._hold(backend)]
        except SignalboxError as error:
            self._misses += 1
            if self._misses < MISSES:
                return None
            log.warning("%s: not waited for, because the edge does not answer: %s", self._id, error.message)
            return 0
        self._misses = 0
        return count if count or not news else None

    def _hold(self, backend: str) -> bool:
        assert self._gate is not None
        self._held.add(backend)
        return self._gate.hold(backend)

    def _say(self, count: int, seconds: float) -> None:
        if not self._told:
            log.info("%s: waiting for %s before it is %s (%.0f s at most).",
                     self._id, sequences(count), self._purpose, seconds)  # fmt: skip
        self._told = True
