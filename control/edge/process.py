"""The nginx process of one state folder: test, start, stop, signal. Knows nothing of fleets."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from control.edge import calls
from control.edge.binary import Engine
from control.edge.files import write
from control.edge.logs import ErrorLog
from control.errors import EdgeError
from control.paths import StatePaths

CONF = "conf/nginx.conf"
NEXT_CONF = "next/nginx.conf"
#: Seconds: the command returns when its master has forked; only a broken machine needs this long.
COMMAND_TIMEOUT = 30.0
#: Seconds from TERM to KILL.
TERM_TIMEOUT = 5.0

Ending = Literal["was not running", "finished its streams", "was terminated", "was killed"]


@dataclass(frozen=True)
class EdgeProcess:
    """nginx with ``paths.edge`` as its prefix. Without an ``engine`` it can be looked at, signalled and stopped.

    ``paths`` must be absolute, with links resolved (``site.state_paths``): the process title is compared with it.
    """

    paths: StatePaths
    engine: Engine | None = None

    def prepare(self) -> None:
        """Make the folders that nginx needs and, once, the admin token (mode 0600)."""
        for folder in (self.paths.conf, self.paths.next, self.paths.last, self.paths.edge_logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.paths.edge_pid.parent.mkdir(exist_ok=True)
        (self.paths.edge / "temp").mkdir(exist_ok=True)
        if not self.paths.admin_token.exists():
            write(self.paths.admin_token, secrets.token_hex(32) + "\n", mode=0o600)

    def test(self, conf: str = CONF) -> list[str]:
        """Run ``nginx -t`` on ``conf`` (relative to the prefix) and return its warnings.

        nginx does not run Lua here. Raises EdgeError with nginx's own words when the file is refused.
        """
        code, output = self._run("-p", f"{self.paths.edge}/", "-e", "stderr", "-t", "-c", conf)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        if code != 0:
            reason = "\n".join(line for line in lines if "test failed" not in line) or f"exit code {code}"
            raise EdgeError(f"nginx refuses the rendered configuration {self.paths.edge / conf}:\n{reason}")
        return [line for line in lines if "[warn]" in line or "[alert]" in line]

    def pid(self) -> int | None:
        """The pid of our running master. A stale or empty pid file, or one whose pid is somebody else now, is None."""
        try:
            pid = int(self.paths.edge_pid.read_text())
            process = psutil.Process(pid)
            title = " ".join(process.cmdline())
            zombie = process.status() == psutil.STATUS_ZOMBIE
        except (OSError, ValueError, psutil.Error):
            return None
        # The prefix stands first among the arguments, so that a title that nginx had to cut still holds it.
        ours = "nginx: master process" in title and f" -p {self.paths.edge}/" in title
        return pid if ours and not zombie else None

    def started_at(self) -> float | None:
        """Unix seconds at which the running master was born."""
        pid = self.pid()
        try:
            return psutil.Process(pid).create_time() if pid is not None else None
        except psutil.Error:
            return None

    def workers(self) -> list[int]:
        """Pids of the master's workers that take requests, without those that only finish their streams."""
        pid = self.pid()
        try:
            children = psutil.Process(pid).children() if pid is not None else []
        except psutil.NoSuchProcess:
            return []
        found = []
        for child in children:
            with contextlib.suppress(psutil.Error):  # it ended while we looked
                title = " ".join(child.cmdline())  # a child that was just forked still has its master's title
                if title and "is shutting down" not in title:
                    found.append(child.pid)
        return found

    def orphans(self) -> list[psutil.Process]:
        """Our workers whose master was killed: they go on serving, and nobody can tell them anything any more.

        nginx's master leads a process group of its own, so what it leaves has the number in the pid file as its group.
        """
        try:
            group = int(self.paths.edge_pid.read_text())
            written = self.paths.edge_pid.stat().st_mtime
        except (OSError, ValueError):
            return []
        if _exists(group):
            return []
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):  # it ended while we looked
                if os.getpgid(pid) == group:
                    process = psutil.Process(pid)
                    if "nginx: worker process" in " ".join(process.cmdline()) and self._is_ours(process, written):
                        found.append(process)
        return found

    def _is_ours(self, worker: psutil.Process, written: float) -> bool:
        """Whether ``worker`` has our logs open; the group alone may be that of a foreign nginx after a reboot."""
        try:
            return any(Path(file.path).is_relative_to(self.paths.edge_logs) for file in worker.open_files())
        except psutil.AccessDenied:  # not even root may look in some containers: then ask the age of the pid file
            return written > psutil.boot_time()

    def start(self) -> int:
        """Start nginx on conf/nginx.conf and return the master's pid. Raises EdgeError with what nginx said."""
        if self.pid() is not None:
            raise EdgeError(f"the edge is already running (pid {self.pid()})", "`signalbox reload` applies changes.")
        self.paths.edge_pid.unlink(missing_ok=True)
        log = ErrorLog(self.paths.edge_logs / "error.log")
        code, output = self._run("-p", f"{self.paths.edge}/", "-e", "logs/error.log", "-c", CONF)
        deadline = time.monotonic() + COMMAND_TIMEOUT
        # The command returns once the master has forked; the master writes its pid a moment later.
        while code == 0 and time.monotonic() < deadline:
            pid = self.pid()
            if pid is not None:
                return pid
            if log.fatal():
                break
            time.sleep(0.005)
        reason = "\n".join(log.severe()[:12]) or output.strip() or f"exit code {code}"
        raise EdgeError(f"the edge did not start:\n{reason}", f"The whole log: {log.path}")

    def stop(self, quit: bool = True, drain: float = 30.0) -> Ending:
        """Stop nginx, or the workers that a killed master left, and return how it ended.

        ``quit``: let running answers finish, for at most ``drain`` seconds, before TERM cuts them; KILL comes last.
        Raises EdgeError when it belongs to another user.
        """
        pid = self.pid()
        try:
            heads = [psutil.Process(pid)] if pid is not None else self.orphans()
            family = [*heads, *(child for head in heads for child in head.children(recursive=True))]
        except psutil.NoSuchProcess:
            return "was not running"
        if not heads:
            return "was not running"
        ending = _end(heads, family, drain if quit else None)
        self.paths.edge_pid.unlink(missing_ok=True)
        return ending

    def reload_signal(self) -> None:
        """HUP: nginx reads conf/nginx.conf again. Whether it liked it, only /state and error.log tell."""
        self._signal(signal.SIGHUP)

    def terminate(self) -> None:
        """TERM: nginx cuts what still runs. One that has ended meanwhile is no error."""
        pid = self.pid()
        with contextlib.suppress(psutil.NoSuchProcess):
            _send([psutil.Process(pid)] if pid is not None else [], signal.SIGTERM)

    def reopen_logs(self) -> None:
        """USR1: nginx opens its log files anew, after they were renamed."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is None:
            raise EdgeError("the edge is not running", "Start it with `signalbox start`.")
        with contextlib.suppress(psutil.NoSuchProcess):
            _send([psutil.Process(pid)], number)

    def _run(self, *arguments: str) -> tuple[int, str]:
        if self.engine is None:
            raise EdgeError("no nginx binary was given")
        # Output goes to a file: a pipe would stay open in the daemon, and we would wait for its end.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    [str(self.engine.path), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=COMMAND_TIMEOUT,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise EdgeError(f"{self.engine.path} could not be run: {error}") from error
            output.seek(0)
            return done.returncode, output.read().decode(errors="replace")


def running(paths: StatePaths) -> bool:
    """Whether the edge of this state folder runs, here or, in the foreground, in another container."""
    return EdgeProcess(paths).pid() is not None or calls.answers(paths)


def present(paths: StatePaths) -> bool:
    """Whether anything of this edge serves: it runs, or its master was killed and left workers."""
    return running(paths) or bool(EdgeProcess(paths).orphans())


def _end(heads: list[psutil.Process], family: list[psutil.Process], drain: float | None) -> Ending:
    """QUIT (when ``drain`` says for how many seconds), TERM, KILL."""
    if drain is not None:
        _send(heads, signal.SIGQUIT)
        if _gone(heads, drain):
            return "finished its streams"
    _send(heads, signal.SIGTERM)
    if _gone(family, TERM_TIMEOUT):
        return "was terminated"
    _send(family, signal.SIGKILL)
    _gone(family, TERM_TIMEOUT)
    return "was killed"


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:
            raise EdgeError(
                f"the edge (pid {process.pid}) belongs to another user", "Use the account (or sudo) that started it."
            ) from None


def _exists(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.AccessDenied:
        return True


def _gone(processes: list[psutil.Process], seconds: float) -> bool:
    """Wait until all have ended; a zombie that its parent has not reaped yet has ended too."""
    deadline = time.monotonic() + seconds
    while True:
        if not any(_alive(process) for process in processes):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
