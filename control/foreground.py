"""The edge in the foreground, as containers and systemd want it: this process stays until nginx has ended.

nginx itself is started as always; this process only minds it. SIGTERM, SIGINT and SIGQUIT let running answers finish
(a second one cuts them), SIGHUP and calls by the socket reload it. Its error log is repeated on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from control.edge import apply, calls
from control.edge.logs import rotate
from control.edge.site import Site, open_site, state_paths
from control.errors import EdgeError, SignalboxError
from control.fleet.load import LoadedFleet, load
from control.paths import StatePaths
from control.sharing.publish import publish

#: Seconds between two looks at nginx and its error log.
EVERY = 0.5
#: Seconds between two looks at the size of its logs.
ROTATE_EVERY = 10.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def run(path: Path, say: Callable[[str], None]) -> None:
    """Start the edge of fleet.yaml, and return when it was stopped. ``say`` gets what happens, in words.

    Raises EdgeError (RenderError, FleetError) when it does not start, or ends by itself.
    """
    signals = _catch_signals()
    site = open_site(load(path))
    errors = Follower(site.paths.edge_logs / "error.log")
    with listening(site.paths) as listener:
        for line in (*apply.start(site).lines(), *publish(site.loaded, site.paths)):
            say(line)
        reloads = Reloads(path, say)
        threading.Thread(target=reloads.serve, args=(listener,), name="calls", daemon=True).start()
        Minder(site, signals, reloads, errors, say).mind()


def reload_anywhere(loaded: LoadedFleet) -> list[str]:
    """Reload the edge of this fleet, also one in the foreground of another container, and tell edges elsewhere of it.

    Returns what happened, in words. Raises EdgeError (RenderError, FleetError) as ``apply.reload`` does.
    """
    paths = state_paths(loaded)
    lines = calls.reload(paths)  # its own process does it: that one minds the log's settings, and says what happened
    return _reload(loaded) if lines is None else lines


def _reload(loaded: LoadedFleet) -> list[str]:
    site = open_site(loaded)
    return [*apply.reload(site).lines(), *publish(loaded, site.paths)]


class Minder:
    """Watches nginx: repeats its error log, rotates, passes signals on."""

    def __init__(
        self,
        site: Site,
        signals: queue.SimpleQueue[int],
        reloads: Reloads,
        errors: Follower,
        say: Callable[[str], None],
    ) -> None:
        self._site, self._signals, self._reloads, self._errors, self._say = site, signals, reloads, errors, say
        self._rotate_at = 0.0

    def mind(self) -> None:
        """Return when somebody has stopped nginx. Raises EdgeError when it ended by itself."""
        process = self._site.process
        while process.pid() is not None:
            with contextlib.suppress(queue.Empty):
                number = self._signals.get(timeout=EVERY)
                if number in ENDING:
                    self._end(number)
                else:
                    self._reloads.reload()
            self._errors.repeat()
            self._rotate()
        self._errors.repeat()
        if self._site.paths.edge_pid.exists():  # nginx removes it when it is told to end
            raise EdgeError("nginx ended by itself", f"The lines above say why; all of them: {self._errors.path}")

    def _end(self, number: int) -> None:
        drain = int(self._site.loaded.fleet.edge.timeouts.drain) / 1000
        self._say(
            f"Told to stop ({signal.Signals(number).name}): running answers may finish, for at most {drain:.0f} s."
        )
        ended = threading.Event()
        threading.Thread(target=self._cut, args=(ended,), name="second signal", daemon=True).start()
        try:
            ending = apply.stop(self._site.paths, quit=True, drain=drain)
        finally:
            ended.set()
        self._say(f"The edge {ending}.")

    def _cut(self, ended: threading.Event) -> None:
        """A second signal while answers finish: TERM at once."""
        while not ended.wait(0.1):
            with contextlib.suppress(queue.Empty):
                if self._signals.get_nowait() in ENDING:
                    self._site.process.terminate()

    def _rotate(self) -> None:
        if time.monotonic() < self._rotate_at:
            return
        self._rotate_at = time.monotonic() + ROTATE_EVERY
        settings = self._reloads.log_settings or self._site.loaded.fleet.edge.log
        try:
            rotate(self._site.paths.edge_logs, int(settings.rotate_at), settings.keep, self._site.process.reopen_logs)
        except (OSError, SignalboxError) as error:
            self._say(f"warning: the edge's logs could not be rotated: {error}")


class Reloads:
    """Reloads the edge, one call after the other."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say, self._lock = path, say, threading.Lock()
        #: Those of the last fleet.yaml that was taken.
        self.log_settings: Any = None

    def reload(self) -> dict[str, Any]:
        """Reload, and return what to tell the caller; it is said here too."""
        with self._lock:
            try:
                loaded = load(self._path)
                lines = _reload(loaded)
                self.log_settings = loaded.fleet.edge.log
            except (SignalboxError, OSError) as error:
                self._say(f"The reload failed: {error}")
                if isinstance(error, SignalboxError):
                    return {"error": error.message, "hint": error.hint}
                return {"error": str(error)}
        for line in lines:
            self._say(line)
        return {"lines": lines}

    def serve(self, listener: socket.socket) -> None:
        """Answer calls until the process ends."""
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._answer, args=(connection,), name="call", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # a caller that left needs no answer
            connection.settimeout(2.0)
            if connection.recv(64).strip() == b"reload":  # else somebody only looked whether we live
                connection.settimeout(calls.CALL_TIMEOUT)
                connection.sendall(json.dumps(self.reload()).encode())


class Follower:
    """Repeats what is new in a log file on stderr."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._position = _identity(path)

    def repeat(self) -> None:
        """Write new lines to stderr. Of a file that was rotated meanwhile, the new one from its beginning."""
        file, size = _identity(self.path)
        if file != self._file or size < self._position:
            self._file, self._position = file, 0
        if size == self._position:
            return
        with contextlib.suppress(OSError), self.path.open("rb") as log:
            log.seek(self._position)
            new = log.read(1024**2)
            self._position += len(new)
            sys.stderr.buffer.write(new)
            sys.stderr.buffer.flush()


@contextlib.contextmanager
def listening(paths: StatePaths) -> Iterator[socket.socket]:
    """The socket that commands of this account find. Raises EdgeError when another edge has it."""
    calls.require_none(paths)
    paths.foreground.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener, calls.address(paths) as at:
        paths.foreground.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listener.bind(at)
        finally:
            os.umask(before)
        listener.listen(128)
        try:
            yield listener
        finally:
            paths.foreground.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int]:
    """Inode and size; zeros for a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_size


def _catch_signals() -> queue.SimpleQueue[int]:
    """From now on signals wait in this queue; one that comes while nginx starts is not lost."""
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def caught(number: int, _frame: FrameType | None) -> None:
        signals.put(number)

    for known in (*ENDING, signal.SIGHUP):
        signal.signal(known, caught)
    return signals
