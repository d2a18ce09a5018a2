"""Machines of a test's own: Linux network namespaces on one bridge, each with an address and a loopback of its own."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.follower import Follower
from tests.support.redis import Redis

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_count = itertools.count()


class Machine:
    """One namespace; ``address`` is its own on the bridge."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is there until the block ends: its new sockets, and processes that it starts, are for good."""
        with open("/proc/thread-self/ns/net") as home, Path("/run/netns", self.name).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def machines(number: int) -> Iterator[list[Machine]]:
    """So many machines at 10.77.0.1 and so on, which reach each other and nothing else; the first has the bridge.

    The test is skipped where this user or kernel makes no namespaces.
    """
    stem = f"sb{os.getpid()}-{next(_count)}-"
    made = [Machine(f"{stem}{index}", f"10.77.0.{index}") for index in range(1, number + 1)]
    try:
        for machine in made:
            _ip("netns", "add", machine.name)
            _ip("-n", machine.name, "link", "set", "lo", "up")
        hub = made[0]
        _ip("-n", hub.name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub.name, "addr", "add", f"{hub.address}/24", "dev", "bridge")
        _ip("-n", hub.name, "link", "set", "bridge", "up")
        for machine in made[1:]:
            port = "to" + machine.address.rpartition(".")[2]
            _ip("-n", hub.name, "link", "add", port, "type", "veth", "peer", "name", "net", "netns", machine.name)
            _ip("-n", hub.name, "link", "set", port, "master", "bridge", "up")
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "net")
            _ip("-n", machine.name, "link", "set", "net", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(made)
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        pytest.skip(
            f"NOT TESTED, because no network namespaces can be made here (root and iproute2 are needed): {said}"
        )
    try:
        yield made
    finally:
        _remove(made)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)


def _remove(made: list[Machine]) -> None:
    for machine in made:
        subprocess.run(["ip", "netns", "del", machine.name], capture_output=True, check=False)


class _There:
    """Whatever a test asks of an edge, it asks from the edge's own machine."""

    machine: Machine

    def _there(self, work: Callable[[], Any]) -> Any:
        with self.machine.inside():
            return work()

    def start(self) -> Any:
        return self._there(super().start)  # type: ignore[misc]

    def call(self, *args: Any, **options: Any) -> Any:
        return self._there(lambda: super(_There, self).call(*args, **options))  # type: ignore[misc]

    def admin(self, *args: Any, **options: Any) -> Any:
        return self._there(lambda: super(_There, self).admin(*args, **options))  # type: ignore[misc]

    def raw(self, **options: Any) -> Any:
        return self._there(lambda: super(_There, self).raw(**options))  # type: ignore[misc]

    def reload(self, force: bool = False) -> Any:
        return self._there(lambda: super(_There, self).reload(force))  # type: ignore[misc]


class EdgeThere(_There, Edge):
    """An edge with its control plane's commands on a machine."""

    def __init__(self, machine: Machine, fleet: dict[str, Any]) -> None:
        self.machine = machine
        super().__init__(fleet, may_kill=True)


class FollowerThere(_There, Follower):
    """``signalbox edge`` on a machine."""

    def __init__(self, machine: Machine, state: Any) -> None:
        self.machine = machine
        super().__init__(state)


class EngineThere(ScriptedEngine):
    """An engine that listens at the machine's address."""

    def __init__(self, machine: Machine, *names: str) -> None:
        self.machine = machine
        super().__init__(*names, host=machine.address)

    def launch(self) -> EngineThere:
        with self.machine.inside():
            super().launch()
        return self

    def call(self, method: str, value: Any = None) -> dict[str, Any]:
        with self.machine.inside():
            return super().call(method, value)


class RedisThere(Redis):
    """A Redis that listens at the machine's address."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__(host=machine.address, protected_mode="no")

    def start(self) -> RedisThere:
        with self.machine.inside():
            super().start()
        return self

    def call(self, *words: str | int) -> Any:
        with self.machine.inside():
            return super().call(*words)
