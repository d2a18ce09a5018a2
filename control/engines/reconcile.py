"""Watches over the containers of a fleet and starts again what died by itself. Part of the control plane.

It creates and removes nothing: that is `signalbox up` and `down`. A container that somebody stopped through Docker
stays stopped until it is started again; one that died, alone or with the Docker Engine, is started after a pause that
grows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from control.engines.args import EngineSpec
from control.engines.containers import docker_backends
from control.engines.converge import ending, how_ended
from control.engines.diagnosis import Diagnosis, Ending, Situation
from control.engines.docker import DockerHost
from control.engines.facts import Facts, alarms, summary
from control.engines.health import unready
from control.engines.hosts import Hosts
from control.engines.local import EngineStatus, State
from control.engines.ownership import Busy, adopted, working_on
from control.engines.plan import Found
from control.engines.policy import Deaths, Policy
from control.engines.prepare import engine_spec
from control.engines.readiness import StartupLog
from control.engines.sampler import Target
from control.engines.watch import Kept, learn
from control.engines.watched_events import Kills
from control.errors import EngineError
from control.fleet.load import LoadedFleet
from control.paths import StatePaths

log = logging.getLogger(__name__)

#: Seconds between two looks at a host where nothing happens.
LOOK = 3.0
#: Seconds after the end of a container until it is judged: Docker's own end looks like somebody's stop at first.
SETTLE = 1.5
LOG_LINES = 400
#: Why a backend is out of reach whatever its engine does; empty when it is not.
Way = Callable[[str], str]


@dataclass
class Watched:
    """What is remembered of one backend."""

    spec: EngineSpec
    deaths: Deaths
    status: EngineStatus
    gpus: tuple[int | str, ...] = ()
    #: The container that this is about, and its start; then moments of our own monotonic clock.
    container: str = ""
    started: float = 0.0
    alive_since: float = 0.0
    ready_at: float | None = None
    #: When it shall be started again, and when it was seen to have ended.
    restart_at: float | None = None
    ended_at: float | None = None
    #: It is not started any more until somebody does: what to say of it.
    left: tuple[State, str, str, Diagnosis | None] | None = None

    def says(self, state: State, phase: str, detail: str = "", failure: Diagnosis | None = None) -> None:
        """Set the status; ``since`` is the moment at which the state changed.

        ``failure`` is kept by the states that follow, until the engine is ready or fails otherwise.
        """
        since = self.status.since if state == self.status.state else time.time()
        failure = failure if state == "failed" else self.status.failure
        self.status = replace(self.status, state=state, phase=phase, detail=detail, since=since, failure=failure)

    def leave(self, state: State, phase: str, detail: str, failure: Diagnosis | None = None) -> None:
        """Do nothing more about it until somebody starts it."""
        self.left = (state, phase, detail, failure)
        self.says(*self.left)


class Watcher:
    """One host: a thread that looks, and one that listens to Docker's events."""

    def __init__(
        self, host: DockerHost, watched: dict[str, Watched], paths: StatePaths, policy: Policy, way: Way
    ) -> None:
        self.host = self._host = host
        self._paths, self._policy, self._way = paths, policy, way
        self.watched = watched
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._kills = Kills(host, self._wake.set)
        self.thread = threading.Thread(target=self._run, name=f"watch {host.name}", daemon=True)

    def close(self) -> None:
        """End the thread; the containers go on running. Returns at once: join ``thread``."""
        self._closing.set()
        self._wake.set()
        self._kills.close()

    def _run(self) -> None:
        misses = 0
        self._kills.start()
        while not self._closing.is_set():
            self._wake.clear()
            try:
                self._look()
                if misses:
                    log.info("The Docker Engine of %s answers again.", self._host.name)
                misses = 0
            except EngineError as error:
                misses += 1
                if misses == 1:
                    log.error("%s", error)
                for one in list(self.watched.values()):
                    one.says("failed", "Docker does not answer", f"{error.message} {error.hint}".strip())
            except Exception:  # a bug: say so and go on, or nobody would mind this host again
                log.exception("The watcher of %s failed.", self._host.name)
                misses += 1
            pauses = self._policy.pauses
            seconds = pauses[min(misses, len(pauses)) - 1] if misses else self._next_look()
            self._wake.wait(seconds)
            if misses:  # events of a host that is away come all at once
                self._closing.wait(min(seconds, 0.2))

    def _next_look(self) -> float:
        """Seconds until something is due: a restart, a judgement, a start that should be over."""
        now = time.monotonic()
        due = [one.restart_at - now for one in self.watched.values() if one.restart_at is not None]
        due += [SETTLE for one in self.watched.values() if one.ended_at is not None and not one.left]
        starting = any(one.status.state == "starting" for one in self.watched.values())
        return max(0.05, min([self._policy.poll * 3 if starting else LOOK, *due]))

    def _look(self) -> None:
        there = self._host.see(set(), adopted(self._paths))
        self._kills.seen(there.ours)
        for identity, one in list(self.watched.items()):
            mine = [found for found in there.ours if found.backend == identity]
            best = max(mine, key=lambda found: (found.alive, found.started), default=None)
            self._judge(one, best)

    def _judge(self, one: Watched, found: Found | None) -> None:
        if found is None:
            one.says("stopped", "no container", f"signalbox up {one.spec.id}")
            one.container, one.left = "", None
        elif found.state == "paused":
            one.says("stopped", "paused", f"docker unpause {found.name}")
        elif found.alive:
            self._minds(one, found)
        elif not found.started:
            one.says("stopped", "never started", f"signalbox up {one.spec.id}")
        else:
            self._ended(one, found)

    def _minds(self, one: Watched, found: Found) -> None:
        """It runs: is it ready?"""
        if (found.id, found.started) != (one.container, one.started):
            if one.left:  # somebody has started it: it gets all its tries again
                one.deaths.count = 0
            one.container, one.started, one.ready_at, one.left = found.id, found.started, None, None
            one.restart_at, one.ended_at, one.alive_since = None, None, time.monotonic()
        if one.ready_at is not None:
            if one.status.state != "ready":  # its host was away for a while
                one.says("ready", "serving", summary(one.status.facts or Facts()))
            return
        waiting = unready(one.spec)
        if not waiting:
            one.ready_at = time.monotonic()
            self._learn(one, found)
            log.info("%s: its container %s is ready.", one.spec.id, found.short)
            return
        if blocked := self._way(one.spec.id):  # of which the engine knows nothing: its time does not run
            one.alive_since = time.monotonic()
        one.says("starting", "starting", blocked or waiting)
        limit = int(one.spec.engine.start_timeout) / 1000
        if time.monotonic() - one.alive_since > limit:
            self._locked(one, lambda: self._give_up_start(one, found, waiting, limit))

    def _give_up_start(self, one: Watched, found: Found, waiting: str, limit: float) -> None:
        self._host.stop(found.id, 3)
        self._died(one, self._diagnose(one, found, Ending(overdue=f"was not ready after {limit:g} s: {waiting}")))

    def _learn(self, one: Watched, found: Found) -> None:
        """It is ready: with what does it run, and how did it start, as far as `signalbox up` has kept that?"""
        kept = Kept.load(self._paths.engine(one.spec.id), found.id)
        facts = learn(one.spec, kept.facts if kept else Facts())
        one.status = replace(
            one.status, phases=kept.phases if kept else (), facts=facts, alarms=alarms(one.spec, facts), failure=None
        )
        for alarm in one.status.alarms:
            log.warning("%s runs, but not as asked: %s.", one.spec.id, alarm)
        one.says("ready", "serving", summary(facts))

    def _ended(self, one: Watched, found: Found) -> None:
        """It does not run: by whose will, and what then?"""
        now = time.monotonic()
        if (found.id, found.started) != (one.container, one.started):
            one.container, one.started, one.left = found.id, found.started, None
            one.restart_at, one.ended_at = None, None
        if one.left:
            one.says(*one.left)
            return
        if one.ended_at is None and one.restart_at is None:
            one.ended_at = now
            one.says("stopped", "ended", ending(found))
        if one.restart_at is None:
            if one.ended_at is not None and now - one.ended_at >= SETTLE and not self._kills.unsure:
                self._locked(one, lambda: self._decide(one, found))
        elif now >= one.restart_at:
            self._locked(one, lambda: self._restart(one, found))

    def _decide(self, one: Watched, found: Found) -> None:
        if self._kills.by_hand(found, one.spec.id, self._paths):
            one.leave("stopped", "stopped by hand", f"signalbox up {one.spec.id} starts it again")
            log.info("%s: somebody has stopped its container; it stays so until `signalbox up`.", one.spec.id)
            return
        self._died(one, self._diagnose(one, found, how_ended(found)))

    def _died(self, one: Watched, failure: Diagnosis) -> None:
        ready_for = time.monotonic() - one.ready_at if one.ready_at is not None else 0.0
        deaths = one.deaths
        deaths.add(ready_for)
        one.ready_at = None
        lines = "".join(f"\n  | {line}" for line in failure.lines)
        log.error("%s died (%d in a row): %s%s", one.spec.id, deaths.count, failure.text(), lines)
        if (failure.final and not ready_for) or deaths.too_many:  # what was ready once can be so again
            often = f"died {deaths.count} times in a row: " if deaths.count > 1 else ""
            one.leave("failed", "given up", f"{often}{failure.text()}", failure)
            return
        one.restart_at = time.monotonic() + deaths.pause
        one.says("failed", f"restarts in {deaths.pause:g} s", failure.text(), failure)

    def _restart(self, one: Watched, found: Found) -> None:
        one.restart_at = one.ended_at = None
        one.status = replace(one.status, restarts=one.status.restarts + 1)
        try:
            self._host.start(found.id)
        except EngineError as error:
            startup = StartupLog()
            startup.refused(error.message)
            failure = startup.diagnosis(Situation(one.spec))
            if failure.kind == "unknown":
                failure = Diagnosis("unknown", error.message, error.hint)
            self._died(one, failure)
            return
        one.says("starting", "starting")

    def _diagnose(self, one: Watched, found: Found, how: Ending) -> Diagnosis:
        """Why it died: from the end of its log and from how it ended."""
        startup = StartupLog()
        text = b"".join(self._host.logs(found.id, tail=LOG_LINES)).decode(errors="replace")
        for line in text.splitlines():
            startup.feed(line)
        return startup.diagnosis(Situation(one.spec, how, startup.phase, startup.facts, self._host.gpu_memory))

    def _locked(self, one: Watched, act: Callable[[], None]) -> None:
        """Do something unless a command is at work on this backend: then it is that command's business."""
        try:
            with working_on(self._paths, one.spec.id):
                act()
        except Busy:
            one.ended_at = one.restart_at = None
            one.says("starting", "another command is at work")


