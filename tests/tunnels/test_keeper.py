"""The keeper of a tunnel on a real sshd: up, cut, refused in each way, taken over, ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import requests

from control.engines.processes import Record, alive
from control.tunnels import backlog
from control.tunnels.keeper import through
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.sshd import Sshd
from tests.tunnels.conftest import HERE, Stand

pytestmark = pytest.mark.slow  # each starts an SSH server


def pid_of(stand: Stand) -> int:
    record = Record.load(stand.paths.tunnel("m-1"))
    assert record is not None
    return record.pid


def names(stand: Stand) -> list[str]:
    """What the engine says through the tunnel that it serves."""
    answer = requests.get(f"http://{HERE}:{stand.port}/v1/models", timeout=5)
    return [entry["id"] for entry in answer.json()["data"]]


def test_an_engine_on_loopback_there_is_reached_here_and_nothing_else_is_opened(stand: Stand) -> None:
    with ScriptedEngine("m", port=stand.port):
        status = stand.wait(stand.keep(), "up")
        assert status.detail == "" and (status.local, status.remote) == (
            f"{HERE}:{stand.port}",
            f"127.0.0.1:{stand.port}",
        )
        assert names(stand) == ["m"]
        listening = [at.laddr for at in psutil.Process(pid_of(stand)).net_connections() if at.status == "LISTEN"]
        assert [(at.ip, at.port) for at in listening] == [(HERE, stand.port)]


def test_a_killed_ssh_comes_back_at_the_same_port(stand: Stand) -> None:
    with ScriptedEngine("m", port=stand.port):
        tunnels = stand.keep()
        stand.wait(tunnels, "up")
        before = pid_of(stand)
        os.kill(before, signal.SIGKILL)
        wait_until("another ssh", lambda: tunnels.status()[0].pid not in (None, before), 10)
        assert stand.wait(tunnels, "up").restarts == 1
        assert names(stand) == ["m"]


def test_an_ssh_that_hangs_is_started_anew(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "KNOCK", 0.2)
    monkeypatch.setattr(backlog, "HUNG", 1.0)
    with ScriptedEngine("m", port=stand.port):
        tunnels = stand.keep()
        stand.wait(tunnels, "up")
        before = pid_of(stand)
        os.kill(before, signal.SIGSTOP)
        told = stand.wait(tunnels, "down").detail
        assert told.startswith("ssh runs, but has taken in no connection for a while")
        wait_until("another ssh", lambda: tunnels.status()[0].pid not in (None, before), 10)
        assert stand.wait(tunnels, "up").restarts == 1 and not psutil.pid_exists(before)
        assert names(stand) == ["m"]


def test_an_engine_that_does_not_listen_is_told_and_so_is_its_start(stand: Stand) -> None:
    tunnels = stand.keep()
    status = stand.wait(tunnels, "up", "nothing listens")
    assert status.detail == f"nothing listens on box at 127.0.0.1:{stand.port}"
    before = pid_of(stand)
    with ScriptedEngine("m", port=stand.port):
        wait_until("the engine to be seen", lambda: tunnels.status()[0].detail == "", 10)
        assert pid_of(stand) == before and names(stand) == ["m"]


def _away(box: Sshd) -> None:
    box.stop()


def _unknown(box: Sshd) -> None:
    box.know(False)


def _another_key(box: Sshd) -> None:
    box.stop()
    box.new_key("host")
    box.start()


def _locked_out(box: Sshd) -> None:
    box.let_in(False)


def _no_forwarding(box: Sshd) -> None:
    box.stop()
    box.start(forwarding="no")


def _back(box: Sshd) -> None:
    box.start()


def _known(box: Sshd) -> None:
    box.know()


def _let_in(box: Sshd) -> None:
    box.let_in()


def _forwarding(box: Sshd) -> None:
    box.stop()
    box.start()


@pytest.mark.parametrize(
    ("trouble", "says", "cure", "repair", "by_hand"),
    [
        (_away, "nothing listens at 127.0.0.1 port {port} (connection refused)", "does sshd run there?", _back, False),
        (_unknown, "the host key of {target} is not known", "by hand and compare the fingerprint: {ssh}", _known, True),
        (_another_key, "{target} has another host key than before", "keygen -R '[127.0.0.1]:{port}'", _known, True),
        (_locked_out, "{target} does not let this user in (it takes: publickey)", "`{ssh_copy_id}`", _let_in, True),
        (_no_forwarding, "the SSH server of {target} does not forward", "AllowTcpForwarding yes", _forwarding, True),
    ],
    ids=["away", "unknown host key", "changed host key", "permission denied", "forward refused"],
)
def test_what_keeps_it_down_is_said_with_the_cure_and_it_comes_up_after_it(
    stand: Stand,
    trouble: Callable[[Sshd], None],
    says: str,
    cure: str,
    repair: Callable[[Sshd], None],
    by_hand: bool,
) -> None:
    target = stand.box.url.removeprefix("ssh://")
    user = target.partition("@")[0]
    words = {
        "port": str(stand.box.port),
        "target": target,
        "ssh": f"ssh -p {stand.box.port} {user}@127.0.0.1",
        "ssh_copy_id": f"ssh-copy-id -p {stand.box.port} {user}@127.0.0.1",
    }
    with ScriptedEngine("m", port=stand.port):
        trouble(stand.box)
        tunnels = stand.keep()
        status = stand.wait(tunnels, "down")
        assert says.format(**words) in status.detail and cure.format(**words) in status.detail
        assert "\n" not in status.detail and through((HERE, stand.port)) == "closed"
        assert ("`signalbox reload` tries at once" in status.detail) == by_hand
        repair(stand.box)
        if by_hand:
            tunnels.reload(stand.fleet())
        stand.wait(tunnels, "up")
        assert names(stand) == ["m"]


def test_a_key_that_may_open_this_one_port_is_enough(stand: Stand) -> None:
    may = 'restrict,port-forwarding,permitopen="127.0.0.1:{}"'  # as docs/tunnels.md has it
    with ScriptedEngine("m", port=stand.port):
        stand.box.let_in(options=may.format(1))
        tunnels = stand.keep()
        stand.wait(tunnels, "down", f"does not forward to 127.0.0.1:{stand.port}")
        stand.box.let_in(options=may.format(stand.port))
        tunnels.reload(stand.fleet())
        stand.wait(tunnels, "up")
        assert names(stand) == ["m"]


def test_a_taken_port_is_said_with_who_has_it(stand: Stand) -> None:
    with ScriptedEngine("m", port=stand.port, host=HERE) as other:
        tunnels = stand.keep()
        status = stand.wait(tunnels, "down")
        assert other.process is not None and f"{HERE}:{stand.port} is in use by process {other.process.pid}" in (
            status.detail
        )
    stand.wait(tunnels, "up")


def test_the_next_control_plane_takes_over_what_runs(stand: Stand) -> None:
    with ScriptedEngine("m", port=stand.port):
        first = stand.keep()
        stand.wait(first, "up")
        before = pid_of(stand)
        first.close(stop=False)  # what kill -9 leaves: an ssh and its record
        assert names(stand) == ["m"]
        second = stand.keep()
        assert stand.wait(second, "up").pid == before
        os.kill(before, signal.SIGKILL)  # and minds it, although it is not its own child
        wait_until("another ssh", lambda: second.status()[0].pid not in (None, before), 10)
        second.close(stop=True)
        assert (
            through((HERE, stand.port)) == "closed" and not stand.paths.tunnel("m-1").joinpath("process.json").exists()
        )


def test_an_ssh_that_leads_elsewhere_than_the_fleet_says_is_replaced(stand: Stand) -> None:
    with ScriptedEngine("m", port=stand.port), Sshd() as other:
        first = stand.keep()
        stand.wait(first, "up")
        before = Record.load(stand.paths.tunnel("m-1"))
        assert before is not None
        first.close(stop=False)
        known = stand.box.folder / "known"
        key = (other.folder / "host.pub").read_text().split()[:2]
        known.write_text(known.read_text() + f"[127.0.0.1]:{other.port} {' '.join(key)}\n")
        (other.folder / "authorized").write_text((stand.box.folder / "user.pub").read_text())
        second = stand.keep(stand.fleet(tunnel=other.url))
        wait_until("another ssh", lambda: second.status()[0].pid not in (None, before.pid), 10)
        assert names(stand) == ["m"] and not alive(before)


def test_a_reload_touches_only_what_changed(stand: Stand) -> None:
    second = free_port()
    with ScriptedEngine("m", port=stand.port), ScriptedEngine("m", port=second):
        tunnels = stand.keep()
        stand.wait(tunnels, "up")
        before = pid_of(stand)
        tunnels.reload(stand.fleet(stand.port, second))
        wait_until("the second one", lambda: tunnels.status()[1].state == "up", 10)
        assert through((HERE, second)) == "open"
        tunnels.reload(stand.fleet(stand.port))
        wait_until("the end of the second one", lambda: through((HERE, second)) == "closed", 10)
        assert pid_of(stand) == before and tunnels.status()[0].restarts == 0


def test_without_ssh_the_package_is_named(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    status = stand.wait(stand.keep(), "down")
    assert status.detail == "This machine has no ssh. Install it: apt-get install openssh-client"


def test_a_keeper_whose_folder_cannot_be_written_goes_on(stand: Stand) -> None:
    folder = stand.paths.tunnel("m-1")
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    tunnels = stand.keep()
    stand.wait(tunnels, "down", "control.log has the traceback")
    folder.unlink()
    stand.wait(tunnels, "up", "nothing listens")
