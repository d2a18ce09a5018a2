"""Engines that the state folder remembers, whether the fleet has them or not: found by address, and ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

from control.engines import processes
from control.engines.drain import Drain, Gate
from control.engines.health import listens
from control.engines.processes import Record
from control.errors import EngineError
from control.paths import StatePaths

log = logging.getLogger(__name__)

#: Folders of the state folder whose processes are remembered: engines, and ssh for tunnels.
Kind = Literal["engines", "tunnels"]


def end(record: Record, folder: Path) -> None:
    """End the process of ``folder`` and all that belongs to it, and forget it. Raises EngineError."""
    # An engine that does not listen yet has no requests to finish, and vLLM can hang when it is stopped that early.
    seconds = record.stop_seconds if listens(record.host, record.port) else min(3.0, record.stop_seconds)
    processes.stop(record, seconds)
    processes.forget(folder)


def folders(paths: StatePaths, kind: Kind = "engines") -> list[Path]:
    """The folders of all engines (or tunnels) that have a process to remember."""
    return [file.parent for file in sorted((paths.root / kind).glob("*/process.json"))]


def engine_on(host: str, port: int, paths: StatePaths) -> tuple[str, Record] | None:
    """The id and record of an engine of ours that runs at this address."""
    for folder in folders(paths):
        record = Record.load(folder)
        if record is not None and (record.host, record.port) == (host, port) and processes.runs(record):
            return folder.name, record
    return None


def stop_recorded(paths: StatePaths, kind: Kind = "engines") -> list[str]:
    """Stop all engines (or tunnels) that the state folder remembers, at once; needs no supervisor. Returns their ids.

    Raises EngineError when one belongs to another user; the others are stopped all the same.
    """
    stopped: list[str] = []
    failed: list[EngineError] = []

    def stop(record: Record, folder: Path) -> None:
        try:
            end(record, folder)
            stopped.append(folder.name)
        except EngineError as error:
            failed.append(error)

    threads = []
    for folder in folders(paths, kind):
        record = Record.load(folder)
        if record is None:
            processes.forget(folder)
            continue
        threads.append(threading.Thread(target=stop, args=(record, folder), name=f"stop {folder.name}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return sorted(stopped)


class Leaver:
    """Ends the engine of a backend that has left the fleet, when nothing runs on it any more; in its own thread."""

    def __init__(
        self,
        folder: Path,
        gate: Gate | None,
        poll: float,
        after: threading.Thread | None,
        seconds: float | None = None,
        what: str = "engine",
    ) -> None:
        """``after``: who has minded the engine until now. ``seconds``: how long at most; else as at its start.

        ``what``: what it is that ends, in words.
        """
        self._what = what
        self.id = folder.name
        self._folder = folder
        self._gate = gate
        self._poll = poll
        self._after = after
        self._seconds = seconds
        self._closing = threading.Event()
        self._stop_engine = False
        self.thread = threading.Thread(target=self._run, name=f"leaving {self.id}", daemon=True)

    def close(self, stop_engine: bool) -> None:
        """Wait no longer: end the engine at once, or leave it to whoever minds it next. Join ``thread``."""
        self._stop_engine = stop_engine
        self._closing.set()

    def _run(self) -> None:
        if self._after is not None:
            self._after.join()
        record = Record.load(self._folder)
        if record is None:
            processes.forget(self._folder)
            return
        drain = Drain(self._gate, self.id, record, "stopped")
        try:
            seconds = record.drain_seconds if self._seconds is None else self._seconds
            if drain.wait(seconds, self._poll, self._closing.wait, lambda count: None) or self._stop_engine:
                end(record, self._folder)
                log.info("%s has left the fleet: its %s is stopped.", self.id, self._what)
        except Exception:  # a bug, or somebody else's process: the next start tries again
            log.exception("The %s of %s, which has left the fleet, could not be stopped.", self._what, self.id)
        finally:
            drain.release()


class Leavers:
    """All that end something which has left the fleet. Not for several threads: its owner has a lock."""

    def __init__(self) -> None:
        self._all: list[Leaver] = []

    def __iter__(self) -> Iterator[Leaver]:
        return iter(self._all)

    def add(self, leaver: Leaver) -> None:
        """Let one begin."""
        self._all = [other for other in self._all if other.thread.is_alive()]
        self._all.append(leaver)
        leaver.thread.start()

    def stays(self, identity: str) -> threading.Thread | None:
        """A backend is in the fleet again before what it had was ended: the thread that lets go of it."""
        for leaver in self._all:
            if leaver.id == identity and leaver.thread.is_alive():
                leaver.close(stop_engine=False)
                return leaver.thread
        return None


class Minder(Protocol):
    """Somebody with a thread that minds one process: a keeper, or a Leaver."""

    @property
    def thread(self) -> threading.Thread: ...
    def close(self, stop: bool, /) -> None: ...


def close_all(minders: Sequence[Minder], stop: bool) -> None:
    """End all these threads, ``stop``: what they mind too; returns when none is left."""
    for one in minders:
        one.close(stop)
    for one in minders:
        if one.thread.is_alive():
            one.thread.join()
