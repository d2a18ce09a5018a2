"""nginx/compose.yaml on a real Docker Engine: edge, control plane and Redis, from an image made of this machine.

The image's own files are those that the real Dockerfile copies, taken by Docker's own builder; what its ``apt-get`` and
``pip`` would install is this machine's, mounted read-only.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.paths import REPOSITORY
from tests.support.client import CHAT, chat
from tests.support.compose import create_arguments, read
from tests.support.dockerd import Dockerd, volumes
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.raw import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ACCOUNT = 10001
SIGNALBOX = "/opt/signalbox/bin/signalbox"


class Stack:
    """The services of compose.yaml as containers, their configuration in a folder."""

    def __init__(self, dockerd: Dockerd, engine: ScriptedEngine) -> None:
        self.dockerd, self.client = dockerd, dockerd.client()
        self.folder = Path(tempfile.mkdtemp(prefix="stack-"))
        self.folder.chmod(0o755)
        self.config = self.folder / "config"
        self.port, self.admin, self.page, self.redis = (free_port() for _ in range(4))
        self._code()
        (self.config / "secrets").mkdir(parents=True)
        (self.config / "secrets" / "redis.pw").write_text(secrets.token_hex(16) + "\n")
        self.fleet: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples" / "deploy.yaml").read_text())
        self.fleet["edge"] |= {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin}", "workers": 1}
        self.fleet["edge"]["state"]["redis"] = f"redis://127.0.0.1:{self.redis}/0"
        self.fleet["control"]["listen"] = f"127.0.0.1:{self.page}"
        self.fleet["models"] = {"m": {"backends": [{"url": engine.url}]}}
        self.write()
        for path in (self.config, *self.config.rglob("*")):
            os.chown(path, ACCOUNT, ACCOUNT)
        (self.config / "secrets" / "redis.pw").chmod(0o640)
        socket = self.dockerd.folder / "docker.sock"
        self.compose = read(
            REPOSITORY / "nginx" / "compose.yaml",
            {
                "SIGNALBOX_CONFIG": str(self.config),
                "SIGNALBOX_IMAGE": dockerd.image("signalbox:test"),
                "REDIS_IMAGE": dockerd.image("redis:test"),
                "REDIS_PORT": str(self.redis),
                "DOCKER_GID": str(socket.stat().st_gid),
            },
        )
        for name, account in (("state", ACCOUNT), ("redis", 999)):  # as the images' own folders are
            volume = self.client.volumes.create(f"{self.compose['name']}_{name}")
            os.chown(volume.attrs["Mountpoint"], account, account)
        self.compose["services"]["control"]["volumes"] = [
            entry.replace("/var/run/docker.sock:", f"{socket}:")
            for entry in self.compose["services"]["control"]["volumes"]
        ]

    def _code(self) -> None:
        """What the Dockerfile copies, by Docker's own builder."""
        lines = list(
            self.client.api.build(
                path=str(REPOSITORY), dockerfile="nginx/Dockerfile", target="code", tag="code:test", decode=True
            )
        )
        assert not [line["error"] for line in lines if "error" in line], lines[-3:]
        container = self.client.api.create_container("code:test", ["none"])["Id"]
        data, _ = self.client.api.get_archive(container, "/opt/signalbox")
        with tarfile.open(fileobj=io.BytesIO(b"".join(data))) as tar:
            tar.extractall(self.folder / "opt", filter="data")
        self.client.api.remove_container(container)
        self.code = self.folder / "opt" / "signalbox"
        (self.code / ".venv").mkdir()

    def write(self) -> None:
        (self.config / "fleet.yaml").write_text(yaml.safe_dump(self.fleet))

    def arguments(self, name: str) -> dict[str, Any]:
        arguments = create_arguments(self.compose, name)
        arguments["volumes"] += [f"{entry}:ro" for entry in volumes()]
        arguments["init"] = False  # Docker puts its init to /sbin, which is this machine's here
        if name != "redis":
            # What Dockerfile says after its last FROM.
            arguments["volumes"] += [f"{self.code}:/opt/signalbox:ro", f"{sys.prefix}:/opt/signalbox/.venv:ro"]
            arguments["entrypoint"] = [SIGNALBOX]
            arguments["environment"] = {"PYTHONPATH": "/opt/signalbox", "PYTHONUNBUFFERED": "1"}
        return arguments

    def up(self, *names: str) -> None:
        for name in names:
            self.client.containers.create(**self.arguments(name)).start()
        for name in names:
            self.until_healthy(name)

    def until_healthy(self, name: str) -> None:
        wait_until(f"{name} to be healthy\n", lambda: self.health(name) == "healthy", 60, every=0.3)

    def health(self, name: str) -> str:
        state = self.get(name).attrs["State"]
        assert state["Running"] or state["Restarting"], self.logs(name)
        return str(state["Health"]["Status"])

    def get(self, name: str) -> Any:
        return self.client.containers.get(f"{self.compose['name']}-{name}")

    def logs(self, name: str) -> str:
        text: bytes = self.get(name).logs(tail=60)
        return text.decode()

    def run(self, name: str, *command: str) -> tuple[int, str]:
        """``docker compose exec``."""
        done = self.get(name).exec_run(list(command))
        return done.exit_code, done.output.decode()

    def once(self, name: str, *command: str) -> str:
        """``docker compose run --rm``."""
        arguments = self.arguments(name) | {"name": None, "command": list(command), "restart_policy": None}
        output: bytes = self.client.containers.run(**arguments, remove=True)
        return output.decode()

    def ask(self, key: str, model: str = "m") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://127.0.0.1:{self.port}{CHAT}"
            return session.post(url, json=chat(model), headers=headers, timeout=10).status_code

    def state(self) -> dict[str, Any]:
        code, text = self.run("control", SIGNALBOX, "status", "--json")
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)["state"]
        return found

    def models_of_the_page(self) -> list[str]:
        answer = requests.get(f"http://127.0.0.1:{self.page}/api/fleet", timeout=5).json()
        return [backend["model"] for backend in answer["backends"]]

    def end(self) -> None:
        for container in self.client.containers.list(all=True):
            container.remove(force=True)
        for volume in self.client.volumes.list():
            volume.remove(force=True)
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("m", "other") as one:
        yield one


