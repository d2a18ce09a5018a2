"""The daemon: supervises engines, watches the fleet, shows the page, rotates the edge's logs. Never in the data path.

Containers it only watches over (``engines/reconcile.py``); they outlive it.

SIGTERM and SIGINT stop the engines and the SSH tunnels that it owns, then itself. SIGKILL leaves them running; the next
daemon adopts them.
SIGHUP reads fleet.yaml again; a broken one changes nothing. SIGUSR1 ends it alone, in good order.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from waitress.server import create_server  # type: ignore[import-untyped]  # it has no types of its own

from control.edge import calls
from control.edge.logs import rotate
from control.edge.ports import holder
from control.edge.process import EdgeProcess
from control.edge.site import state_paths
from control.engines.local import EngineStatus, Supervisor
from control.engines.processes import bound
from control.engines.reconcile import Reconciler
from control.engines.sampler import Sampler, Target
from control.errors import ControlError, SignalboxError
from control.fleet.address import is_loopback, split_listen
from control.fleet.load import LoadedFleet, load
from control.host import pid_namespace
from control.operate import Operator
from control.page import Page, fleet_facts, login_file
from control.paths import StatePaths
from control.sharing.draining import SharedGate
from control.sharing.repeat import Repeater
from control.tuning.lookout import Lookout
from control.tunnels.report import in_the_way
from control.tunnels.supervisor import Tunnels
from control.web.app import create_app
from control.web.engine_logs import EngineLogs
from control.web.jobs import Jobs
from control.web.keys import KeyBook
from control.web.logins import read_logins

log = logging.getLogger(__name__)

#: Seconds between two looks at the size of the edge's logs.
ROTATE_EVERY = 10.0
#: Seconds between two looks for a reload that another container asks for.
LOOK_EVERY = 1.0
#: Each open page holds one thread of the server: half of them stay for everything else.
THREADS, LISTENERS = 32, 16


def serve(loaded: LoadedFleet) -> None:
    """Run the control plane until SIGTERM or SIGINT. Raises ControlError when it cannot start."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    paths = state_paths(loaded)
    signals = catch_signals()  # before the pid file: whoever reads it may send one at once
    address, login = loaded.fleet.control.listen, login_file(loaded)
    if login is not None:
        read_logins(login)  # a page that asks and lets nobody in is of no use
    with only_one(paths.control_pid, address), listen(address, asks=login is not None) as listener:
        Daemon(loaded, paths, listener, signals).run()


def catch_signals() -> queue.SimpleQueue[int]:
    """From now on, signals wait in this queue for the daemon's main loop."""
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def caught(number: int, _frame: FrameType | None) -> None:
        signals.put(number)

    for known in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(known, caught)
    return signals


def daemon_pid(paths: StatePaths) -> int | None:
    """The pid of the daemon that runs on this state folder, or None. A pid file left behind by a dead one is None.

    None too for one in another container, where its number means somebody else.
    """
    lines = _pid_file(paths)
    if len(lines) > 2 and lines[2] != pid_namespace():
        return None
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def daemon_address(paths: StatePaths) -> str:
    """The control.listen that the running daemon was started with; empty when none runs, or it is not known."""
    return "".join(_pid_file(paths)[1:2])


def _pid_file(paths: StatePaths) -> list[str]:
    """The lines of the pid file while somebody holds it."""
    try:
        with paths.control_pid.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read(1000).decode(errors="replace").splitlines()
    except OSError:
        pass
    return []


