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
from typing import Literal

import psutil

from control.edge.binary import Engine
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
            temporary = self.paths.admin_token.with_suffix(f".{os.getpid()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            temporary.replace(self.paths.admin_token)

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
        """Stop nginx and return how it ended.

        ``quit``: let running answers finish, for at most ``drain`` seconds, before TERM cuts them; KILL comes last.
        """
        pid = self.pid()
        if pid is None:
            return "was not running"
        try:
            master = psutil.Process(pid)
            family = [master, *master.children(recursive=True)]
        except psutil.NoSuchProcess:
            return "was not running"
        if quit:
            master.send_signal(signal.SIGQUIT)
            if _gone([master], drain):
                return "finished its streams"
        master.send_signal(signal.SIGTERM)
        if _gone(family, TERM_TIMEOUT):
            return "was terminated"
        for process in family:
            if process.is_running():
                process.kill()
        _gone(family, TERM_TIMEOUT)
        self.paths.edge_pid.unlink(missing_ok=True)
        return "was killed"

    def reload_signal(self) -> None:
        """HUP: nginx reads conf/nginx.conf again. Whether it liked it, only /state and error.log tell."""
        self._signal(signal.SIGHUP)

    def reopen_logs(self) -> None:
        """USR1: nginx opens its log files anew, after they were renamed."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is None:
            raise EdgeError("the edge is not running", "Start it with `signalbox start`.")
        try:
            os.kill(pid, number)
        except PermissionError:
            raise EdgeError(
                f"the edge (pid {pid}) belongs to another user", "Use the account (or sudo) that started it."
            ) from None

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
    """Whether the edge of this state folder runs."""
    return EdgeProcess(paths).pid() is not None


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
