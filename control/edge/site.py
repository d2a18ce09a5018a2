"""One edge as the commands know it: the fleet it serves, its folder, the engine that runs it, its code."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from control.edge.admin import AdminClient, read_token
from control.edge.binary import Engine, find_engine
from control.edge.files import Applied
from control.edge.process import EdgeProcess
from control.edge.render import Rendered, Sources, render
from control.edge.surroundings import Surroundings
from control.errors import EdgeError
from control.fleet.load import LoadedFleet
from control.keys.entries import Entries, entries
from control.keys.load import load_keys
from control.paths import StatePaths

#: Seconds that a start, stop or reload waits for another one to finish.
LOCK_TIMEOUT = 60.0


@dataclass(frozen=True)
class Site:
    """What rendering, starting and reloading one edge need."""

    loaded: LoadedFleet
    paths: StatePaths
    engine: Engine
    sources: Sources = field(default_factory=Sources)
    surroundings: Surroundings | None = None

    @property
    def process(self) -> EdgeProcess:
        """The nginx process of this site's state folder."""
        return EdgeProcess(self.paths, self.engine)

    def render(self) -> Rendered:
        """Render nginx.conf and fleet.json of this site; writes nothing."""
        return render(
            self.loaded, self.paths, self.engine.profile, sources=self.sources, surroundings=self.surroundings
        )

    def keys(self) -> Entries | None:
        """The API keys that the edge is to know; None when it asks for none. Raises FleetError."""
        found = load_keys(self.loaded)
        return None if found is None else entries(found)


def state_paths(loaded: LoadedFleet) -> StatePaths:
    """The state folder of this fleet, absolute and with links resolved."""
    return StatePaths((loaded.folder / loaded.fleet.control.state_dir).resolve())


def open_site(loaded: LoadedFleet) -> Site:
    """The site of ``loaded``. Raises EdgeError when there is no usable nginx."""
    binary = loaded.fleet.edge.binary
    # A bare name is looked up on PATH, a path starts at fleet.yaml's folder.
    configured = None if binary is None else Path(binary) if "/" not in binary else loaded.folder / binary
    return Site(loaded, state_paths(loaded), find_engine(configured))


def client(paths: StatePaths, admin: str | None = None) -> AdminClient:
    """The admin client of the edge that runs from ``paths``, at the address that was last applied.

    Raises EdgeError when nothing was ever started there.
    """
    token = read_token(paths.admin_token)
    applied = Applied.read(paths)
    address = admin or (applied.admin if applied else None)
    if address is None:
        raise EdgeError("the edge was never started from here", "Run `signalbox start`.")
    return AdminClient(address, token)


@contextlib.contextmanager
def locked(paths: StatePaths, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the edge's lock: starts, stops and reloads of one state folder come one after the other.

    The lock goes with the process that holds it. Raises EdgeError after ``timeout`` seconds of waiting.
    """
    paths.edge.mkdir(parents=True, exist_ok=True)
    with (paths.edge / "lock").open("a") as file:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise EdgeError(
                        "another start, stop or reload of this edge is still at work", "Wait for it, then try again."
                    ) from None
                time.sleep(0.02)
        yield
