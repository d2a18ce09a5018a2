"""`signalbox doctor` about tunnels: those that run are asked, the others are tried, and why ssh refuses is told."""

from __future__ import annotations

import pytest

from control.doctor.findings import Finding
from control.doctor.tunnels import tunnels
from tests.support.engine import ScriptedEngine
from tests.tunnels.conftest import Stand

pytestmark = pytest.mark.slow  # each starts an SSH server


def look(stand: Stand) -> Finding:
    (found,) = tunnels(stand.fleet(), ["box"])
    return found


def test_without_a_tunnel_ssh_is_tried(stand: Stand) -> None:
    assert list(tunnels(stand.fleet(), ["other"])) == []
    nobody = look(stand)
    assert nobody.level == "problem" and f"nothing listens at 127.0.0.1:{stand.port} there" in nobody.text
    assert nobody.command.startswith("ssh -p ") and f"sport = :{stand.port}" in nobody.command
    with ScriptedEngine("m", port=stand.port):
        found = look(stand)
    assert found.level == "warning" and "but no tunnel runs" in found.text and found.command.endswith(" up")


def test_a_tunnel_that_runs_is_asked(stand: Stand) -> None:
    stand.wait(stand.keep(), "up")
    stand.box.let_in(False)  # nobody gets in anew: only the tunnel itself can tell
    assert look(stand).level == "problem" and "nothing listens" in look(stand).text
    with ScriptedEngine("m", port=stand.port):
        found = look(stand)
    assert found.level == "ok" and found.text.endswith("on box, which listens")


@pytest.mark.parametrize(
    ("trap", "words", "command"),
    [
        ("unknown", "is not known on this machine", "ssh -p"),
        ("changed", "has another host key than before", "ssh-keygen -R"),
        ("key", "does not let this user in", "ssh-copy-id -p"),
        ("forwarding", "does not forward to", "ssh -p"),
        ("away", "connection refused", "ssh -p"),
    ],
)
def test_the_traps_of_ssh(stand: Stand, trap: str, words: str, command: str) -> None:
    box = stand.box
    if trap == "unknown":
        box.know(False)
    elif trap == "changed":
        box.stop()
        box.new_key("host")
        box.start()
    elif trap == "key":
        box.let_in(False)
    else:
        box.stop()
        if trap == "forwarding":
            box.start(forwarding="no")
    found = look(stand)
    assert found.level == "problem" and words in found.text and found.command.startswith(command)
