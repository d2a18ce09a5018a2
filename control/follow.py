"""``signalbox edge``: an edge and nothing else, with the fleet that a control plane elsewhere has published in Redis.

SIGTERM and SIGINT end the edge in good order, then this. SIGKILL leaves the edge running; the next one takes it over.
SIGHUP reads the edge's own file again. SIGUSR1 ends this alone.
"""

from __future__ import annotations

import json
import logging
import queue
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from control import __version__
from control.edge import apply, files
from control.edge.logs import rotate
from control.edge.site import client, state_paths
from control.errors import SharingError, SignalboxError
from control.fleet.load import LoadedFleet, load
from control.fleet.shared_state import SharedState, shared_state
from control.paths import StatePaths
from control.serve import ROTATE_EVERY, catch_signals, daemon_pid, only_one
from control.sharing import document, draining
from control.sharing.document import Document
from control.sharing.publish import keep, kept, key_of
from control.sharing.redis import connected
from control.sharing.site import FollowerSite, follower_site

log = logging.getLogger(__name__)

#: Seconds between two looks at Redis, until an edge that did not start is tried again, and a version that was refused:
#: what it lacks here (a file, a free port) may have come.
LOOK, AGAIN, REFUSED = 1.0, 5.0, 30.0
#: Seconds that running answers get at the end.
DRAIN = 30.0


@dataclass(frozen=True)
class Status:
    """What ``signalbox status`` says of the fleet's way here. ``at``: Unix seconds of the last change."""

    version: int = 0
    source: str = ""
    problem: str = ""
    at: float = 0.0

    def write(self, paths: StatePaths) -> None:
        """Write it down. Raises EdgeError when that fails."""
        paths.following.parent.mkdir(parents=True, exist_ok=True)
        files.write(paths.following, json.dumps(self.__dict__) + "\n")


def read_status(paths: StatePaths) -> dict[str, Any] | None:
    """What the last ``signalbox edge`` of this state folder wrote; None when there was none."""
    return files.read_snapshot(paths.following)


