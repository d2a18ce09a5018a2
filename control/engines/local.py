"""The supervisor of engines that run as processes of this machine.

One thread per engine: it installs what is missing, starts the engine or adopts one that still runs, watches it, and
starts it again when it dies. The edge is not asked and not told: which engine gets traffic is its own finding.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from control.engines import processes
from control.engines.args import Launch
from control.engines.health import cannot_listen, listens, unready
from control.engines.log_reader import LogReader
from control.engines.prepare import LocalEngine, local_engines, prepare
from control.engines.processes import Record
from control.engines.readiness import KvCache
from control.errors import EngineError, SignalboxError
from control.fleet.load import LoadedFleet
from control.paths import StatePaths

log = logging.getLogger(__name__)

State = Literal["installing", "starting", "ready", "failed", "stopped"]


@dataclass(frozen=True)
class EngineStatus:
    """What one engine does. ``since``: Unix seconds of the last change of ``state``; ``phase``, ``detail``: words."""

    id: str
    model: str
    state: State
    phase: str
    detail: str
    since: float
    pid: int | None
    port: int
    restarts: int


@dataclass(frozen=True)
class Policy:
    """When to look and when to try again; all in seconds."""

    poll: float = 0.3
    #: Pauses before the restarts after deaths in a row; the last one repeats.
    pauses: tuple[float, ...] = (1, 2, 4, 8, 15, 30)
    #: A death counts as quick when the engine was ready for less than this.
    quick: float = 60
    #: So many quick deaths in a row end the trying.
    give_up_after: int = 5
    #: Between two looks at something that a person has to change: a taken port, a missing folder.
    retry: float = 5


class _Cancelled(Exception):
    """The supervisor closes while something is being installed."""


class Keeper:
    """Keeps one engine running, in a thread of its own."""

    def __init__(self, engine: LocalEngine, paths: StatePaths, policy: Policy) -> None:
        spec = engine.spec
        self._engine = engine
        self._paths = paths
        self._policy = policy
        self._folder = paths.engine(spec.id)
        self._wake = threading.Event()
        self._closing = False
        self._stop_engine = False
        self._deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.status = EngineStatus(spec.id, spec.model, "starting", "", "", time.time(), None, spec.port, 0)
        self.thread = threading.Thread(target=self._run, name=f"engine {spec.id}", daemon=True)

    @property
    def engine(self) -> LocalEngine:
        """What this keeper starts."""
        return self._engine

    def change(self, engine: LocalEngine) -> None:
        """Run this from now on: an engine that differs is restarted; one that was given up gets another try."""
        self._engine = engine
        self._wake.set()

    def close(self, stop_engine: bool) -> None:
        """End the thread; ``stop_engine`` says whether the engine goes too. Returns at once: join ``thread``."""
        self._stop_engine, self._closing = stop_engine, True
        self._wake.set()

    # The thread.

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                self._once()
            except _Cancelled:
                break
            except Exception as error:  # a full disk, a bug: say so and go on, or nobody would mind the engine again
                self._unexpected(error)
                self._pause(self._policy.retry)
        if self._stop_engine:
            try:
                self._end_engine()
            except Exception as error:
                self._unexpected(error)

    def _unexpected(self, error: Exception) -> None:
        log.exception("The supervisor of %s failed.", self.status.id)
        reason = str(error) if isinstance(error, OSError | SignalboxError) else repr(error)
        self._set("failed", "supervisor", f"{reason} (control.log has the traceback)")

    def _once(self) -> None:
        """Prepare, start or adopt, watch until it dies; then pause as long as the number of deaths asks for."""
        try:
            launch = prepare(self._engine, self._paths, self._progress)
            record = self._adopt(launch) or self._start(launch)
        except SignalboxError as error:
            self._set("failed", "cannot start", f"{error.message} {error.hint}".strip())
            log.error("%s: %s", self.status.id, error)
            self._pause(self._policy.retry)
            return
        if record is None:
            self._pause(self._policy.retry)
            return
        self._set("starting", "starting", pid=record.pid)
        reason, ready_for = self._watch(record)
        if reason:
            self._bury(record, reason, ready_for)

    def _adopt(self, launch: Launch) -> Record | None:
        """The engine that still runs from an earlier control plane; one with another launch is stopped."""
        record = Record.load(self._folder)
        if record is None:
            return None
        if processes.alive(record) and record.launch == launch.hash():
            log.info("%s still runs (pid %d): adopted.", self.status.id, record.pid)
            return record
        self._end_engine()  # also when the leader is gone: its children may not be
        return None

    def _start(self, launch: Launch) -> Record | None:
        spec = self._engine.spec
        if not self._may_listen():
            return None
        stop_seconds = int(spec.engine.stop_timeout) / 1000
        self._process, record = processes.start(launch, self._folder, spec.host, spec.port, stop_seconds)
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
            other = _engine_on(spec.host, spec.port, self._paths) if taken else None
            if taken and other is None and just_left:
                just_left = False  # ours may have ended between the two looks: look once more
                if self._pause(self._policy.poll):
                    return False
                continue
            if other is None or time.monotonic() - began > other[1].stop_seconds + 2 * processes.KILL_SECONDS:
                self._set("failed", "port taken" if taken else "cannot listen", problem)
                return False
            self._set("starting", f"waiting for {other[0]} to end", f"it still has port {spec.port}")
            if self._pause(self._policy.poll):
                return False

    def _watch(self, record: Record) -> tuple[str, float]:
        """Until the engine dies: why, and for how many seconds it was ready. No reason: closing, or changed."""
        spec = self._engine.spec
        reader = LogReader(self._folder / "engine.log", record.log_start)
        deadline = record.started + int(spec.engine.start_timeout) / 1000
        ready_at: float | None = None
        while True:
            ending = self._ending(record)
            reader.read()
            if ending:
                reason = reader.startup.failed() or ending
                return reason, time.time() - ready_at if ready_at else 0.0
            if ready_at is None:
                waiting = unready(spec)
                if not waiting:
                    ready_at = time.time()
                    self._set("ready", "serving", _kv_cache_text(reader.startup.kv_cache), pid=record.pid)
                    log.info("%s: ready after %.0f s.", spec.id, ready_at - record.started)
                elif time.time() > deadline:
                    self._end_engine()
                    return f"not ready after {int(spec.engine.start_timeout) // 1000} s: {waiting}", 0.0
                else:
                    self._set("starting", reader.startup.phase, reader.startup.detail, pid=record.pid)
            elif processes.bound(self._folder / "engine.log"):
                log.info("%s: engine.log was full; its content is in engine.log.1.", spec.id)
            if self._pause(self._policy.poll):
                return "", 0.0

    def _bury(self, record: Record, reason: str, ready_for: float) -> None:
        """The engine died: end what is left of it, and wait before the next try; after too many tries, for a change."""
        processes.stop(record, 0)
        processes.forget(self._folder)
        policy = self._policy
        self._deaths = 1 if ready_for >= policy.quick else self._deaths + 1
        log.error("%s died (%d in a row): %s", self.status.id, self._deaths, reason)
        if self._deaths >= policy.give_up_after:
            self._set("failed", "given up", f"died {self._deaths} times in a row: {reason}")
            while not self._pause(3600):
                pass
            self._deaths = 0
            return
        pause = policy.pauses[min(self._deaths, len(policy.pauses)) - 1]
        self._set("failed", f"restarts in {pause:g} s", reason)
        if not self._pause(pause):
            self.status = replace(self.status, restarts=self.status.restarts + 1)

    def _end_engine(self) -> None:
        record = Record.load(self._folder)
        if record is not None:
            self.status = replace(self.status, phase="stopping")
            _end(record, self._folder)
            if self._process is not None:
                self._process.poll()  # reap it
        self._set("stopped", "")

    def _ending(self, record: Record) -> str:
        """How the engine ended; empty while it runs. Only its parent learns the exit code."""
        if self._process is not None and self._process.pid == record.pid:
            code = self._process.poll()
            return "" if code is None else _exit_text(code)
        return "" if processes.alive(record) else "it ended; its engine.log may say why"

    def _pause(self, seconds: float) -> bool:
        """Wait; True when there is something else to do: closing, or a changed fleet."""
        return self._wake.wait(seconds) or self._closing

    def _progress(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        if self._closing:
            raise _Cancelled
        percent = f" ({fraction:.0%})" if fraction is not None else ""
        self._set("installing", title, f"{detail}{percent}")

    def _set(self, state: State, phase: str, detail: str = "", pid: int | None = None) -> None:
        since = self.status.since if state == self.status.state else time.time()
        self.status = replace(self.status, state=state, phase=phase, detail=detail, since=since, pid=pid)


class Supervisor:
    """All engines of a fleet that run on this machine."""

    def __init__(self, loaded: LoadedFleet, paths: StatePaths, policy: Policy | None = None) -> None:
        self._paths = paths
        self._policy = policy or Policy()
        self._lock = threading.Lock()
        self._keepers = {engine.id: Keeper(engine, paths, self._policy) for engine in local_engines(loaded)}
        #: Keepers of backends that left the fleet, while they end their engines.
        self._leaving: list[Keeper] = []

    def start(self) -> None:
        """Start or adopt every engine, each in a thread; engines of backends that left the fleet are stopped."""
        with self._lock:
            known = set(self._keepers)
            for keeper in self._keepers.values():
                keeper.thread.start()
        threading.Thread(target=stop_recorded, args=(self._paths, known), name="engines sweep", daemon=True).start()

    def status(self) -> list[EngineStatus]:
        """The state of every engine, in the order of the fleet."""
        with self._lock:
            return [keeper.status for keeper in self._keepers.values()]

    def reload(self, loaded: LoadedFleet) -> None:
        """Follow a changed fleet: start new engines, stop those that are gone, restart those whose start changed."""
        engines = {engine.id: engine for engine in local_engines(loaded)}
        with self._lock:
            old, self._keepers = self._keepers, {}
            for identity, engine in engines.items():
                keeper = old.pop(identity, None)
                if keeper is None:
                    keeper = Keeper(engine, self._paths, self._policy)
                    keeper.thread.start()
                elif keeper.engine != engine or keeper.status.state == "failed":
                    keeper.change(engine)
                self._keepers[identity] = keeper
            for keeper in old.values():
                keeper.close(stop_engine=True)
            self._leaving = [keeper for keeper in (*self._leaving, *old.values()) if keeper.thread.is_alive()]

    def close(self) -> None:
        """Stop supervising; the engines go on running and the next supervisor adopts them."""
        self._close(stop_engines=False)

    def stop_all(self) -> None:
        """Stop every engine: TERM, wait for its stop_timeout, KILL; returns when no process of theirs is left."""
        self._close(stop_engines=True)

    def _close(self, stop_engines: bool) -> None:
        with self._lock:
            keepers, leaving = list(self._keepers.values()), self._leaving
        for keeper in keepers:
            keeper.close(stop_engines)
        for keeper in (*keepers, *leaving):
            if keeper.thread.is_alive():
                keeper.thread.join()


def stop_recorded(paths: StatePaths, keep: set[str] | None = None) -> list[str]:
    """Stop all engines that the state folder remembers, but ``keep``; needs no supervisor. Returns their ids."""
    stopped: list[str] = []
    failed: list[EngineError] = []

    def end(record: Record, identity: str) -> None:
        try:
            _end(record, paths.engine(identity))
            stopped.append(identity)
        except EngineError as error:
            failed.append(error)

    threads = []
    for file in sorted((paths.root / "engines").glob("*/process.json")):
        record, identity = Record.load(file.parent), file.parent.name
        if identity in (keep or ()):
            continue
        if record is None:
            processes.forget(file.parent)
            continue
        threads.append(threading.Thread(target=end, args=(record, identity), name=f"stop {identity}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sorted(stopped)


def _engine_on(host: str, port: int, paths: StatePaths) -> tuple[str, Record] | None:
    """The id and record of an engine of ours that runs at this address."""
    for file in sorted((paths.root / "engines").glob("*/process.json")):
        record = Record.load(file.parent)
        if record is not None and (record.host, record.port) == (host, port) and processes.runs(record):
            return file.parent.name, record
    return None


def _end(record: Record, folder: Path) -> None:
    # An engine that does not listen yet has no requests to finish, and vLLM can hang when it is stopped that early.
    seconds = record.stop_seconds if listens(record.host, record.port) else min(3.0, record.stop_seconds)
    processes.stop(record, seconds)
    processes.forget(folder)


def _exit_text(code: int) -> str:
    """What an exit code says, where the log has no reason."""
    if code == -signal.SIGKILL:
        return "it was killed (signal 9); when nobody did that, the machine ran out of memory"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended by itself with exit code {code}"


def _kv_cache_text(cache: KvCache | None) -> str:
    if cache is None:
        return ""
    return f"KV cache of {cache.tokens:,} tokens: {cache.requests:g} requests of {cache.length:,} tokens at once"
