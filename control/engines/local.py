"""The supervisor of engines that run as processes of this machine.

One thread per engine: it installs what is missing, starts the engine or adopts one that still runs, watches it, and
starts it again when it dies. Which engine gets traffic is the edge's own finding; it is asked only before a running
engine is ended on purpose (drain.py).
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Literal

from control.engines import processes
from control.engines.args import Launch
from control.engines.diagnosis import Diagnosis, Ending, Situation
from control.engines.drain import Gate, sequences
from control.engines.facts import summary
from control.engines.health import cannot_listen
from control.engines.log_reader import LogReader
from control.engines.minder import Cancelled, ProcessKeeper
from control.engines.phases import SERVING, STARTING, times
from control.engines.policy import Policy
from control.engines.prepare import LocalEngine, local_engines, model_folder, prepare
from control.engines.processes import Record
from control.engines.recorded import Leaver, Leavers, close_all, end, engine_on, folders
from control.engines.status import EngineStatus, State
from control.engines.turns import Turns
from control.engines.watch import Kept, Watch
from control.errors import EngineError, SignalboxError
from control.fleet.load import LoadedFleet
from control.paths import StatePaths

log = logging.getLogger(__name__)

__all__ = ["EngineStatus", "Keeper", "Policy", "State", "Supervisor"]


class Keeper(ProcessKeeper):
    """Keeps one engine running, in a thread of its own."""

    def __init__(
        self,
        engine: LocalEngine,
        paths: StatePaths,
        policy: Policy,
        gate: Gate | None = None,
        after: threading.Thread | None = None,
        turns: Turns | None = None,
    ) -> None:
        """``after``: who minds an engine of the same id until then; ``turns``: who of a model may be restarted."""
        spec = engine.spec
        super().__init__(spec.id, "engine", policy, gate, after)
        self._engine = engine
        self._paths = paths
        self._turns = turns
        self._folder = paths.engine(spec.id)
        #: A person's wishes: no engine until told otherwise; a new one in place of the one that runs.
        self._held = False
        self._anew = False
        self.status = EngineStatus(spec.id, spec.model, "starting", "", "", time.time(), None, spec.port, 0)

    @property
    def engine(self) -> LocalEngine:
        """What this keeper starts."""
        return self._engine

    def change(self, engine: LocalEngine) -> None:
        """Run this from now on: an engine that differs is restarted; one that was given up gets another try."""
        self._engine = engine
        self._wake.set()

    def by_hand(self, action: Literal["start", "stop", "restart"]) -> None:
        """What a person wants of this engine, until the next wish or the control plane's next start."""
        runs = action == "start" and not self._held and self.status.state != "failed"
        self._held, self._anew = action == "stop", action == "restart"
        if not runs:
            self._wake.set()

    # The thread.

    def _left(self) -> None:
        self._let_in()
        self._give_turn()

    def _hold(self) -> None:
        """A person stopped this engine: end it when it is empty, then wait for another wish."""
        record = Record.load(self._folder)
        if record is not None:
            if not self._drained(record, "stopped"):
                return
            self._end()
        if self._drain is not None:  # nothing listens there: the wish that keeps requests out runs out by itself
            self._drain.leave()
            self._drain = None
        self._give_turn()
        self._set("stopped", "by hand", "stopped on the page; start it there")
        while not self._pause(3600):
            pass

    def _unexpected(self, error: Exception) -> None:
        log.exception("The supervisor of %s failed.", self.status.id)
        reason = str(error) if isinstance(error, OSError | SignalboxError) else repr(error)
        self._set("failed", "supervisor", f"{reason} (control.log has the traceback)")

    def _once(self) -> None:
        if self._held:
            self._hold()
        else:
            self._keep()

    def _keep(self) -> None:
        """Prepare, start or adopt, watch until it dies; then pause as long as the number of deaths asks for."""
        try:
            launch = prepare(self._engine, self._paths, self._progress)
            record = Record.load(self._folder)
            if record is not None and not self._adopts(record, launch):
                if not self._has_turn(record) or not self._drained(record):
                    return
                self._anew = False
                self._end()  # also when the leader is gone: its children may not be
                record = None
            self._anew = False
            record = record or self._start(launch)
        except SignalboxError as error:
            self._let_in()
            self._set("failed", "cannot start", f"{error.message} {error.hint}".strip())
            log.error("%s: %s", self.status.id, error)
            self._pause(self._policy.retry)
            return
        if record is None:
            self._pause(self._policy.retry)
            return
        self.status = replace(self.status, phases=(), phase_since=None, facts=None, alarms=())
        self._set("starting", STARTING, pid=record.pid)
        failure, ready_for = self._watch(record)
        if failure is not None:
            self._bury(record, failure, ready_for)

    def _adopts(self, record: Record, launch: Launch) -> bool:
        """Whether the engine that still runs can go on: only with the launch that it was started with."""
        if not processes.alive(record) or record.launch != launch.hash() or self._anew:
            return False
        log.info("%s still runs (pid %d): adopted.", self.status.id, record.pid)
        return True

    def _has_turn(self, record: Record) -> bool:
        """Wait until no other engine of the model is being restarted; False when there is something else to do first.

        Meanwhile it serves with its old settings. One that does not run, or that a person wants anew, waits for nobody.
        """
        spec = self._engine.spec
        while self._turns is not None and not self._anew and processes.alive(record):
            waiting = self._turns.take(spec.id, spec.model, spec.engine.min_ready)
            if not waiting:
                break
            self._set("starting", "waiting for its turn", f"{waiting}; until then the old engine serves", record.pid)
            if self._pause(self._policy.drain):
                return False
        return True

    def _drained(self, record: Record, why: str = "restarted") -> bool:
        """Wait until nothing runs on the old engine; False when there is something else to do first."""
        seconds = int(self._engine.spec.engine.drain_timeout) / 1000
        return self._emptied(record, seconds, why, lambda count: self._tell(record, count, why))

    def _tell(self, record: Record, count: int, why: str) -> None:
        end = "restart" if why == "restarted" else "stop"
        detail = f"waiting for {sequences(count)} on {self.status.id} before its {end}"
        self._set("starting", "draining", detail, pid=record.pid)

    def _give_turn(self) -> None:
        """The next engine of the model may be restarted."""
        if self._turns is not None:
            self._turns.give(self.status.id)

    def _start(self, launch: Launch) -> Record | None:
        spec = self._engine.spec
        if not self._may_listen():
            return None
        stop, drain = int(spec.engine.stop_timeout) / 1000, int(spec.engine.drain_timeout) / 1000
        self._process, record = processes.start(launch, self._folder, spec.host, spec.port, stop, drain)
        log.info("%s: started (pid %d, port %d).", spec.id, record.pid, spec.port)
        return record

    def _may_listen(self) -> bool:
        """Whether the engine's address is free; waits for an engine of ours that is about to leave it."""
        spec, began = self._engine.spec, time.monotonic()
        just_left = True
        while True:
            taken, problem = cannot_listen(spec)
            if not problem:
                return True
            other = engine_on(spec.host, spec.port, self._paths) if taken else None
            if taken and other is None and just_left:
                just_left = False  # ours may have ended between the two looks: look once more
                if self._pause(self._policy.poll):
                    return False
                continue
            patience = other[1].drain_seconds + other[1].stop_seconds + 2 * processes.KILL_SECONDS if other else 0.0
            if other is None or time.monotonic() - began > patience:
                self._set("failed", "port taken" if taken else "cannot listen", problem)
                return False
            self._set("starting", f"waiting for {other[0]} to end", f"it still has port {spec.port}")
            if self._pause(self._policy.poll):
                return False

    def _watch(self, record: Record) -> tuple[Diagnosis | None, float]:
        """Until the engine dies: why, and for how many seconds it was ready. None: closing, or changed."""
        spec = replace(self._engine.spec, model_folder=model_folder(self._engine, self._paths))
        adopted = not self._is_child(record)
        began = time.time() if adopted else record.started
        reader = LogReader(self._folder / "engine.log", record.log_start, began)
        watch = Watch(spec, reader.startup, adopted=adopted)
        deadline = began + int(spec.engine.start_timeout) / 1000
        ready_at: float | None = None
        try:
            while True:
                ending = self._ending(record)
                reader.read()
                now = time.time()
                if ending is None and ready_at is None:
                    missing = watch.look(now)
                    if watch.ready:
                        ready_at = now
                        self._ready(record, watch)
                    elif late := watch.late(now, deadline):
                        self._end()
                        ending = Ending(overdue=f"{late}: {missing}")
                    else:
                        timeline = watch.timeline
                        self.status = replace(self.status, phases=watch.phases, phase_since=timeline.since)
                        self._set("starting", timeline.phase, timeline.detail, pid=record.pid)
                elif ending is None and processes.bound(self._folder / "engine.log"):
                    log.info("%s: engine.log was full; its content is in engine.log.1.", spec.id)
                if ending is not None:
                    situation = Situation(spec, ending, watch.timeline.phase, reader.startup.facts)
                    return reader.startup.diagnosis(situation), now - ready_at if ready_at else 0.0
                if self._pause(self._policy.poll):
                    return None, 0.0
        finally:
            watch.close()

    def _ready(self, record: Record, watch: Watch) -> None:
        """The engine serves: tell it, with what it runs with, and let the edge send requests."""
        self._let_in()
        self._give_turn()
        kept = None if watch.timed else Kept.load(self._folder, record.birth)
        phases = kept.phases if kept else watch.phases
        facts = watch.facts.joined(kept.facts) if kept else watch.facts
        Kept(record.birth, phases, facts).save(self._folder)
        alarms = watch.alarms(facts)
        self.status = replace(self.status, phases=phases, phase_since=None, facts=facts, alarms=alarms, failure=None)
        self._set("ready", SERVING, summary(facts), pid=record.pid)
        log.info("%s: ready (%s). %s", self.status.id, times(phases) or "it was already", summary(facts))
        for alarm in alarms:
            log.warning("%s runs, but not as asked: %s.", self.status.id, alarm)

    def _bury(self, record: Record, failure: Diagnosis, ready_for: float) -> None:
        """The engine died: end what is left of it, and wait before the next try; after too many tries, for a change."""
        processes.stop(record, 0)
        processes.forget(self._folder)
        self._let_in()
        deaths = self._deaths
        deaths.add(ready_for)
        lines = "".join(f"\n  | {line}" for line in failure.lines)
        log.error("%s died (%d in a row): %s%s", self.status.id, deaths.count, failure.text(), lines)
        if (failure.final and not ready_for) or deaths.too_many:  # what was ready once can be so again
            often = f"died {deaths.count} times in a row: " if deaths.count > 1 else ""
            self._set("failed", "given up", f"{often}{failure.text()}", failure=failure)
            while not self._pause(3600):
                pass
            deaths.count = 0
            return
        self._set("failed", f"restarts in {deaths.pause:g} s", failure.text(), failure=failure)
        if not self._pause(deaths.pause):
            self.status = replace(self.status, restarts=self.status.restarts + 1)

    def _end(self) -> None:
        record = Record.load(self._folder)
        if record is not None:
            self.status = replace(self.status, phase="stopping")
            end(record, self._folder)
            self._reap()
        self._set("stopped", "")

    def _ending(self, record: Record) -> Ending | None:
        """How the engine ended; None while it runs. Only its parent learns the exit code."""
        if self._process is not None and self._is_child(record):
            code = self._process.poll()
            return None if code is None else Ending(code)
        return None if processes.alive(record) else Ending()

    def _progress(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        if self._closing:
            raise Cancelled
        percent = f" ({fraction:.0%})" if fraction is not None else ""
        self._set("installing", title, f"{detail}{percent}")

    def _set(
        self, state: State, phase: str, detail: str = "", pid: int | None = None, failure: Diagnosis | None = None
    ) -> None:
        """``failure`` is kept by the states that follow, until the engine is ready or fails otherwise."""
        since = self.status.since if state == self.status.state else time.time()
        failure = failure if state == "failed" else self.status.failure
        self.status = replace(
            self.status, state=state, phase=phase, detail=detail, since=since, pid=pid, failure=failure
        )


class Supervisor:
    """All engines of a fleet that run on this machine."""

    def __init__(
        self, loaded: LoadedFleet, paths: StatePaths, policy: Policy | None = None, gate: Gate | None = None
    ) -> None:
        """Without ``gate`` no engine is drained: nobody is served through an edge."""
        self._paths = paths
        self._policy = policy or Policy()
        self._gate = gate
        self._lock = threading.Lock()
        self._turns = Turns(gate.states) if gate is not None else None
        self._keepers = {engine.id: self._keeper(engine) for engine in local_engines(loaded)}
        #: Those who end engines of backends that left the fleet.
        self._leaving = Leavers()

    def start(self) -> None:
        """Start or adopt every engine, each in a thread; engines of backends that left the fleet are stopped."""
        if self._gate is not None:
            self._gate.undo()
        with self._lock:
            for folder in folders(self._paths):
                if folder.name not in self._keepers:
                    self._leaving.add(Leaver(folder, self._gate, self._policy.drain, None))
            for keeper in self._keepers.values():
                keeper.thread.start()

    def status(self) -> list[EngineStatus]:
        """The state of every engine, in the order of the fleet."""
        with self._lock:
            return [keeper.status for keeper in self._keepers.values()]

    def by_hand(self, identity: str, action: Literal["start", "stop", "restart"]) -> None:
        """Start, stop or restart one engine because a person wants it. Raises EngineError for one that is not here."""
        with self._lock:
            keeper = self._keepers.get(identity)
        if keeper is None:
            raise EngineError(f"{identity} is no engine of this machine.", "`signalbox status` shows all.")
        keeper.by_hand(action)

    def reload(self, loaded: LoadedFleet) -> None:
        """Follow a changed fleet: start new engines, stop those that are gone, restart those whose start changed."""
        engines = {engine.id: engine for engine in local_engines(loaded)}
        with self._lock:
            old, self._keepers = self._keepers, {}
            for identity, engine in engines.items():
                keeper = old.pop(identity, None)
                if keeper is None:
                    keeper = self._keeper(engine, self._leaving.stays(identity))
                    keeper.thread.start()
                elif keeper.engine != engine or keeper.status.state == "failed":
                    keeper.change(engine)
                self._keepers[identity] = keeper
            for identity, keeper in old.items():
                keeper.close(stop=False)
                seconds = int(keeper.engine.spec.engine.drain_timeout) / 1000
                folder = self._paths.engine(identity)
                self._leaving.add(Leaver(folder, self._gate, self._policy.drain, keeper.thread, seconds))

    def _keeper(self, engine: LocalEngine, after: threading.Thread | None = None) -> Keeper:
        return Keeper(engine, self._paths, self._policy, self._gate, after, self._turns)

    def close(self) -> None:
        """Stop supervising; the engines go on running and the next supervisor adopts them."""
        self._close(stop_engines=False)

    def stop_all(self) -> None:
        """Stop every engine: TERM, wait for its stop_timeout, KILL; returns when no process of theirs is left."""
        self._close(stop_engines=True)

    def _close(self, stop_engines: bool) -> None:
        with self._lock:
            minders = [*self._keepers.values(), *self._leaving]
        close_all(minders, stop_engines)