def follow(loaded: LoadedFleet) -> None:
    """Run an edge with others' fleet until SIGTERM or SIGINT. Raises ControlError, FleetError when it cannot begin."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    require_edge_only(loaded)
    site = follower_site(loaded)
    signals = catch_signals()
    with only_one(site.paths.control_pid, ""):
        Follower(site, signals).run()


class Follower:
    """The loop of one machine with an edge only."""

    def __init__(self, site: FollowerSite, signals: queue.SimpleQueue[int]) -> None:
        self._site = site
        self._signals = signals
        self._seen = 0  # the newest version that was tried
        self._said: dict[str, str] = {}  # what was last logged of Redis and of the edge: each trouble once
        self._not_before = self._refused_until = 0.0
        self._rotate_at = time.monotonic() + ROTATE_EVERY
        self._status = Status()

    def run(self) -> None:
        """Take what there is, start the edge, follow; returns when told to end."""
        paths = self._site.paths
        old = kept(paths.taken)
        if old is not None:
            self._site = replace(self._site, document=old)
            self._status = Status(old.version, old.source, "", time.time())
        if old is not None and self._site.process.pid() is not None:
            self._read_again()  # it runs on since an earlier one of us; its file may have changed
        self._look()  # the newest first: an edge starts once
        self._keep_up()
        while True:
            try:
                number = self._signals.get(timeout=LOOK)
            except queue.Empty:
                self._look()
                self._keep_up()
                self._drain()
                continue
            if number == signal.SIGHUP:
                self._read_again()
            elif number == signal.SIGUSR1:
                log.info("Told to make way: the edge goes on running.")
                return
            else:
                log.info("Told to stop (%s).", signal.Signals(number).name)
                log.info("The edge %s.", apply.stop(paths, drain=DRAIN))
                return

    def _look(self) -> None:
        """Take a version that is newer than what was seen. A bad one changes nothing."""
        state = shared_state(self._site.loaded.fleet, self._site.loaded.folder)
        assert state is not None  # load has seen to it
        have = self._site.document
        if time.monotonic() >= self._refused_until:
            self._seen = 0
        try:
            new = _newer(state, max(self._seen, have.version if have else 0))
        except _Unusable as unusable:
            self._refuse(unusable.version, unusable.error)
            return
        except SharingError as error:
            self._say("redis", f"{error.message}; {'the last good fleet stays' if have else 'waiting for a fleet'}.")
            return
        if new is None and have is None and not self._seen:
            self._say("redis", "No fleet was published yet: `signalbox reload` where the control plane is does that.")
            return
        self._say("redis", "")
        if new is not None:
            self._take(new)

    def _take(self, new: Document) -> None:
        """Make the edge take a document: it starts, reloads or is told; whatever fails leaves the old one in force."""
        fresh = replace(self._site, document=new)
        try:
            result = apply.reload(fresh) if fresh.process.pid() is not None else apply.start(fresh)
        except (SignalboxError, OSError) as error:
            self._refuse(new.version, error)
            self._shut_out(new)
            return
        keep(fresh.paths.taken, new)
        self._site = fresh
        self._said.pop("version", None)
        self._tell(Status(new.version, new.source, "", time.time()))
        log.info("Took version %d of %s.", new.version, new.source)
        if new.release != __version__:
            log.warning("It was rendered by Signalbox %s, and this is %s.", new.release, __version__)
        for line in (*result.lines(), *fresh.cautions()):
            log.info("%s", line)

    def _refuse(self, version: int, error: Exception) -> None:
        self._seen, self._refused_until = version, time.monotonic() + REFUSED
        goes_on = (
            f"version {self._site.document.version} stays in force" if self._site.document else "there is no other"
        )
        self._say("version", f"Version {version} was not taken, {goes_on}: {error}")
        problem = f"version {version} was not taken: {error}"
        if problem != self._status.problem:
            self._tell(replace(self._status, problem=problem, at=time.time()))

    def _shut_out(self, new: Document) -> None:
        """Whose key was taken away stays out, whatever is wrong with the rest of a version."""
        old = self._site.document
        if old is None or old.keys is None or new.keys is None or old.keys == new.keys:
            return
        fresh = replace(self._site, document=replace(old, keys=new.keys))
        try:
            if fresh.process.pid() is not None:
                apply.reload(fresh)
        except (SignalboxError, OSError) as error:
            log.error("Its keys were not taken either: %s", error)
            return
        assert fresh.document is not None
        keep(fresh.paths.taken, fresh.document)
        self._site = fresh

    def _keep_up(self) -> None:
        """Start the edge with the last good fleet when it does not run; rotate its logs."""
        site = self._site
        if site.document is not None and time.monotonic() >= self._not_before and site.process.pid() is None:
            try:
                for line in apply.start(site).lines():
                    log.info("%s", line)
                self._say("edge", "")
                self._tell(self._status)
            except (SignalboxError, OSError) as error:
                self._not_before = time.monotonic() + AGAIN
                self._say("edge", f"The edge did not start: {error}")
        if time.monotonic() >= self._rotate_at:
            self._rotate_at = time.monotonic() + ROTATE_EVERY
            self._rotate()

    def _drain(self) -> None:
        """Tell the control plane what runs here, and keep requests from the engines that it is about to end."""
        site = self._site
        state = shared_state(site.loaded.fleet, site.loaded.folder)
        if state is None or "redis" in self._said or site.process.pid() is None:
            return
        try:
            edge = client(site.paths)
            try:
                seen = edge.state()
                held = draining.tell(state, str(seen["state"]["edge"]), draining.word_of(seen))
                for row in seen["backends"]:
                    if row["id"] in held:
                        edge.hold(row["id"])
                    elif "control" in row["drained_by"]:
                        edge.release(row["id"])
            finally:
                edge.close()
        except (SignalboxError, OSError, KeyError) as error:
            log.debug("What runs here was not told: %s", error)

    def _rotate(self) -> None:
        settings, paths = self._site.loaded.fleet.edge.log, self._site.paths
        try:
            for name in rotate(paths.edge_logs, int(settings.rotate_at), settings.keep, self._site.process.reopen_logs):
                log.info("Rotated the edge's %s.", name)
        except (OSError, SignalboxError) as error:
            log.warning("The edge's logs could not be rotated: %s", error)

    def _read_again(self) -> None:
        """The edge's own file, a certificate or the password has changed."""
        try:
            loaded = load(self._site.loaded.path, edge_only=True)
            require_edge_only(loaded)
            if state_paths(loaded) != self._site.paths:
                raise SharingError("control.state_dir changed", "That takes effect at the next start.")
            fresh = follower_site(loaded, self._site.document)
            if fresh.document is not None and fresh.process.pid() is not None:
                for line in apply.reload(fresh).lines():
                    log.info("%s", line)
        except (SignalboxError, OSError) as error:
            log.error("%s was read again and is not used: %s", self._site.loaded.path, error)
            return
        self._site = fresh
        self._refused_until = 0.0  # what was refused may fit now

    def _tell(self, status: Status) -> None:
        self._status = status
        status.write(self._site.paths)

    def _say(self, subject: str, text: str) -> None:
        """Log a trouble when it is a new one, and its end."""
        before = self._said.get(subject, "")
        if text == before:
            return
        if text:
            self._said[subject] = text
            log.warning("%s", text)
        else:
            del self._said[subject]
            log.info("Over: %s", before)


def require_edge_only(loaded: LoadedFleet) -> None:
    """Raise SharingError for the file of a whole fleet."""
    if loaded.fleet.models:
        raise SharingError(
            f"{loaded.path} has models of its own: this machine has a control plane",
            "`signalbox run` starts that. The file of an edge only has no 'models'; see docs/redis.md.",
        )


def refuse_beside(paths: StatePaths) -> None:
    """Raise SharingError while ``signalbox edge`` runs here: it would start the edge again."""
    pid = daemon_pid(paths)
    if pid is not None:
        raise SharingError(
            f"`signalbox edge` (pid {pid}) keeps this edge running",
            f"`signalbox down` ends both; so does `kill {pid}`.",
        )


class _Unusable(Exception):
    """A published version that is no fleet."""

    def __init__(self, version: int, error: SharingError) -> None:
        super().__init__(str(error))
        self.version = version
        self.error = error


def _newer(state: SharedState, than: int) -> Document | None:
    """The published document when its version is above ``than``. Raises SharingError when Redis does not answer."""
    with connected(state) as redis:
        version = redis.call("HGET", key_of(state), "version")
        if version is None or not str(version).isdecimal() or int(str(version)) <= than:
            return None
        found = redis.call("HMGET", key_of(state), "version", "document")
    assert isinstance(found, list)
    number, text = found
    if number is None or text is None:
        return None
    try:
        new = document.read(str(text))
        if new.version != int(str(number)):
            raise SharingError(f"it says that it is version {new.version}", "Publish it anew: `signalbox reload`.")
    except SharingError as error:
        raise _Unusable(int(str(number)), error) from None
    return new