@pytest.fixture(scope="module")
def stack(dockerd: Dockerd, engine: ScriptedEngine) -> Iterator[Stack]:
    stack = Stack(dockerd, engine)
    try:
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    """A key made as docs/deploy.md says, before anything runs; then everything runs."""
    said = stack.once("control", "keys", "create", "alice")
    (found,) = [word for word in said.split() if word.startswith("sk-") and len(word) > 20]
    stack.up("redis", "edge", "control")
    return found


def test_all_three_come_up_and_serve(stack: Stack, key: str) -> None:
    wait_until("an answer", lambda: stack.ask(key) == 200, 15, every=0.2)
    assert stack.ask("wrong") == 401
    state = stack.state()["state"]
    assert state["kind"] == "redis" and state["ok"] is True
    assert stack.models_of_the_page() == ["m"]


def test_they_have_no_rights(stack: Stack, key: str) -> None:
    for name in ("edge", "control", "redis"):
        _, said = stack.run(
            name, "/bin/sh", "-c", "id -u; touch /x /usr/x; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status"
        )
        assert said.splitlines()[0] == ("999" if name == "redis" else str(ACCOUNT)), said
        assert said.count("Read-only file system") == 2, said
        assert "CapEff:\t0000000000000000" in said and "NoNewPrivs:\t1" in said, said


def test_only_the_control_plane_reaches_docker(stack: Stack, key: str) -> None:
    socket = str(stack.dockerd.folder / "docker.sock")
    inside = "/var/run/docker.sock"
    ping = f"import docker; print(docker.DockerClient(base_url='unix://{inside}').ping())"
    python = "/opt/signalbox/.venv/bin/python"
    assert stack.run("control", python, "-c", ping) == (0, "True\n")
    assert stack.run("edge", python, "-c", ping)[0] != 0
    for name in ("edge", "redis"):
        assert not [mount for mount in stack.get(name).attrs["Mounts"] if mount["Source"] == socket]


def test_a_reload_from_the_control_plane_reaches_both(stack: Stack, key: str, engine: ScriptedEngine) -> None:
    stack.fleet["models"]["other"] = {"backends": [{"url": engine.url}]}
    stack.write()
    code, said = stack.run("control", SIGNALBOX, "reload")
    assert code == 0 and "without a reload" in said and "reads fleet.yaml again" in said, said
    wait_until("the model to serve", lambda: stack.ask(key, "other") == 200, 10, every=0.2)
    wait_until("the page to know it", lambda: stack.models_of_the_page() == ["m", "other"], 10, every=0.2)
    stack.fleet["edge"]["max_body"] = "1m"
    stack.write()
    code, said = stack.run("edge", SIGNALBOX, "reload")
    assert code == 0 and "generation 2" in said, said
    assert "generation 2" in stack.logs("edge")


def test_the_edge_serves_while_the_control_plane_is_replaced(stack: Stack, key: str) -> None:
    control = stack.get("control")
    control.stop(timeout=10)
    assert control.wait()["StatusCode"] == 0, stack.logs("control")
    assert stack.ask(key) == 200
    control.remove()
    stack.up("control")


def test_nginx_that_dies_is_started_again(stack: Stack, key: str) -> None:
    found = "import psutil; print(*[p.pid for p in psutil.process_iter() if 'master process' in ' '.join(p.cmdline())])"
    _, said = stack.run("edge", "/opt/signalbox/.venv/bin/python", "-c", found)
    stack.run("edge", "/bin/sh", "-c", f"kill -9 {said.split()[0]}")
    wait_until("a restart", lambda: stack.get("edge").attrs["RestartCount"] == 1, 15, every=0.1)
    assert "nginx ended by itself" in stack.logs("edge")
    stack.until_healthy("edge")
    wait_until("an answer", lambda: stack.ask(key) == 200, 15, every=0.2)


def test_a_stop_lets_answers_finish(stack: Stack, key: str) -> None:
    with RawClient(stack.port) as client:
        body = chat("m", stream=True, tokens=30, delay_ms=100)
        client.request(CHAT, body, headers={"Authorization": f"Bearer {key}"})
        assert client.head().status == 200
        next(client.events())
        stopping = threading.Thread(target=stack.get("edge").stop, kwargs={"timeout": 30})
        stopping.start()
        assert len(list(client.events())) >= 30
    stopping.join(30)
    assert stack.get("edge").attrs["State"]["ExitCode"] == 0, stack.logs("edge")
    assert "finished its streams" in stack.logs("edge")