def signal_daemon(pid: int, number: signal.Signals) -> None:
    """Send a signal to the daemon; one that has just ended is no error. Raises ControlError for another user's."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise ControlError(
            f"the control plane (pid {pid}) belongs to another user", "Use the account (or sudo) that started it."
        ) from None


def tell_to_reload(paths: StatePaths) -> bool:
    """Make the running daemon read fleet.yaml again; False when none runs. Its log says what came of it."""
    pid = daemon_pid(paths)
    if pid is not None:
        signal_daemon(pid, signal.SIGHUP)
        return True
    if _pid_file(paths):  # in another container, where it looks for this file
        paths.control_reload.touch()
        return True
    return False


@contextmanager
def only_one(path: Path, address: str) -> Iterator[None]:
    """Hold ``path`` as this process's pid file. The lock, not the number, says that somebody lives: pids come back.

    ``address``, the daemon's page, is its second line, the namespace of the number its third.

    Raises ControlError when another daemon holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n{address}\n{pid_namespace()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    deadline = time.monotonic() + 1.0
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor  # else its owner removed it while we waited: take the new one
        except BlockingIOError:
            if time.monotonic() >= deadline:  # a reader's look (``daemon_pid``) is over long before
                pid = os.pread(descriptor, 20, 0).decode(errors="replace").partition("\n")[0] or "unknown"
                os.close(descriptor)
                raise ControlError(
                    f"the control plane of this fleet already runs (pid {pid})",
                    "`make stop` ends it; `signalbox reload` makes it read fleet.yaml again.",
                ) from None
            time.sleep(0.05)
        os.close(descriptor)


@contextmanager
def listen(address: str, asks: bool = False) -> Iterator[socket.socket]:
    """A socket bound to ``HOST:PORT``; ``asks``: the page asks for a password, so that others may reach it.

    Raises ControlError: not loopback, in use (and by whom), or not allowed.
    """
    host, port = split_listen(address)
    if not is_loopback(host) and not asks:
        raise ControlError(
            f"control.listen is {address}: the page asks for no login, so it listens on this machine only",
            "Use 127.0.0.1:PORT in fleet.yaml and forward the port over SSH; or give it logins (docs/page.md).",
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ControlError(f"control.listen {address} cannot be used: {error}", "Correct it in fleet.yaml.") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(target)
            listener.listen(64)
        except OSError as error:
            raise _cannot_listen(address, port, error) from error
        yield listener


def _cannot_listen(address: str, port: int, error: OSError) -> ControlError:
    if error.errno == errno.EADDRINUSE:
        return ControlError(
            f"{address} is in use by {holder(port)}",
            "Stop that program, or give control.listen in fleet.yaml another port.",
        )
    return ControlError(f"{address} cannot be listened on: {error.strerror}", "Correct control.listen in fleet.yaml.")


class Daemon:
    """The parts of one running control plane, and its main loop."""

    def __init__(
        self, loaded: LoadedFleet, paths: StatePaths, listener: socket.socket, signals: queue.SimpleQueue[int]
    ) -> None:
        self._loaded = loaded
        self._paths = paths
        self._supervisor = Supervisor(loaded, paths, gate=SharedGate(paths, lambda: self._loaded))
        self._repeater = Repeater(lambda: self._loaded, paths)
        self._reconciler = Reconciler(loaded, paths, ways=lambda fleet: in_the_way(fleet, paths))
        self._tunnels = Tunnels(loaded, paths, gate=SharedGate(paths, lambda: self._loaded))
        self._page = Page(loaded, paths)
        jobs = Jobs()
        self._lookout = Lookout(loaded)
        self._sampler = Sampler(self._running)
        self._view = self._page.view(self._engines, self._tunnels.status, jobs, self._lookout, self._sampler)
        operator = Operator(lambda: self._loaded, paths, self._supervisor, jobs)
        logs = EngineLogs(paths.engine, operator.container_log)
        self._server = create_server(
            create_app(self._view, self._page.settings(LISTENERS), operator, logs, KeyBook(lambda: self._loaded).read),
            sockets=[listener],
            threads=THREADS,
            channel_request_lookahead=1,  # so that a stream notices that its reader left
            max_request_body_size=64 * 1024,
            outbuf_high_watermark=1024 * 1024,
            ident=None,
        )
        self._web = threading.Thread(target=self._server.run, name="web", daemon=True)
        self._signals = signals
        self._rotate_at = 0.0

    def run(self) -> None:
        """Start everything, then wait for signals. Returns when it was told to end, and its engines have stopped.

        SIGUSR1 leaves them running for the next daemon.
        """
        self._supervisor.start()
        self._tunnels.start()
        self._repeater.start()
        self._reconciler.start()
        self._sampler.start()
        self._view.start()
        self._lookout.start()
        self._web.start()
        log.info("The page is at http://%s/", self._loaded.fleet.control.listen)
        while self._web.is_alive():
            try:
                number = self._signals.get(timeout=LOOK_EVERY)
            except queue.Empty:
                if self._paths.control_reload.exists():
                    self._paths.control_reload.unlink(missing_ok=True)
                    self._reload()
                self._rotate()
                continue
            if number == signal.SIGHUP:
                self._reload()
                self._rotate_at = 0.0  # by the limits that may be new
                self._rotate()
                continue
            if number == signal.SIGUSR1:
                log.info("Told to make way for another control plane: the engines go on running.")
                self._reconciler.close()
                self._tunnels.close(stop=False)
                self._supervisor.close()
            else:
                log.info("Told to stop (%s): stopping the engines.", signal.Signals(number).name)
                self._reconciler.close()  # `signalbox down` stops the containers
                self._supervisor.stop_all()  # the page still answers meanwhile
                self._tunnels.close(stop=True)
            self._repeater.close()
            self._lookout.close()
            self._sampler.close()
            self._view.close()
            self._server.close()
            log.info("Stopped.")
            return
        raise ControlError("the page's server ended by itself", "The lines above say why; the engines go on running.")

    def _engines(self) -> list[EngineStatus]:
        return [*self._supervisor.status(), *self._reconciler.status()]

    def _running(self) -> list[Target]:
        """The engines of ours that run, to be looked at."""
        local = [Target(one.id, one.pid) for one in self._supervisor.status() if one.pid is not None]
        return [*local, *self._reconciler.running()]

    def _rotate(self) -> None:
        if time.monotonic() < self._rotate_at:
            return
        self._rotate_at = time.monotonic() + ROTATE_EVERY
        settings = self._loaded.fleet.edge.log
        try:
            if not calls.answers(self._paths):  # in the foreground the edge's own process does it
                for name in rotate(
                    self._paths.edge_logs, int(settings.rotate_at), settings.keep, EdgeProcess(self._paths).reopen_logs
                ):
                    log.info("Rotated the edge's %s.", name)
        except (OSError, SignalboxError) as error:
            log.warning("The edge's logs could not be rotated: %s", error)
        try:
            if bound(self._paths.control_log):  # ours, when `signalbox run` started us
                log.info("control.log was full; its content is in control.log.1.")
        except OSError as error:
            log.warning("control.log could not be cut: %s", error)

    def _reload(self) -> None:
        """Read fleet.yaml again for the page and the supervisor; the edge has its own ``signalbox reload``."""
        try:
            fresh = load(self._loaded.path)
            facts = fleet_facts(fresh)
        except SignalboxError as error:
            log.error("fleet.yaml cannot be used, so the old one stays in force:\n%s", error)
            self._page.refused(str(error))
            return
        remedies = dict.fromkeys(("login", "url"), "make stop, make run")
        remedies |= {"listen": "make run", "state_dir": "put the old one back, make stop, change it again"}
        for name, remedy in remedies.items():
            if getattr(fresh.fleet.control, name) != getattr(self._loaded.fleet.control, name):
                log.warning("control.%s changed: it takes effect at the next start (%s).", name, remedy)
        for warning in fresh.warnings:
            log.warning("%s", warning)
        self._supervisor.reload(fresh)
        self._tunnels.reload(fresh)
        self._reconciler.reload(fresh)
        self._loaded = fresh
        self._page.reload(fresh)
        self._view.set_fleet(facts)
        self._lookout.set_fleet(fresh)
        log.info("Read fleet.yaml again: %d models, %d backends.", len(facts.models), len(facts.backends))
