"""Who workers run as, which name servers they ask, which ports are free."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.edge.ports import free_port, holder, require_free, split
from control.edge.surroundings import User, nameservers, worker_user
from control.errors import EdgeError


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter (pytest's own are private), with a fleet.yaml of uid 0."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        (path / "fleet.yaml").touch(0o644)
        yield path


def as_root(monkeypatch: pytest.MonkeyPatch, owner: int = 0) -> None:
    """Make ``worker_user`` believe that we are root, and that uid ``owner`` owns every file here."""
    real = Path.stat
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        values = list(real(self, follow_symlinks=follow_symlinks))
        values[4], values[5] = (owner, owner) if "fleet" in self.name or "key" in self.name else (0, 0)
        return os.stat_result(values)

    monkeypatch.setattr(Path, "stat", stat)


def test_without_root_there_is_no_choice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert worker_user(folder / "fleet.yaml", []) is None


def test_root_s_own_fleet_runs_as_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_root(monkeypatch)
    found = worker_user(folder / "fleet.yaml", [folder, folder / "not-there-yet"])
    assert found is not None
    assert found.name == "nobody"


@pytest.mark.parametrize("private", ["folder", "key"])
def test_what_nobody_cannot_read_keeps_workers_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch, private: str
) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "gpu.key").touch(0o600 if private == "key" else 0o644)
    (folder / "inner").chmod(0o700 if private == "folder" else 0o755)
    as_root(monkeypatch)
    assert worker_user(folder / "fleet.yaml", [folder / "inner" / "gpu.key"]) == User("root", "root")


def test_a_person_s_fleet_runs_as_that_person(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gpu.key").touch(0o600)
    as_root(monkeypatch, owner=1)  # "daemon" is uid and gid 1 on every Linux
    assert worker_user(folder / "fleet.yaml", [folder / "gpu.key"]) == User("daemon", "daemon")


def test_an_owner_without_a_name_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_root(monkeypatch, owner=4_000_000)
    found = worker_user(folder / "fleet.yaml", [folder])
    assert found is not None
    assert found.name == "nobody"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 10.0.0.2\nnameserver 10.0.0.3 # second\n", ("10.0.0.2:53", "10.0.0.3:53")),
        ("nameserver 2001:db8::1\n", ("[2001:db8::1]:53",)),
        (
            "nameserver fe80::1%eth0\nnameserver not-an-address\n#nameserver 1.2.3.4\noptions ndots:1\n",
            ("127.0.0.1:53",),
        ),
        ("", ("127.0.0.1:53",)),
    ],
)
def test_nameservers(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "resolv.conf").write_text(text)
    assert nameservers(tmp_path / "resolv.conf") == expected


def test_no_resolv_conf(tmp_path: Path) -> None:
    assert nameservers(tmp_path / "nowhere") == ("127.0.0.1:53",)


def test_split() -> None:
    assert split("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split("[::1]:443") == ("::1", 443)


def test_free_and_taken_ports() -> None:
    require_free([f"127.0.0.1:{free_port()}"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert holder(port).startswith(f"process {os.getpid()} (")
        for address in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
            with pytest.raises(EdgeError, match=f"{address} is in use by process {os.getpid()}"):
                require_free([address])
    require_free([f"127.0.0.1:{port}"])


def test_an_address_of_another_machine() -> None:
    with pytest.raises(EdgeError, match="cannot be listened on"):
        require_free(["192.0.2.1:8080"])
