"""nginx/compose.yaml by the real ``docker compose`` on a real Docker Engine: edge, control plane and Redis.

The images are made by ``docker compose build`` from Dockerfile.debian without its RUN steps; what ``apt-get`` and
``pip`` would install is this machine's, mounted read-only. ``make prove-images`` runs the same tests on images that are
built whole.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.paths import REPOSITORY
from tests.docker import whole_images
from tests.docker.conftest import COMMAND, IMAGE
from tests.support.client import CHAT, chat
from tests.support.compose import Compose
from tests.support.dockerd import Dockerd, volumes
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.raw import RawClient

WHOLE = os.environ.get("SIGNALBOX_IMAGES") == "whole"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 if WHOLE else 240)]

ACCOUNT, REDIS_ACCOUNT = 10001, 999
COMPOSE = REPOSITORY / "nginx" / "compose.yaml"


def without_packages() -> str:
    """Dockerfile.debian as it is, but for what asks a package index."""
    text = COMPOSE.with_name("Dockerfile.debian").read_text()
    code, build, last = re.split(r"^(?=FROM \$)", text, flags=re.MULTILINE)
    assert "AS build" in build and "COPY --from=build /opt/signalbox /opt/signalbox" in last
    return code + re.sub(r"^RUN (?:.*\\\n)*.*\n", "", last, flags=re.MULTILINE).replace("--from=build", "--from=code")


class Stack:
    """The services of compose.yaml as containers, their configuration in a folder."""

    def __init__(self, dockerd: Dockerd, engine: ScriptedEngine) -> None:
        self.dockerd, self.client = dockerd, dockerd.client()
        self.folder = Path(tempfile.mkdtemp(prefix="stack-"))
        self.folder.chmod(0o755)
        self.config = self.folder / "config"
        self.port, self.admin, self.page, self.redis = (free_port() for _ in range(4))
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
        self.socket = dockerd.folder / "docker.sock"
        self.variables = {
            "SIGNALBOX_CONFIG": str(self.config),
            "SIGNALBOX_IMAGE": "signalbox:test",
            "REDIS_IMAGE": "redis:test",
            "REDIS_PORT": str(self.redis),
            "DOCKER_GID": str(self.socket.stat().st_gid),
        }
        (self.folder / "override.yaml").write_text(yaml.safe_dump({"services": self._made()}))
        self.compose = self.with_image("signalbox:test")

    def _made(self) -> dict[str, Any]:
        """The base images; and what compose.yaml is told beside itself: where they are, and to look every second."""
        most = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # no more than this machine gives
        told: dict[str, dict[str, Any]] = {name: {"healthcheck": {"interval": "1s"}} for name in ("control", "redis")}
        told["edge"] = {"healthcheck": {"interval": "1s"}, "ulimits": {"nofile": most}}
        told["control"]["volumes"] = [f"{self.socket}:/var/run/docker.sock"]
        if WHOLE:
            self.variables["SIGNALBOX_DOCKERFILE"] = "nginx/Dockerfile.debian"
            base = whole_images.base(self.dockerd)
            whole_images.redis(self.dockerd, base, self.variables["REDIS_IMAGE"])
            told["edge"]["build"] = {"network": "host", "args": {"DEBIAN": base}}
            return told
        (self.folder / "Dockerfile").write_text(without_packages())
        self.variables["SIGNALBOX_DOCKERFILE"] = str(self.folder / "Dockerfile")
        path = "/opt/signalbox/bin:/usr/local/bin:/usr/bin:/bin"
        base = self.dockerd.image("base:test", path, {"/var/lib/signalbox": ACCOUNT})
        self.dockerd.image(self.variables["REDIS_IMAGE"], folders={"/data": REDIS_ACCOUNT})
        told["edge"]["build"] = {"args": {"DEBIAN": base}}
        for name, service in told.items():
            service["volumes"] = [*service.get("volumes", ()), *(f"{entry}:ro" for entry in volumes())]
            if name != "redis":
                service["volumes"].append(f"{sys.prefix}:/opt/signalbox/.venv:ro")
        return told

    def with_image(self, image: str) -> Compose:
        """``SIGNALBOX_IMAGE=image docker compose``."""
        variables = {**self.variables, "SIGNALBOX_IMAGE": image}
        return Compose(self.dockerd.url, [COMPOSE, self.folder / "override.yaml"], variables)

    def write(self) -> None:
        (self.config / "fleet.yaml").write_text(yaml.safe_dump(self.fleet))

    def until_healthy(self, *names: str) -> None:
        for name in names:
            wait_until(f"{name} to be healthy", lambda name=name: self.health(name) == "healthy", 60, every=0.2)

    def health(self, name: str) -> str:
        state = self.get(name).attrs["State"]
        assert state["Running"] or state["Restarting"], self.logs(name)
        return str(state["Health"]["Status"])

    def get(self, name: str) -> Any:
        return self.client.containers.get(f"signalbox-{name}-1")

    def logs(self, name: str) -> str:
        return self.compose("logs", "--no-color", "--tail", "60", name)

    def run(self, name: str, *command: str) -> tuple[int, str]:
        """``docker compose exec``."""
        done = self.compose.run("exec", "-T", name, *command)
        return done.returncode, done.stdout

    def ask(self, key: str, model: str = "m") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        with requests.Session() as session:
            session.trust_env = False
            url = f"http://127.0.0.1:{self.port}{CHAT}"
            return session.post(url, json=chat(model), headers=headers, timeout=10).status_code

    def state(self) -> dict[str, Any]:
        code, text = self.run("control", "signalbox", "status", "--json")
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)["state"]
        return found

    def models_of_the_page(self) -> list[str]:
        answer = requests.get(f"http://127.0.0.1:{self.page}/api/fleet", timeout=5).json()
        return [backend["model"] for backend in answer["backends"]]

    def end(self) -> None:
        """All away, by compose; what it leaves, and does not name, fails."""
        said = self.compose("down", "--volumes", "--timeout", "10")
        left = self.client.containers.list(all=True), self.client.volumes.list()
        self.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert left == ([], []), said


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
    """Everything made and begun with the commands of docs/deploy.md: images, a key, then all three services."""
    stack.compose("build", timeout=600)
    said = stack.compose("run", "--rm", "--no-deps", "control", "keys", "create", "alice")
    (found,) = [word for word in said.split() if word.startswith("sk-") and len(word) > 20]
    stack.compose("up", "-d")
    stack.until_healthy("redis", "edge", "control")
    return found


def test_compose_reads_the_file_as_it_is(stack: Stack) -> None:
    """With its own defaults alone; and these tests change no more of it than this."""
    bare = Compose(stack.dockerd.url, [COMPOSE], {}).config()["services"]
    ours = stack.compose.config()["services"]
    for name, service in bare.items():
        changed = {key for key in {*service, *ours[name]} if service.get(key) != ours[name].get(key)}
        assert changed <= {"image", "build", "volumes", "healthcheck", "ulimits", "group_add", "environment"}, name
        assert {entry["target"] for entry in service["volumes"]} <= {entry["target"] for entry in ours[name]["volumes"]}


def test_all_three_come_up_and_serve(stack: Stack, key: str) -> None:
    wait_until("an answer", lambda: stack.ask(key) == 200, 15, every=0.2)
    assert stack.ask("wrong") == 401
    state = stack.state()["state"]
    assert state["kind"] == "redis" and state["ok"] is True
    assert stack.models_of_the_page() == ["m"]
    assert stack.compose("exec", "-T", "edge", "signalbox", "check")


def test_they_have_no_rights(stack: Stack, key: str) -> None:
    for name in ("edge", "control", "redis"):
        _, said = stack.run(
            name, "/bin/sh", "-c", "exec 2>&1; id -u; touch /x /usr/x; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status"
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
    code, said = stack.run("control", "signalbox", "reload")
    assert code == 0 and "without a reload" in said and "reads fleet.yaml again" in said, said
    wait_until("the model to serve", lambda: stack.ask(key, "other") == 200, 10, every=0.2)
    wait_until("the page to know it", lambda: stack.models_of_the_page() == ["m", "other"], 10, every=0.2)
    stack.fleet["edge"]["max_body"] = "1m"
    stack.write()
    code, said = stack.run("edge", "signalbox", "reload")
    assert code == 0 and "generation 2" in said, said
    assert "generation 2" in stack.logs("edge")


def test_the_control_plane_starts_an_engine_in_a_container(stack: Stack, key: str) -> None:
    """By the socket that only it has. (What it does about containers, test_up.py shows.)"""
    stack.fleet["hosts"] = {"box": {"docker": "unix:///var/run/docker.sock", "volumes": volumes()}}
    engine = {"image": stack.dockerd.image(IMAGE), "command": COMMAND}
    stack.fleet["models"]["boxed"] = {"engine": engine, "backends": [{"host": "box", "port": free_port()}]}
    stack.write()
    code, said = stack.run("control", "signalbox", "up")
    assert code == 0 and "boxed-1: ready: serving" in said, said
    assert stack.ask(key, "boxed") == 200
    code, said = stack.run("control", "signalbox", "down", "boxed-1")
    assert code == 0 and "signalbox-boxed-1" not in [one.name for one in stack.client.containers.list(all=True)], said


def test_nginx_that_dies_is_started_again(stack: Stack, key: str) -> None:
    found = "import psutil; print(*[p.pid for p in psutil.process_iter() if 'master process' in ' '.join(p.cmdline())])"
    _, said = stack.run("edge", "/opt/signalbox/.venv/bin/python", "-c", found)
    stack.run("edge", "/bin/sh", "-c", f"kill -9 {said.split()[0]}")
    wait_until("a restart", lambda: stack.get("edge").attrs["RestartCount"] == 1, 15, every=0.1)
    assert "nginx ended by itself" in stack.logs("edge")
    stack.until_healthy("edge")
    wait_until("an answer", lambda: stack.ask(key) == 200, 15, every=0.2)


def ended(container: Any) -> Callable[[], int]:
    """What gives the exit code of a container that is going to end, and to be removed."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(container.wait(timeout=60)["StatusCode"]))
    thread.start()

    def code() -> int:
        thread.join(60)
        return codes[0]

    return code


