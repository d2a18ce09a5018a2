"""One Docker Engine for all tests here, and fleets on it that are driven by the command line as people do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.engines.ownership import fleet_id
from control.paths import REPOSITORY, StatePaths
from tests.support import processes
from tests.support.dockerd import Dockerd, volumes
from tests.support.net import free_port

IMAGE = "scripted:1"
COMMAND = [sys.executable, "-m", "tests.scripted", "--host", "{host}", "--port", "{port}", "--name", "{name}"]


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    with Dockerd() as engine:
        engine.image(IMAGE)
        yield engine


class Place:
    """A folder with a fleet.yaml: one model on containers of a Docker host."""

    def __init__(self, dockerd: Dockerd, backends: int = 2, **engine: Any) -> None:
        self.dockerd = dockerd
        self.folder = Path(tempfile.mkdtemp(prefix="containers-"))
        self.folder.chmod(0o755)  # nginx's workers run as another user
        self.paths = StatePaths((self.folder / ".signalbox").resolve())
        self.fleet: dict[str, Any] = {
            "edge": {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "workers": 1},
            "control": {"listen": f"127.0.0.1:{free_port()}"},
            "hosts": {"box": {"docker": dockerd.url, "volumes": volumes()}},
            "models": {
                "m": {
                    "engine": {
                        "image": IMAGE,
                        "command": COMMAND,
                        "stop_timeout": "3s",
                        "start_timeout": "30s",
                        **engine,
                    },
                    "routing": {"policy": "least_loaded"},
                    "backends": [{"host": "box", "port": free_port()} for _ in range(backends)],
                }
            },
        }
        self.write()

    @property
    def engine(self) -> dict[str, Any]:
        found: dict[str, Any] = self.fleet["models"]["m"]["engine"]
        return found

    @property
    def url(self) -> str:
        return f"http://{self.fleet['edge']['listen']}"

    @property
    def port(self) -> int:
        return int(self.fleet["edge"]["listen"].partition(":")[2])

    def write(self) -> None:
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(self.fleet, sort_keys=False))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "control", "--fleet", str(self.folder / "fleet.yaml"), *arguments]
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def call(self, *arguments: str, code: int = 0, timeout: float = 100) -> str:
        """Run the command to its end; its output. Fails when it does not end with ``code``."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=timeout)
        assert process.returncode == code, output
        return output

    def status(self, code: int = 0) -> dict[str, dict[str, Any]]:
        """The containers, by backend."""
        rows = json.loads(self.call("status", "--json", code=code))["containers"]
        return {row["id"]: row for row in rows}

    def page(self) -> dict[str, dict[str, Any]]:
        """What the control plane says of each engine."""
        answer = requests.get(f"http://{self.fleet['control']['listen']}/api/fleet", timeout=5).json()
        return {row["id"]: row["engine"] or {} for row in answer["backends"]}

    def daemon(self) -> int:
        """The pid of its control plane."""
        return int(self.paths.control_pid.read_text().split()[0])

    def uses(self) -> dict[str, dict[str, Any]]:
        """What the control plane says that each engine uses now."""
        answer = requests.get(f"http://{self.fleet['control']['listen']}/api/fleet", timeout=5).json()
        return {row["id"]: (row["use"] or {}).get("now") or {} for row in answer["backends"]}

    def nvidia_smi(self, says: str) -> None:
        """Containers from now on have an nvidia-smi that runs ``says`` (sh) again and again, as with ``-l``."""
        folder = self.folder / "fake"
        folder.mkdir(exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nwhile {says}; do sleep 1; done\n")
        program.chmod(0o755)
        self.engine["volumes"] = [f"{folder}:/fake"]
        self.engine["environment"] = {"PATH": "/fake:/usr/local/bin:/usr/bin:/bin"}
        self.write()

    def containers(self) -> list[dict[str, Any]]:
        """All containers of this fleet, as Docker describes them."""
        with self.dockerd.client() as client:
            label = {"label": f"signalbox.fleet={fleet_id(self.paths)}"}
            return [client.api.inspect_container(row["Id"]) for row in client.api.containers(all=True, filters=label)]

    def names(self) -> list[str]:
        return sorted(row["Name"].lstrip("/") for row in self.containers())

    def running(self, name: str) -> bool:
        return any(row["Name"] == f"/{name}" and row["State"]["Running"] for row in self.containers())

    def ask(self) -> int:
        """The status of one short request through the edge."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        return requests.post(f"{self.url}/v1/chat/completions", json=body, timeout=30).status_code

    def end(self) -> list[str]:
        """End everything; command lines of what is left."""
        process = self.start("down", "--now")
        process.communicate(timeout=100)
        with self.dockerd.client() as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        left = processes.of_folder(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


@pytest.fixture
def place(dockerd: Dockerd) -> Iterator[Place]:
    place = Place(dockerd)
    yield place
    assert place.end() == []
