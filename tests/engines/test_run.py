"""``signalbox run`` and ``down`` as a person types them, with scripted engines on free ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.engines.processes import LOG_LIMIT, Record
from control.paths import REPOSITORY, StatePaths
from control.serve import daemon_pid
from tests.support import processes
from tests.support.net import free_port, wait_until

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

SCRIPTED = ["{python}", "-m", "tests.scripted", "--port", "{port}", "--name", "{name}"]


class Place:
    """A folder with a fleet.yaml on free ports, and the command line in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="run-"))
        self.folder.chmod(0o755)  # nginx's workers run as another user when root starts it
        self.paths = StatePaths((self.folder / ".signalbox").resolve())
        self.fleet: dict[str, Any] = {
            "edge": {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "workers": 1},
            "control": {"listen": f"127.0.0.1:{free_port()}"},
            "hosts": {"here": {"local": True}},
            "models": {
                "m": {
                    "engine": {"command": SCRIPTED, "stop_timeout": "5s"},
                    "backends": [{"host": "here", "port": free_port()}, {"host": "here", "port": free_port()}],
                }
            },
        }
        self.write()

    def write(self) -> None:
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(self.fleet, sort_keys=False))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "control", "--fleet", str(self.folder / "fleet.yaml"), *arguments]
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def call(self, *arguments: str, code: int = 0) -> str:
        """Run the command to its end; its output. Fails when it does not end with ``code``."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        return output

    @property
    def pids(self) -> dict[str, int]:
        """Pids of everything that runs: edge, control plane, engines."""
        found = {"control": daemon_pid(self.paths) or 0, "edge": 0}
        if self.paths.edge_pid.exists():
            found["edge"] = int(self.paths.edge_pid.read_text())
        for file in (self.paths.root / "engines").glob("*/process.json"):
            record = Record.load(file.parent)
            assert record is not None
            found[file.parent.name] = record.pid
        return found

    def left(self) -> list[str]:
        """Processes that have to do with this folder."""
        return processes.of_folder(self.folder)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    try:
        yield place
    finally:
        place.write()
        place.start("down", "--now").communicate(timeout=60)
        left = place.left()
        shutil.rmtree(place.folder, ignore_errors=True)
    assert left == []


def printed_curl(output: str) -> str:
    match = re.search(r"^ +(curl .*\\\n.*)$", output, re.MULTILINE)
    assert match is not None, output
    return match[1]


def test_up_ask_again_and_down(place: Place) -> None:
    output = place.call("run")
    assert f"http://{place.fleet['control']['listen']}/" in output
    pids = place.pids
    assert set(pids) == {"control", "edge", "m-1", "m-2"} and all(pids.values())

    answer = subprocess.run(["sh", "-c", printed_curl(output)], capture_output=True, text=True, timeout=20)
    events = [line.removeprefix("data: ") for line in answer.stdout.splitlines() if line]
    assert events[-1] == "[DONE]" and json.loads(events[0])["model"] == "m"

    again = place.call("run")
    assert "runs already" in again and "Nothing changed" in again and printed_curl(again) == printed_curl(output)
    assert place.pids == pids

    place.fleet["models"]["m"]["aliases"] = ["other-name"]
    place.fleet["models"]["m"]["backends"].pop()
    place.write()
    place.call("run")
    assert {"control": pids["control"], "edge": pids["edge"], "m-1": pids["m-1"]}.items() <= place.pids.items()
    wait_until("the second engine to end", lambda: "m-2" not in place.pids)

    output = place.call("down")
    assert output.endswith("Nothing of this fleet runs any more.\n")
    assert place.left() == []
    assert place.pids == {"control": 0, "edge": 0}
    assert not place.paths.control_pid.exists() and not place.paths.edge_pid.exists()
    for address in (place.fleet["edge"]["listen"], place.fleet["edge"]["admin"], place.fleet["control"]["listen"]):
        assert not listens(address)
    assert (place.paths.engine("m-1") / "engine.log").exists() and place.paths.control_log.exists()
    assert "The edge was not running." in place.call("down")


def listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_engines_survive_the_control_plane_and_are_adopted(place: Place) -> None:
    place.call("run")
    before = place.pids
    os.kill(before["control"], signal.SIGKILL)
    wait_until("the control plane to be gone", lambda: daemon_pid(place.paths) is None)
    place.call("run")
    after = place.pids
    assert after["control"] != before["control"]
    assert {key: after[key] for key in ("edge", "m-1", "m-2")} == {key: before[key] for key in ("edge", "m-1", "m-2")}


def test_down_works_without_the_control_plane(place: Place) -> None:
    place.call("run")
    os.kill(place.pids["control"], signal.SIGKILL)
    output = place.call("down")
    assert "The engine m-1 was stopped." in output and "The engine m-2 was stopped." in output
    assert place.left() == []


def test_down_works_while_the_fleet_is_broken(place: Place) -> None:
    place.call("run")
    (place.folder / "fleet.yaml").write_text("models: [")
    output = place.call("down", code=1)
    assert place.left() == []
    assert f"only the usual state folder was looked at, {place.paths.root}" in output and "make stop" in output


def test_an_engine_that_fails_is_told_with_its_reason_and_log(place: Place) -> None:
    program = place.folder / "crash.py"
    program.write_text("print('about to fail')\nraise ValueError('no room for the model')\n")
    place.fleet["models"]["m"]["engine"]["command"] = ["{python}", str(program)]
    place.write()
    output = place.call("run", code=1)
    assert re.search(r"Error: The engine m-[12] failed \(.*\): .*ValueError: no room for the model", output), output
    assert "about to fail" in output and "engine.log" in output and "run the same command again" in output

    place.fleet["models"]["m"]["engine"]["command"] = SCRIPTED
    place.write()
    assert "Ready." in place.call("run")  # the same command again, as the message says


def test_what_fails_early_starts_nothing(place: Place) -> None:
    host, port = place.fleet["edge"]["listen"].split(":")
    with socket.create_server((host, int(port))):
        output = place.call("run", code=1)
    assert f"{host}:{port} is in use by process {os.getpid()}" in output
    assert place.left() == [] and not (place.paths.root / "engines").exists()


@pytest.mark.parametrize("after", [0.3, 1.0])
def test_ctrl_c_leaves_a_state_that_down_cleans(place: Place, after: float) -> None:
    process = place.start("run")
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    place.call("down")
    assert place.left() == []
    assert "Ready." in place.call("run")


def test_down_says_so_when_the_state_folder_was_changed(place: Place) -> None:
    place.call("run")
    edited = {**place.fleet, "control": {**place.fleet["control"], "state_dir": "elsewhere"}}
    (place.folder / "fleet.yaml").write_text(yaml.safe_dump(edited))
    for command in ("down", "run"):
        output = place.call(command, code=1)
        assert f"runs from the state folder {place.paths.root}" in output, output
        assert f"state_dir: {place.paths.root}" in output and "Nothing" not in output
    os.kill(place.pids["control"], signal.SIGKILL)  # now only the edge tells
    wait_until("the control plane to be gone", lambda: daemon_pid(place.paths) is None)
    output = place.call("down", code=1)
    assert f"its state folder is {place.paths.root}" in output, output

    place.write()  # the old one is back, as the message says
    assert "Nothing of this fleet runs any more." in place.call("down")
    assert place.left() == []


def test_a_broken_fleet_whose_state_lies_elsewhere_is_not_said_to_be_down(place: Place) -> None:
    place.fleet["control"]["state_dir"] = "elsewhere"
    place.write()
    place.call("run")
    place.paths.root.mkdir()  # an old one, empty
    (place.folder / "fleet.yaml").write_text("models: [")
    output = place.call("down", code=1)
    assert f"runs from the state folder {place.folder / 'elsewhere'}" in output, output
    assert "Nothing of this fleet" not in output


def test_a_refused_change_stops_no_engine(place: Place) -> None:
    place.call("run")
    pids = place.pids
    address = place.fleet["edge"]["listen"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place.fleet["edge"]["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        place.fleet["models"]["m"]["engine"]["environment"] = {"COLOUR": "green"}  # would restart both engines
        place.fleet["models"]["m"]["backends"].pop()
        place.write()
        assert "is in use by process" in place.call("run", code=1)
        time.sleep(1)
        assert place.pids == pids
        assert listens(address)


def test_a_changed_address_of_the_page_restarts_the_control_plane_alone(place: Place) -> None:
    place.call("run")
    before = place.pids
    place.fleet["control"]["listen"] = f"127.0.0.1:{free_port()}"
    place.write()
    output = place.call("run")
    assert "control.listen changed from" in output and f"http://{place.fleet['control']['listen']}/" in output
    after = place.pids
    assert after.pop("control") != before.pop("control") and after == before
    assert listens(place.fleet["control"]["listen"])


def test_a_control_plane_that_does_not_answer_is_told(place: Place) -> None:
    place.call("run")
    pid = place.pids["control"]
    program = (
        "import sys; from pathlib import Path; from rich.console import Console; import control.run as run, requests\n"
        "run.CONTROL_TIMEOUT = 1.0; requests.Session.get = lambda *a, **k: exec('raise requests.Timeout')\n"
        "run.run(Path(sys.argv[1]), Console())"
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(place.folder / "fleet.yaml")], cwd=REPOSITORY, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"The control plane (pid {pid}) runs, but does not answer at" in done.stderr, done.stderr


def test_two_runs_at_once_follow_each_other(place: Place) -> None:
    both = [place.start("run"), place.start("run")]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    first, second = sorted(outputs, key=lambda output: "Another run" in output)
    assert "Another run" not in first
    assert "Another run of this fleet is at work; waiting for it" in second and "runs already" in second
    assert set(place.pids) == {"control", "edge", "m-1", "m-2"}


def test_control_log_is_bounded_while_the_control_plane_runs(place: Place) -> None:
    place.call("run")
    with place.paths.control_log.open("ab") as log:
        log.truncate(LOG_LIMIT + 1)
    os.kill(place.pids["control"], signal.SIGHUP)  # it looks at once, not only at the next turn
    wait_until("the old log", place.paths.control_log.with_name("control.log.1").exists, 10)
    wait_until("the new log", lambda: 0 < place.paths.control_log.stat().st_size < 10_000)
    assert "control.log was full" in place.paths.control_log.read_text()


def test_engines_of_others_are_ready_or_named_before_it_says_ready(place: Place) -> None:
    port = free_port()
    url = {"url": f"http://127.0.0.1:{port}"}
    place.fleet["models"] = {"theirs": {"backends": [url]}}
    place.write()
    output = place.call("run")
    assert "Ready." not in output and printed_curl(output)
    assert re.search(rf"theirs-1 of theirs at \S*127.0.0.1:{port} is not ready: .*refused", output), output

    command = [sys.executable, "-m", "tests.scripted", "--port", str(port), "--name", "theirs"]
    with subprocess.Popen(command, cwd=REPOSITORY) as engine:
        try:
            output = place.call("run")
            assert "Ready." in output
            answer = subprocess.run(["sh", "-c", printed_curl(output)], capture_output=True, text=True, timeout=20)
            assert "[DONE]" in answer.stdout
        finally:
            engine.terminate()


def test_down_where_nothing_ever_ran(place: Place) -> None:
    assert place.call("down") == "Nothing was ever started here.\n"
