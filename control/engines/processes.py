"""Engine processes: started in a session of their own, remembered on disk, found again, and ended without orphans."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from control.engines.args import Launch
from control.errors import EngineError

#: An engine.log beyond this many bytes moves to engine.log.1, so that an engine owns twice this much disk at most.
LOG_LIMIT = 20 * 1024**2
#: Seconds between KILL and giving up on a process that the kernel holds.
KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """An engine process as ``process.json`` remembers it. ``birth`` tells it from a later process with the same pid."""

    pid: int
    birth: str
    launch: str
    host: str
    port: int
    started: float
    #: Where in engine.log the output of this process begins.
    log_start: int
    #: Seconds from TERM to KILL.
    stop_seconds: float
    #: Seconds that its requests get before TERM, when it leaves the fleet. (A record of before has none.)
    drain_seconds: float = 600.0

    def save(self, folder: Path) -> None:
        """Write ``process.json``, whole or not at all."""
        temporary = folder / "process.json.new"
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
        temporary.replace(folder / "process.json")

    @classmethod
    def load(cls, folder: Path) -> Record | None:
        """What ``folder`` remembers; None when there is nothing, or nothing that can be read."""
        try:
            return cls(**json.loads((folder / "process.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


def forget(folder: Path) -> None:
    """The engine of ``folder`` does not run any more."""
    (folder / "process.json").unlink(missing_ok=True)


def boot_id() -> str:
    """Names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def birth(pid: int, dead_too: bool = False) -> str:
    """Names this life of ``pid``: the boot, and the kernel's clock ticks at its start. Empty when it does not live.

    Unlike a start time in seconds, it does not move when somebody sets the clock. ``dead_too``: also of a zombie.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = boot_id()
    except OSError:
        return ""
    return "" if after_name[0] in "ZX" and not dead_too else f"{boot}:{after_name[19]}"


def alive(record: Record) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    return birth(record.pid) == record.birth != ""


def runs(record: Record) -> bool:
    """Whether the process or anything of its group still runs."""
    return any(map(_runs, _family(record)))


def start(
    launch: Launch,
    folder: Path,
    host: str,
    port: int,
    stop_seconds: float,
    drain_seconds: float,
    log_name: str = "engine.log",
) -> tuple[subprocess.Popen[bytes], Record]:
    """Start ``launch`` detached, with its output in ``log_name``. Raises EngineError when it cannot be executed.

    When its record cannot be written (OSError), it does not run either: nobody would ever find it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / log_name
    bound(log)
    # O_APPEND: the file can be cut while the engine writes to it.
    with log.open("ab") as output:
        log_start = output.seek(0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                launch.argv,
                env={**os.environ, **launch.environment},
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(
                f"The engine could not be started: {launch.argv[0]}: {error.strerror}.",
                "Check engine.command in fleet.yaml.",
            ) from error
    try:
        born = birth(process.pid, dead_too=True)
        record = Record(
            process.pid, born, launch.hash(), host, port, time.time(), log_start, stop_seconds, drain_seconds
        )
        record.save(folder)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process, record


def bound(log: Path, limit: int = LOG_LIMIT) -> bool:
    """When ``log`` is over ``limit`` bytes, keep it as ``.1`` and empty it; says whether it did."""
    try:
        if log.stat().st_size <= limit:
            return False
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
    except FileNotFoundError:
        return False
    return True


def stop(record: Record, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> bool:
    """End the process and everything in its session; True when it ended by itself, False when KILL was needed.

    TERM goes to the leader alone: vLLM's server then lets requests finish and ends its engine core and workers in order
    (TERM to all of them at once cuts requests and leaves a worker behind). Whatever is left of the group gets TERM, and
    KILL when ``seconds`` are over or ``cancelled()``.
    """
    family = _family(record)
    deadline = time.monotonic() + seconds
    if alive(record):
        _send(record.pid, signal.SIGTERM)
    _wait(lambda: not alive(record), deadline, cancelled)
    left = [process for process in _merge(family, _group(record)) if _runs(process)]
    if not alive(record):
        for process in left:
            _send(process.pid, signal.SIGTERM)
        _wait(lambda: not any(map(_runs, left)), min(deadline, time.monotonic() + 3), cancelled)
    left = [process for process in _merge(left, _group(record)) if _runs(process)]
    for process in left:
        _send(process.pid, signal.SIGKILL)
    _wait(lambda: not any(map(_runs, left)), time.monotonic() + KILL_SECONDS, lambda: False)
    return not left


def _family(record: Record) -> list[psutil.Process]:
    """The leader, its group, and its descendants even if they left the group."""
    if not alive(record):
        return _group(record)
    try:
        leader = psutil.Process(record.pid)
        return _merge([leader, *leader.children(recursive=True)], _group(record))
    except psutil.NoSuchProcess:
        return _group(record)


def _group(record: Record) -> list[psutil.Process]:
    """Processes of the record's group, which outlives its leader; none when the number is another process's now."""
    # After a reboot too: a number of the last boot says nothing about the processes of this one.
    if record.birth.partition(":")[0] != boot_id() or birth(record.pid) not in ("", record.birth):
        return []
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == record.pid:
                found.append(process)
        except OSError:
            continue
    return found


def _merge(first: list[psutil.Process], second: list[psutil.Process]) -> list[psutil.Process]:
    return list({process.pid: process for process in (*first, *second)}.values())


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise EngineError(
            f"The engine process {pid} belongs to another user.", "Use the account (or sudo) that started it."
        ) from error


def _wait(done: Callable[[], bool], deadline: float, cancelled: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not done() and time.monotonic() < deadline and not cancelled():
        pause.wait(0.05)