class Reconciler:
    """All containers of a fleet, watched host by host."""

    def __init__(
        self,
        loaded: LoadedFleet,
        paths: StatePaths,
        policy: Policy | None = None,
        ways: Callable[[LoadedFleet], Way] = lambda _: lambda _: "",
    ) -> None:
        """``ways``: for a fleet, why a backend is out of reach whatever its engine does (see ``Way``)."""
        self._paths, self._policy, self._ways = paths, policy or Policy(), ways
        self._lock = threading.Lock()
        self._order: list[str] = []
        self._all: dict[str, Watched] = {}
        self._watchers: list[Watcher] = []
        self._hosts: Hosts | None = None
        self._set(loaded)

    def start(self) -> None:
        """Begin to watch."""
        with self._lock:
            for watcher in self._watchers:
                watcher.thread.start()

    def status(self) -> list[EngineStatus]:
        """The state of every container's engine, in the order of the fleet."""
        with self._lock:
            return [self._all[identity].status for identity in self._order]

    def running(self) -> list[Target]:
        """The containers that run, to be sampled."""
        with self._lock:
            return [
                Target(one.spec.id, host=watcher.host, container=one.container, gpus=one.gpus, dcgm=watcher.host.dcgm)
                for watcher in self._watchers
                for one in watcher.watched.values()
                if one.container and one.status.state in ("starting", "ready")
            ]

    def reload(self, loaded: LoadedFleet) -> None:
        """Follow a changed fleet. What is known of backends that stay is kept."""
        with self._lock:
            self._end()
            self._set(loaded)
            for watcher in self._watchers:
                watcher.thread.start()

    def close(self) -> None:
        """Stop watching; the containers go on running."""
        with self._lock:
            self._end()

    def _set(self, loaded: LoadedFleet) -> None:
        known, self._all, self._order, self._watchers = self._all, {}, [], []
        by_host: dict[str, dict[str, Watched]] = {}
        for backend in docker_backends(loaded):
            spec = engine_spec(backend, loaded)
            one = known.get(spec.id) or Watched(
                spec, Deaths(self._policy),
                EngineStatus(spec.id, spec.model, "starting", "", "", time.time(), None, spec.port, 0),
            )  # fmt: skip
            one.spec, one.gpus = spec, backend.gpus
            self._all[spec.id] = one
            self._order.append(spec.id)
            by_host.setdefault(str(backend.machine), {})[spec.id] = one
        if not by_host:
            return
        self._hosts, way = Hosts(loaded, self._paths), self._ways(loaded)
        for name, watched in by_host.items():
            self._watchers.append(Watcher(self._hosts.by_name[name], watched, self._paths, self._policy, way))

    def _end(self) -> None:
        for watcher in self._watchers:
            watcher.close()
        for watcher in self._watchers:
            if watcher.thread.is_alive():
                watcher.thread.join(5)
        if self._hosts is not None:
            self._hosts.__exit__(None, None, None)
            self._hosts = None
