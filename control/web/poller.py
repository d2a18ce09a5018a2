"""FleetView: one thread asks everybody once a second; all pages and streams look at what it saw."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from control.engines.samples import Sample, Use
from control.errors import EdgeError, SignalboxError
from control.host import HostFacts, Processes
from control.tuning.advise import Finding
from control.web.history import BIN, NOW, Gauges, History
from control.web.jobs import Job
from control.web.merge import edge_view, merge
from control.web.recent import Recent, Used
from control.web.running import Running, running_of
from control.web.traffic import read_sample
from control.web.troubles import Standing, troubles_of
from control.web.view import MAX_TEXT, BackendView, EdgeView, EngineStatusLike, FleetFacts, Snapshot, TunnelStatusLike

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds between two looks at the edge's counters; so long after somebody looked, running requests are asked for.
SAMPLE_EVERY, WATCHED = 5.0, 5.0


class EdgeAbsent(EdgeError):
    """No edge process runs: nothing is wrong, it was not started."""


@dataclass(frozen=True)
class Sources:
    """Who is asked. Each may fail; what it would have told is then shown as not known.

    ``edge`` returns the edge's /state or raises (EdgeAbsent when it does not run), ``metrics`` its /metrics,
    ``requests`` its /requests; ``engines`` the supervisor's statuses, ``tunnels`` those of SSH tunnels, ``jobs``
    commands that run, ``findings`` what is to be said of engines and models, ``uses`` what
    engines use of their machines, ``samples`` every look at one of them in the last hour.
    """

    edge: Callable[[], Mapping[str, Any]]
    engines: Callable[[], Sequence[EngineStatusLike]]
    host: Callable[[], HostFacts]
    tunnels: Callable[[], Sequence[TunnelStatusLike]] = lambda: ()
    metrics: Callable[[], str] | None = None
    requests: Callable[[], Mapping[str, Any]] | None = None
    access_log: Path | None = None
    standing: Callable[[], Standing] = Standing
    jobs: Callable[[], tuple[Job, ...]] = lambda: ()
    findings: Callable[[], Sequence[Finding]] = lambda: ()
    uses: Callable[[], Mapping[str, Use]] = lambda: {}
    samples: Callable[[str], Sequence[Sample]] = lambda _: ()


class FleetView:
    """The newest snapshot, and a way to wait for the next one. ``interval`` is in seconds."""

    def __init__(self, fleet: FleetFacts, sources: Sources, interval: float = 1.0) -> None:
        self._fleet = fleet
        self._sources = sources
        self._interval = interval
        self._changed = threading.Condition()
        self._closed = False
        self._complaints: dict[str, str] = {}
        self._history = History()
        self._recent = Recent(sources.access_log)
        self._nginx = Processes("nginx")
        self._asked = self._answered = 0
        self._sampled = float("-inf")
        self._used: Mapping[str, Used] = {}
        self._watched = float("-inf")
        self._thread = threading.Thread(target=self._run, name="fleet-view", daemon=True)
        self._snapshot = merge(0, time.time(), fleet, EdgeView("absent"), None, [], sources.host())

    @property
    def snapshot(self) -> Snapshot:
        """What was seen last; before the first poll, the fleet with every state unknown."""
        with self._changed:
            return self._snapshot

    def samples(self, backend: str) -> Sequence[Sample]:
        """What an engine used of its machine in the last hour, look by look."""
        return self._sources.samples(backend)

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

    def after(self, timeout: float = 3.0) -> None:
        """Wait until everybody was asked after this moment: who has just done something wants to see it."""
        if not self._thread.is_alive():
            return
        with self._changed:
            self._asked = number = self._asked + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._answered >= number, timeout)

    def watch_requests(self) -> None:
        """Somebody looks at the running requests: the edge is asked for them during the next seconds."""
        self._watched = time.monotonic()

    def with_requests(self, timeout: float = 3.0) -> Snapshot:
        """A snapshot that has the running requests, unless none comes within ``timeout`` seconds."""
        self.watch_requests()
        snapshot, deadline = self.snapshot, time.monotonic() + timeout
        while snapshot.running is None and (left := deadline - time.monotonic()) > 0 and not self.closed:
            snapshot = self.wait(snapshot.version, left) or snapshot
        return snapshot

    def poll(self) -> Snapshot:
        """Ask every source once and publish the result. A source that fails is shown as such, never raised."""
        now = time.time()
        with self._changed:
            asked = self._asked
        edge, state = self._ask_edge()
        engines = self._ask("engines", self._sources.engines) or []
        with self._changed:
            fleet, version = self._fleet, self._snapshot.version + 1
        tunnels = self._ask("tunnels", self._sources.tunnels) or ()
        uses = self._ask("uses", self._sources.uses) or {}
        snapshot = merge(version, now, fleet, edge, state, engines, self._sources.host(), tunnels, uses)
        self._ask("access log", self._recent.read)
        backends = self._sample(edge, snapshot.backends, now)
        standing = self._ask("standing", self._sources.standing) or Standing()
        snapshot = replace(
            snapshot,
            backends=backends,
            traffic=self._history.now(),
            bins=self._history.bins,
            troubles=troubles_of(edge, snapshot.models, backends, standing, now),
            running=self._running(edge),
            finished=self._recent.newest,
            jobs=self._sources.jobs(),
            keys_used=self._used,
            findings=tuple(self._ask("findings", self._sources.findings) or ()),
        )
        with self._changed:
            self._snapshot, self._answered = snapshot, asked
            self._changed.notify_all()
        return snapshot

    def _sample(self, edge: EdgeView, backends: tuple[BackendView, ...], now: float) -> tuple[BackendView, ...]:
        """Look at the counters when it is time; the backends with what they did lately."""
        if self._sources.metrics is not None and time.monotonic() - self._sampled >= SAMPLE_EVERY:
            self._sampled = time.monotonic()
            self._used = self._recent.used(now)
            text = self._ask("metrics", self._sources.metrics) if edge.state == "running" else None
            sample = self._ask("metrics", lambda: read_sample(text, now)) if text is not None else None
            if sample is None:
                self._history.miss(now)
            else:
                gauges = {b.id: Gauges(b.in_flight, b.running, b.waiting, b.kv_usage) for b in backends}
                self._history.add(sample, gauges, self._recent.answers(now, BIN))
        shares, answers, limits = self._history.shares(), self._recent.answers(now, NOW), self._history.limits
        return tuple(
            replace(
                one,
                share=shares.get(one.id),
                answers=answers.get(one.id),
                limit=int(limits[one.id]) if one.id in limits else None,
            )
            for one in backends
        )

    def _running(self, edge: EdgeView) -> Running | None:
        """The running requests while somebody looks at them."""
        asked = self._sources.requests
        if asked is None or edge.state != "running" or time.monotonic() - self._watched > WATCHED:
            return None
        told = self._ask("requests", asked)
        return running_of(told) if isinstance(told, Mapping) else None

    def _ask_edge(self) -> tuple[EdgeView, Mapping[str, Any] | None]:
        try:
            state = self._sources.edge()
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
        view = edge_view(state)
        processes = self._nginx.read(worker.pid for worker in view.workers)
        workers = tuple(replace(worker, process=processes.get(worker.pid)) for worker in view.workers)
        return replace(view, workers=workers), state

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._asked > self._answered, self._interval)
                if self._closed:
                    return
            try:
                self.poll()
            except Exception:  # the thread must live: a page that stands still lies
                log.exception("A poll failed; the next one follows in %.0f s.", self._interval)
                with self._changed:
                    self._answered = self._asked

    def _ask(self, source: str, ask: Callable[[], T]) -> T | None:
        """What a source tells; None, and one line in the log, when it fails."""
        try:
            told = ask()
        except Exception as error:
            self._complain(source, f"{source}: no answer: {error!r}")
            return None
        self._settle(source)
        return told

    def _complain(self, source: str, text: str) -> None:
        """Log a trouble once, not once a second."""
        if self._complaints.get(source) != text:
            self._complaints[source] = text
            log.warning("%s", text)

    def _settle(self, source: str) -> None:
        if self._complaints.pop(source, None):
            log.info("Answers again: %s.", source)
