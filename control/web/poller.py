"""FleetView: one thread asks everybody once a second; all pages and streams look at what it saw."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from control.engines.samples import Sample, Use
from control.errors import EdgeError, SignalboxError
from control.host import HostFacts
from control.tuning.advise import Finding
from control.web.view import (
    MAX_TEXT,
    EdgeView,
    EngineStatusLike,
    FleetFacts,
    Snapshot,
    TunnelStatusLike,
    edge_view,
    merge,
)

log = logging.getLogger(__name__)

EdgeState = Callable[[], Mapping[str, Any]]
EngineStates = Callable[[], Sequence[EngineStatusLike]]
TunnelStates = Callable[[], Sequence[TunnelStatusLike]]
Uses = Callable[[], Mapping[str, Use]]
Samples = Callable[[str], Sequence[Sample]]


class EdgeAbsent(EdgeError):
    """No edge process runs: nothing is wrong, it was not started."""


class FleetView:
    """The newest snapshot, and a way to wait for the next one.

    ``edge`` returns the edge's /state or raises (EdgeAbsent when it does not run); ``engines`` returns the supervisor's
    statuses, ``tunnels`` those of SSH tunnels, ``findings`` what is to be said of both, ``uses`` what the engines
    use of their machines; ``interval`` is in seconds.
    """

    def __init__(
        self,
        fleet: FleetFacts,
        edge: EdgeState,
        engines: EngineStates,
        host: Callable[[], HostFacts],
        interval: float = 1.0,
        tunnels: TunnelStates = lambda: (),
        findings: Callable[[], Sequence[Finding]] = lambda: (),
        uses: Uses = lambda: {},
        samples: Samples = lambda _: (),
    ) -> None:
        self._fleet = fleet
        self._edge = edge
        self._engines = engines
        self._host = host
        self._tunnels = tunnels
        self._findings = findings
        self._uses = uses
        #: The last hour of one engine, look by look, by backend id.
        self.samples = samples
        self._interval = interval
        self._changed = threading.Condition()
        self._closed = False
        self._complaints: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="fleet-view", daemon=True)
        self._snapshot = merge(0, time.time(), fleet, EdgeView("absent"), None, [], host())

    @property
    def snapshot(self) -> Snapshot:
        """What was seen last; before the first poll, the fleet with every state unknown."""
        with self._changed:
            return self._snapshot

    @property
    def closed(self) -> bool:
        """True once ``close`` was called: streams end."""
        with self._changed:
            return self._closed

    def start(self) -> None:
        """Poll once, so that the first page is right, then go on in a thread."""
        self.poll()
        self._thread.start()

    def close(self) -> None:
        """End the thread and wake every waiting stream. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def set_fleet(self, fleet: FleetFacts) -> None:
        """Show another fleet.yaml from the next poll on."""
        with self._changed:
            self._fleet = fleet

    def wait(self, seen: int, timeout: float) -> Snapshot | None:
        """The next snapshot after version ``seen``; None after ``timeout`` seconds or once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._snapshot.version > seen, timeout)
            return self._snapshot if self._snapshot.version > seen and not self._closed else None

    def poll(self) -> Snapshot:
        """Ask every source once and publish the result. A source that fails is shown as such, never raised."""
        edge, state = self._ask_edge()
        try:
            engines = self._engines()
            self._settle("engines")
        except Exception as error:
            self._complain("engines", f"The supervisor did not tell the engines' state: {error!r}")
            engines = []
        host = self._host()
        with self._changed:
            fleet, version = self._fleet, self._snapshot.version + 1
        snapshot = merge(version, time.time(), fleet, edge, state, engines, host, self._tunnels(), self._uses())
        snapshot = replace(snapshot, findings=tuple(self._findings()))
        with self._changed:
            self._snapshot = snapshot
            self._changed.notify_all()
        return snapshot

    def _ask_edge(self) -> tuple[EdgeView, Mapping[str, Any] | None]:
        try:
            state = self._edge()
            if not isinstance(state, Mapping):
                raise ValueError("the answer to GET /state is not a JSON object")
        except EdgeAbsent as error:
            self._complain("edge", error.message)
            return EdgeView("absent"), None
        except Exception as error:
            problem = error.message if isinstance(error, SignalboxError) else str(error)
            self._complain("edge", f"The edge does not answer as it should: {problem}")
            return EdgeView("silent", problem=problem[:MAX_TEXT]), None
        self._settle("edge")
        return edge_view(state), state

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, self._interval):
                    return
            try:
                self.poll()
            except Exception:  # the thread must live: a page that stands still lies
                log.exception("A poll failed; the next one follows in %.0f s.", self._interval)

    def _complain(self, source: str, text: str) -> None:
        """Log a trouble once, not once a second."""
        if self._complaints.get(source) != text:
            self._complaints[source] = text
            log.warning("%s", text)

    def _settle(self, source: str) -> None:
        if self._complaints.pop(source, None):
            log.info("Answers again: %s.", source)
