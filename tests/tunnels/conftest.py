"""An SSH server, an engine that listens on loopback behind it, and the keepers of the tunnel between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.engines.policy import Policy
from control.engines.recorded import stop_recorded
from control.fleet.load import LoadedFleet, load
from control.paths import StatePaths
from control.tunnels.keeper import TunnelStatus
from control.tunnels.supervisor import Tunnels
from tests.support import processes
from tests.support.net import free_port, wait_until
from tests.support.sshd import Sshd

FAST = Policy(poll=0.05, pauses=(0.1, 0.2, 0.4), quick=60, retry=0.2, drain=0.05)
#: This machine's end of the tunnel; the engine has the same port on 127.0.0.1.
HERE = "127.0.0.2"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    with Sshd() as box:
        monkeypatch.setenv("PATH", box.environment["PATH"])
        yield box


class Stand:
    """A state folder, and control planes' keepers of tunnels in it."""

    def __init__(self, folder: Path, box: Sshd) -> None:
        self.folder = folder
        self.box = box
        self.port = free_port()
        self.paths = StatePaths(folder / "state")
        self.all: list[Tunnels] = []

    def fleet(self, *ports: int, **host: Any) -> LoadedFleet:
        """A fleet with a backend for each port (by default one) behind the box."""
        backends = [{"host": "box", "port": port} for port in ports or (self.port,)]
        hosts = {"box": {"tunnel": self.box.url, "address": HERE, **host}}
        file = self.folder / "fleet.yaml"
        fleet = {"control": {"state_dir": "state"}, "hosts": hosts, "models": {"m": {"backends": backends}}}
        file.write_text(yaml.safe_dump(fleet))
        return load(file)

    def keep(self, loaded: LoadedFleet | None = None) -> Tunnels:
        tunnels = Tunnels(loaded or self.fleet(), self.paths, FAST)
        self.all.append(tunnels)
        tunnels.start()
        return tunnels

    def wait(self, tunnels: Tunnels, state: str, detail: str = "", seconds: float = 10) -> TunnelStatus:
        """The first tunnel, once it is in this state and ``detail`` is part of what it says."""

        def there() -> TunnelStatus | None:
            status = tunnels.status()[0]
            return status if status.state == state and detail in status.detail else None

        try:
            return wait_until(f"a tunnel that is {state}", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {tunnels.status()[0]}") from error


@pytest.fixture
def stand(tmp_path: Path, box: Sshd) -> Iterator[Stand]:
    stand = Stand(tmp_path, box)
    yield stand
    for tunnels in stand.all:
        tunnels.close(stop=True)
    assert stop_recorded(stand.paths, "tunnels") == []
    assert processes.of_folder(box.bin.parent / "config") == []
