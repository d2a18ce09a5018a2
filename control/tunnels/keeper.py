"""Keeps one ssh up, in a thread of its own: starts it or takes over one that runs, watches it, starts it again."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from control.edge.ports import require_free
from control.engines import processes
from control.engines.drain import Gate, sequences
from control.engines.minder import ProcessKeeper
from control.engines.policy import Policy
from control.engines.processes import Record
from control.engines.recorded import end
from control.errors import EdgeError, EngineError, SignalboxError
from control.paths import StatePaths
from control.tunnels.arguments import Tunnel, place
from control.tunnels.backlog import Knocks
from control.tunnels.failures import FORBIDDEN, NOBODY, Failure, explain
from control.tunnels.log import LIMIT, SshLog

log = logging.getLogger(__name__)

State = Literal["connecting", "up", "down", "stopped"]
#: A network that comes back is tried for soon and for ever; times in seconds.
TUNNELS = Policy(quick=10)
#: What only a person can change (a key, the server's settings) is tried again after this long, or at a reload.
BY_HAND = 300.0
#: A login that hangs is ended after this long.
LOGIN_SECONDS = 60.0
#: Between two looks whether an engine that did not listen does now.
LOOK = 2.0
#: ssh ends at once when it is told to.
STOP_SECONDS = 3.0


@dataclass(frozen=True)
class TunnelStatus:
    """What one tunnel does. ``since``: Unix seconds of the last change of ``state``; ``detail``: why, and the cure."""

    id: str
    host: str
    target: str
    local: str
    remote: str
    state: State
    detail: str
    since: float
    pid: int | None = None
    restarts: int = 0


def first_status(tunnel: Tunnel) -> TunnelStatus:
    """A tunnel of which nothing is known yet."""
    return TunnelStatus(
        tunnel.id, tunnel.machine, str(tunnel.target), place(tunnel.local), place(tunnel.remote), "connecting", "",
        time.time(),
    )  # fmt: skip


class Keeper(ProcessKeeper):
    """Keeps the tunnel to one backend."""

    def __init__(
        self,
        tunnel: Tunnel,
        paths: StatePaths,
        policy: Policy = TUNNELS,
        gate: Gate | None = None,
        after: threading.Thread | None = None,
    ) -> None:
        """``gate``: is asked before a tunnel in use is ended; ``after``: who minds one of this id until then."""
        super().__init__(tunnel.id, "tunnel", policy, gate, after)
        self.tunnel = tunnel
        self._folder = paths.tunnel(tunnel.id)
        self.status = first_status(tunnel)

    def change(self, tunnel: Tunnel) -> None:
        """Keep this one from now on; one that is down is tried at once."""
        self.tunnel = tunnel
        self._deaths.count = 0
        self._wake.set()

    # The thread.

    def _unexpected(self, error: Exception) -> None:
        if isinstance(error, SignalboxError):
            log.error("%s: %s", self.status.id, error)
            self._say("down", f"{error.message} {error.hint}".strip())
            return
        log.exception("The keeper of the tunnel to %s failed.", self.status.id)
        self._say("down", f"{error!r} (control.log has the traceback)")

    def _once(self) -> None:
        """Start ssh or take one over, watch it until it ends; then pause as long as the reason asks for."""
        tunnel = self.tunnel
        fresh = first_status(tunnel)
        self.status = replace(self.status, target=fresh.target, local=fresh.local, remote=fresh.remote, host=fresh.host)
        launch = tunnel.launch()
        record = Record.load(self._folder)
        if record is not None and not (processes.alive(record) and record.launch == launch.hash()):
            if not self._drained(record):
                return
            self._end_ssh()
            record = None
        if record is None:
            if self.status.state != "down":  # a try does not take back what is known of the one before
                self._say("connecting")
            self._check_first()
            self._process, record = processes.start(
                launch, self._folder, *tunnel.local, STOP_SECONDS, tunnel.drain_seconds, "ssh.log"
            )
        else:
            log.info("%s: its ssh still runs (pid %d): taken over.", tunnel.id, record.pid)
        failure, up_for = self._watch(record)
        if failure is not None:
            self._bury(record, failure, up_for)

    def _check_first(self) -> None:
        """Raises EngineError when ssh is not there, or could not listen: else another program would look like it."""
        if shutil.which("ssh") is None:
            raise EngineError("This machine has no ssh.", "Install it: apt-get install openssh-client")
        try:
            require_free([place(self.tunnel.local)])
        except EdgeError as error:
            hint = f"Give {self.tunnel.id} another port, or its host another loopback address (address: 127.0.0.2)."
            raise EngineError(f"{error.message}.", hint) from error

    def _watch(self, record: Record) -> tuple[Failure | None, float]:
        """Until ssh ends: why, and for how many seconds it was up. No reason: closing, or changed."""
        tunnel, lines = self.tunnel, SshLog(self._folder / "ssh.log", record.log_start)
        began = time.monotonic()
        up_at: float | None = None
        doubt, look_at = True, 0.0
        knocks = Knocks(tunnel.local)
        while True:
            if ending := self._ending(record):
                return explain(lines.lines(), tunnel, ending), time.monotonic() - up_at if up_at else 0.0
            found = through(tunnel.local) if doubt and time.monotonic() >= look_at else None
            news = lines.news()
            if any(FORBIDDEN.match(line) for line in news):
                return explain(news, tunnel), 0.0  # without ssh the edge's connections fail at once, which is better
            if up_at is not None and knocks.hung():
                return Failure(
                    "ssh runs, but has taken in no connection for a while (it is stopped, or hangs)", ""
                ), 0.0
            if found in ("open", "nobody"):
                self._reached(record, found == "open", up_at is None)
                up_at, look_at = up_at or time.monotonic(), time.monotonic() + LOOK
            elif up_at is None and time.monotonic() - began > LOGIN_SECONDS:
                cure = f"Try it by hand: {tunnel.target.command()}"
                return Failure(f"ssh to {tunnel.target} was not through after {LOGIN_SECONDS:.0f} s", cure), 0.0
            doubt = up_at is None or bool(self.status.detail) or any(NOBODY.match(line) for line in news)
            processes.bound(self._folder / "ssh.log", LIMIT)
            if self._pause(self._policy.poll):
                return None, 0.0

    def _reached(self, record: Record, engine: bool, first: bool) -> None:
        """This end listens; ``engine``: and so does the engine at the other one."""
        tunnel = self.tunnel
        detail = "" if engine else f"nothing listens on {tunnel.machine} at {place(tunnel.remote)}"
        if first:
            self._let_in()
            log.info("%s: the tunnel to %s is up (%s).", tunnel.id, tunnel.target, place(tunnel.local))
        if first or detail != self.status.detail:
            self._say("up", detail, record.pid)

    def _bury(self, record: Record, failure: Failure, up_for: float) -> None:
        processes.stop(record, 0)
        processes.forget(self._folder)
        self._reap()
        self._let_in()
        self._deaths.add(up_for)
        pause = BY_HAND if failure.by_hand else self._deaths.pause
        log.error("%s: the tunnel to %s is down: %s", self.tunnel.id, self.tunnel.target, failure)
        again = " `signalbox reload` tries at once." if failure.by_hand else f" Tried again in {pause:g} s."
        self._say("down", f"{failure}{again}")
        if not self._pause(pause):
            self.status = replace(self.status, restarts=self.status.restarts + 1)

    def _drained(self, record: Record) -> bool:
        """Wait until nothing runs through the old ssh; False when there is something else to do first."""

        def tell(count: int) -> None:
            self._say("up", f"waiting for {sequences(count)} before it is connected anew", record.pid)

        return self._emptied(record, record.drain_seconds, "connected anew", tell)

    def _end(self) -> None:
        self._end_ssh()
        self._say("stopped")

    def _end_ssh(self) -> None:
        record = Record.load(self._folder)
        if record is not None:
            end(record, self._folder)
        self._reap()

    def _ending(self, record: Record) -> str:
        """How ssh ended; empty while it runs. Only its parent learns the exit code."""
        if self._process is not None and self._is_child(record):
            code = self._process.poll()
            return "" if code is None else exit_text(code)
        return "" if processes.alive(record) else "it ended while nobody minded it"

    def _say(self, state: State, detail: str = "", pid: int | None = None) -> None:
        since = self.status.since if state == self.status.state else time.time()
        self.status = replace(self.status, state=state, detail=detail, since=since, pid=pid)
        try:
            write(self._folder, self.status)
        except OSError as error:
            log.warning("%s: what its tunnel does cannot be written down: %s", self.status.id, error)


def through(local: tuple[str, int]) -> Literal["closed", "open", "nobody"]:
    """What is at this end: ``closed`` (nothing), ``nobody`` (ssh, but nothing at the other end) or ``open``.

    ssh accepts at once and closes again when the other end refuses; an HTTP server waits for a request.
    """
    try:
        with socket.create_connection(local, timeout=1) as connection:
            return "open" if connection.recv(1) else "nobody"
    except TimeoutError:
        return "open"
    except ConnectionResetError:
        return "nobody"
    except OSError:
        return "closed"


def write(folder: Path, status: TunnelStatus) -> None:
    """Leave ``status`` for `signalbox status`, whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "status.json.new"
    new.write_text(json.dumps(asdict(status), indent=1) + "\n")
    new.replace(folder / "status.json")


def read(folder: Path) -> dict[str, Any] | None:
    """What ``write`` left there; None when there is nothing that can be read."""
    try:
        content = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def exit_text(code: int) -> str:
    """How ssh ended, for when it said nothing."""
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
