"""A fleet behind SSH as a person runs it: streams, a cut, the control plane killed, a server that is away, the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.paths import REPOSITORY, StatePaths
from control.serve import daemon_pid
from tests.support import processes
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.sshd import Sshd

pytestmark = pytest.mark.slow  # whole starts


class Place:
    """A folder with a fleet.yaml whose one engine runs behind SSH, and the command line in it."""

    def __init__(self, box: Sshd) -> None:
        self.box = box
        self.folder = Path(tempfile.mkdtemp(prefix="tunnels-"))
        self.folder.chmod(0o755)  # nginx's workers run as another user when root starts it
        self.paths = StatePaths((self.folder / ".signalbox").resolve())
        self.port = free_port()
        self.listen, self.page_at = (f"127.0.0.1:{free_port()}" for _ in range(2))
        fleet = {
            "edge": {"listen": self.listen, "admin": f"127.0.0.1:{free_port()}", "workers": 1},
            "control": {"listen": self.page_at},
            "hosts": {"box": {"tunnel": box.url, "address": "127.0.0.2"}},
            "models": {"m": {"backends": [{"host": "box", "port": self.port}]}},
        }
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))

    def call(self, *words: str, code: int = 0) -> str:
        """Run a command to its end; its output. Fails when it does not end with ``code``."""
        command = [sys.executable, "-m", "control", "--fleet", str(self.folder / "fleet.yaml"), *words]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=self.box.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def tunnel(self) -> dict[str, Any]:
        """What `signalbox status` says of the tunnel."""
        (row,) = json.loads(self.call("status", "--json"))["tunnels"]
        return dict(row)

    def page(self) -> dict[str, Any]:
        """The backend as the page shows it."""
        (row,) = requests.get(f"http://{self.page_at}/api/fleet", timeout=5).json()["backends"]
        return dict(row)

    def stream(self, tokens: int = 20) -> list[str]:
        """The events of a streamed answer through the edge; raises when it does not come."""
        body = {"model": "m", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}]}
        with requests.post(f"http://{self.listen}/v1/chat/completions", json=body, timeout=20, stream=True) as answer:
            answer.raise_for_status()
            return [line.decode() for line in answer.iter_lines() if line]

    def ready(self) -> bool:
        return bool(self.page()["state"] == "ready" and self.page()["tunnel"]["state"] == "up")

    def end(self) -> list[str]:
        """End everything; command lines of what is left."""
        self.call("down", "--now")
        left = [*processes.of_folder(self.folder), *processes.of_folder(self.box.folder / "config")]
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


@pytest.fixture
def place() -> Iterator[Place]:
    with Sshd() as box:
        place = Place(box)
        with ScriptedEngine("m", port=place.port):
            yield place
            assert place.end() == []


def test_streams_pass_a_cut_is_seen_and_healed_and_a_killed_control_plane_leaves_nothing_in_the_way(
    place: Place,
) -> None:
    place.call("up")
    assert place.stream()[-1] == "data: [DONE]"
    up = place.tunnel()
    here = f"127.0.0.2:{place.port}"
    assert (up["state"], up["local"], up["remote"]) == ("up", here, f"127.0.0.1:{place.port}")
    assert f"{here}" in place.call("status") and place.page()["address"] == here

    # The control plane goes first, so that nobody heals what is cut then.
    daemon = daemon_pid(place.paths)
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    wait_until("the control plane to be gone", lambda: daemon_pid(place.paths) is None)
    assert place.stream()[-1] == "data: [DONE]"
    alone = place.tunnel()
    assert alone["state"] == "up" and "nobody brings it back: signalbox up" in alone["detail"]
    place.call("up")
    assert place.tunnel()["pid"] == up["pid"]  # the same ssh, taken over

    os.kill(up["pid"], signal.SIGKILL)  # healed before the edge may see it
    wait_until("another ssh", lambda: place.page()["tunnel"]["pid"] not in (None, up["pid"]), 20)
    wait_until("the backend to be ready", place.ready, 20)
    healed = place.tunnel()
    assert healed["local"] == here and healed["restarts"] == 1
    assert place.stream()[-1] == "data: [DONE]"

    place.box.stop()  # a cut that lasts
    wait_until("the edge to see it", lambda: place.page()["state"] == "down", 20)
    place.box.start()
    wait_until("the backend to be back", place.ready, 40)
    assert place.tunnel()["local"] == here and place.stream()[-1] == "data: [DONE]"

    daemon = daemon_pid(place.paths)
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    wait_until("the control plane to be gone", lambda: daemon_pid(place.paths) is None)
    assert "The tunnel to m-1 was ended." in place.call("down")


def test_a_server_that_is_away_at_the_start_is_told_and_taken_when_it_comes(place: Place) -> None:
    place.box.stop()
    said = place.call("up")
    assert f"The tunnel to m-1 is down: nothing listens at 127.0.0.1 port {place.box.port}" in said
    down = place.tunnel()
    assert down["state"] == "down"
    assert f"nothing listens at 127.0.0.1 port {place.box.port} (connection refused)" in down["detail"]
    why = down["detail"].partition(" Tried again in ")[0]
    assert why.endswith("does sshd run there?")
    assert f"\nm-1: {why}" in place.call("status") and place.page()["tunnel"]["detail"].startswith(why)
    place.box.start()
    wait_until("the backend to be ready", place.ready, 40)
    assert place.stream()[-1] == "data: [DONE]"
