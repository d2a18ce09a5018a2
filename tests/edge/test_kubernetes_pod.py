"""The edge's pod as its manifest says, without a cluster: its init script and command, real nginx, a name server.

Only paths and ports are this test's own, and nginx is the engine that is here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control import alive
from control.edge.binary import find_engine
from control.edge.ports import free_port
from control.fleet.load import load
from control.kubernetes.edge import STATE
from control.kubernetes.shapes import Target
from control.kubernetes.target import LUA, render
from control.paths import REPOSITORY, StatePaths
from tests.support.client import CHAT, chat
from tests.support.dns import Zone, name_server
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow

NAME = "engine-m-1.signalbox.svc.cluster.local"


class Pod:
    """The pod in a folder: its volumes are folders, its containers are processes of the image's account."""

    def __init__(self, folder: Path, dns: int, engine_port: int) -> None:
        self.folder, self.port, self.admin = folder, free_port(), free_port()
        fleet = {
            "edge": {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin}", "keys": "none"},
            "hosts": {"here": {"local": True}},
            "models": {"m": {"engine": {"command": ["x"]}, "backends": [{"host": "here", "port": 8101}]}},
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        bundle = render(load(folder / "fleet.yaml"), Target(engine_image="x"))
        found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(bundle.text())}
        self.spec: dict[str, Any] = found["Deployment", "signalbox-edge"]["spec"]["template"]["spec"]
        self._replaced = {
            STATE: str(folder / "state"),
            "/config/": f"{folder}/config/",
            "/admin/": f"{folder}/admin/",
            "/keys/": f"{folder}/keys/",
            "/etc/resolv.conf": str(folder / "resolv.conf"),
            "$dns:53": f"$dns:{dns}",
        }
        for name in ("state", "config", "admin"):
            (folder / name).mkdir()
        modules = "".join(f"load_module {name};\n" for name in find_engine().profile.load_modules)
        shutil.copytree(REPOSITORY / "lua", folder / "lua")
        data = found["ConfigMap", "signalbox-edge"]["data"]
        data["nginx.conf"] = modules + data["nginx.conf"].replace(str(LUA), str(folder / "lua"))
        data["fleet.json"] = data["fleet.json"].replace('"port": 8000', f'"port": {engine_port}')
        for name, text in data.items():
            (folder / "config" / name).write_text(text)
        (folder / "admin" / "admin.token").write_text("a" * 64 + "\n")
        (folder / "resolv.conf").write_text(
            "search signalbox.svc.cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n"
        )
        self.account: list[str] = []
        if os.geteuid() == 0:
            os.chown(folder / "state", 10001, 10001)
            self.account = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs"]

    def words(self, command: list[str], **more: str) -> list[str]:
        """A container's command with this test's paths."""
        words = [*command]
        for old, new in {**self._replaced, **more}.items():
            words = [word.replace(old, new) for word in words]
        return [*self.account, *words]

    def start(self) -> subprocess.Popen[bytes]:
        (prepare,) = self.spec["initContainers"]
        done = subprocess.run(self.words(prepare["command"]), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        command = self.words(self.spec["containers"][0]["command"])
        command[command.index("openresty")] = str(find_engine().path)
        with (self.folder / "output.txt").open("ab") as output:
            if self.account:
                os.fchown(output.fileno(), 10001, 10001)  # as runc does: logs are links to it
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def alive(self) -> str:
        """What its probes find."""
        arguments = self.words(self.spec["containers"][0]["readinessProbe"]["exec"]["command"])
        assert arguments[-4:-2] == ["control.alive", "edge"]
        return alive.edge(StatePaths(Path(arguments[-2])), arguments[-1])

    def ask(self) -> int:
        with requests.Session() as session:
            session.trust_env = False
            return session.post(f"http://127.0.0.1:{self.port}{CHAT}", json=chat("m"), timeout=10).status_code


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pod-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def zone() -> Iterator[tuple[Zone, int]]:
    with name_server(name=NAME) as found:
        yield found


def test_it_starts_follows_an_engine_that_moves_and_leaves_in_peace(folder: Path, zone: tuple[Zone, int]) -> None:
    names, dns = zone
    port = free_port()
    pod = Pod(folder, dns, port)
    process = pod.start()
    try:
        wait_until("it to be alive", lambda: process.poll() is not None or not pod.alive(), 10)
        assert process.poll() is None, (folder / "output.txt").read_text()
        assert f"127.0.0.1:{dns}" in (folder / "state/edge/conf/fleet.json").read_text()
        assert pod.ask() == 503, "its engine has no pod yet"

        with ScriptedEngine("m", port=port) as first:
            names.address = "127.0.0.1"
            wait_until("the engine to be found", lambda: pod.ask() == 200, 15, every=0.2)
            first.kill()
        with ScriptedEngine("m", port=port, host="127.0.0.2") as second:
            names.address = "127.0.0.2"
            wait_until("the engine at its new address", lambda: pod.ask() == 200, 15, every=0.2)

            with RawClient(pod.port) as client:
                client.request(CHAT, chat("m", stream=True, tokens=20, delay_ms=100))
                assert client.head().status == 200
                next(client.events())
                leave = pod.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
                own = {"sleep 5": "sleep 0", "-QUIT 1": f"-QUIT {process.pid}", "-0 1": f"-0 {process.pid}"}
                hook = subprocess.Popen(pod.words(leave, **own))
                assert len(list(client.events())) >= 20, "the stream that ran came to its end"
            assert process.wait(10) == 0
            assert hook.wait(10) == 0, "the hook lasts as long as nginx does"
            assert second.counters()["aborted"] == {}
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    lines = (folder / "output.txt").read_text().splitlines()
    # A container runtime's hard limit of open files is higher than this machine's may be.
    bad = [line for line in lines if ("[emerg]" in line or "[alert]" in line) and "setrlimit" not in line]
    assert bad == []