def test_an_upgrade_ends_no_answer(stack: Stack, key: str) -> None:
    """As docs/deploy.md says it: first the control plane, then the edge, each from another image."""
    stack.client.images.get("signalbox:test").tag("signalbox", "next")
    upgrade = stack.with_image("signalbox:next")
    code = ended(stack.get("control"))
    upgrading = threading.Thread(target=upgrade, args=("up", "-d", "--no-deps", "control"))
    upgrading.start()
    while upgrading.is_alive():
        assert stack.ask(key) == 200
    assert code() == 0
    stack.until_healthy("control")

    code = ended(stack.get("edge"))
    with RawClient(stack.port) as client:
        body = chat("m", stream=True, tokens=30, delay_ms=100)
        client.request(CHAT, body, headers={"Authorization": f"Bearer {key}"})
        assert client.head().status == 200
        next(client.events())
        upgrading = threading.Thread(target=upgrade, args=("up", "-d", "--no-deps", "edge"))
        upgrading.start()
        assert len(list(client.events())) >= 30
    upgrading.join(60)
    assert code() == 0
    stack.until_healthy("edge")
    assert [stack.get(name).attrs["Config"]["Image"] for name in ("control", "edge")] == ["signalbox:next"] * 2
    assert stack.ask(key) == 200
