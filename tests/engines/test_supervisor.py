"""The supervisor with real processes: start, adopt, restart, give up, stop; no orphan is ever left."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from control.engines import local
from control.engines.health import unready
from control.engines.local import EngineStatus, Policy, Supervisor
from control.engines.prepare import LocalEngine, local_engines
from control.engines.processes import Record
from control.engines.progress import Progress
from control.engines.recorded import stop_recorded
from control.fleet.load import LoadedFleet, load
from control.paths import REPOSITORY, StatePaths
from tests.support.net import free_port

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

SCRIPTED = ["{python}", "-m", "tests.scripted", "--port", "{port}", "--name", "{name}"]
FAST = Policy(poll=0.05, pauses=(0.05,), quick=60, give_up_after=3, retry=0.2)


class Stand:
    """A state folder and a fleet of local engines; whatever was started in it is ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = StatePaths(folder / "state")
        self.supervisors: list[Supervisor] = []

    def fleet(
        self,
        ports: list[int],
        command: list[str] = SCRIPTED,
        *,
        name: str = "m",
        address: str = "127.0.0.1",
        backend: dict[str, Any] | None = None,
        **engine: Any,
    ) -> LoadedFleet:
        model = {
            "engine": {"command": command, "stop_timeout": "5s", **engine},
            "backends": [{"host": "here", "port": port, **(backend or {})} for port in ports],
        }
        file = self.folder / "fleet.yaml"
        hosts = {"here": {"local": True, "address": address}}
        file.write_text(yaml.safe_dump({"hosts": hosts, "models": {name: model}}))
        return load(file)

    def supervise(self, loaded: LoadedFleet, policy: Policy = FAST) -> Supervisor:
        supervisor = Supervisor(loaded, self.paths, policy)
        self.supervisors.append(supervisor)
        supervisor.start()
        return supervisor

    def program(self, text: str) -> str:
        """A Python file with this text."""
        file = self.folder / "program.py"
        file.write_text(text)
        return str(file)

    def log(self, identity: str = "m-1") -> str:
        return (self.paths.engine(identity) / "engine.log").read_text()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    for supervisor in stand.supervisors:
        supervisor.stop_all()
    stop_recorded(stand.paths)
    assert mentioning(str(tmp_path)) == []


def mentioning(text: str) -> list[str]:
    """Processes whose working folder or command line has ``text``."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if text in line or process.cwd().startswith(text):
                found.append(line)
        except psutil.Error:
            continue
    return found


def lives(pid: int | None) -> bool:
    """Whether the process runs; a zombie that its parent has not reaped does not."""
    assert pid is not None
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait(
    supervisor: Supervisor, wanted: Callable[[list[EngineStatus]], bool], seconds: float = 20
) -> list[EngineStatus]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = supervisor.status()
        if wanted(status):
            return status
        time.sleep(0.02)
    raise AssertionError(f"not reached in {seconds} s: {supervisor.status()}")


def all_ready(status: list[EngineStatus]) -> bool:
    return all(engine.state == "ready" for engine in status)


def failed(status: list[EngineStatus]) -> bool:
    return status[0].state == "failed"


def test_starts_engines_and_stops_them(stand: Stand) -> None:
    ports = [free_port(), free_port()]
    supervisor = stand.supervise(stand.fleet(ports))
    status = wait(supervisor, all_ready)
    assert [(engine.id, engine.model, engine.port) for engine in status] == [
        ("m-1", "m", ports[0]),
        ("m-2", "m", ports[1]),
    ]
    assert requests.get(f"http://127.0.0.1:{ports[1]}/v1/models", timeout=5).json()["data"][0]["id"] == "m"
    pids = [engine.pid for engine in status]
    record = Record.load(stand.paths.engine("m-1"))
    assert record is not None and record.pid == pids[0] and record.port == ports[0]
    supervisor.stop_all()
    assert not any(lives(pid) for pid in pids)
    assert {engine.state for engine in supervisor.status()} == {"stopped"}
    assert not (stand.paths.engine("m-1") / "process.json").exists()
    assert (stand.paths.engine("m-1") / "engine.log").exists()  # for whoever wants to know later


def test_adopts_engines_of_an_earlier_control_plane(stand: Stand) -> None:
    loaded = stand.fleet([free_port()])
    first = stand.supervise(loaded)
    pid = wait(first, all_ready)[0].pid
    first.close()
    second = stand.supervise(loaded)
    status = wait(second, all_ready, 5)[0]
    assert (status.pid, status.restarts) == (pid, 0)
    second.stop_all()
    assert not lives(pid)


def test_adopts_after_the_control_plane_was_killed(stand: Stand) -> None:
    loaded = stand.fleet([free_port()])
    program = (
        "import sys, time; from pathlib import Path\n"
        "from control.engines.local import Supervisor; from control.fleet.load import load\n"
        "from control.paths import StatePaths\n"
        "Supervisor(load(Path(sys.argv[1])), StatePaths(Path(sys.argv[2]))).start(); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", program, str(loaded.path), str(stand.paths.root)]
    daemon = subprocess.Popen(arguments, cwd=REPOSITORY)
    try:
        deadline = time.monotonic() + 20
        while not (record := Record.load(stand.paths.engine("m-1"))) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        daemon.kill()
        daemon.wait()
    assert record is not None and psutil.pid_exists(record.pid)
    status = wait(stand.supervise(loaded), all_ready)[0]
    assert status.pid == record.pid


def test_restarts_an_adopted_engine_whose_start_changed(stand: Stand) -> None:
    port = free_port()
    first = stand.supervise(stand.fleet([port]))
    pid = wait(first, all_ready)[0].pid
    first.close()
    second = stand.supervise(stand.fleet([port], environment={"COLOUR": "green"}))
    status = wait(second, all_ready)[0]
    assert status.pid != pid
    assert not lives(pid)
    assert psutil.Process(status.pid).environ()["COLOUR"] == "green"


def test_a_recycled_pid_is_not_adopted(stand: Stand) -> None:
    """process.json of an engine that is gone, whose pid is somebody else's now: that one is left alone."""
    loaded = stand.fleet([free_port()])
    first = stand.supervise(loaded)
    wait(first, all_ready)
    record = Record.load(stand.paths.engine("m-1"))
    assert record is not None
    first.stop_all()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        Record(**{**vars(record), "pid": stranger.pid}).save(stand.paths.engine("m-1"))
        second = stand.supervise(loaded)
        status = wait(second, all_ready)[0]
        second.stop_all()
        assert status.pid != stranger.pid and stranger.poll() is None
        stranger.kill()


def test_a_group_of_the_last_boot_is_not_ended(stand: Stand) -> None:
    """process.json of before a reboot: its pid is dead, but a group has that number again. It is a stranger's."""
    loaded = stand.fleet([free_port()])
    first = stand.supervise(loaded)
    wait(first, all_ready)
    record = Record.load(stand.paths.engine("m-1"))
    assert record is not None
    first.stop_all()
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        stranger = int(leader.stdout.readline())
        leader.wait()
        try:
            ticks = record.birth.partition(":")[2]
            stale = Record(**{**vars(record), "pid": leader.pid, "birth": f"the-last-boot:{ticks}"})
            stale.save(stand.paths.engine("m-1"))
            second = stand.supervise(loaded)
            wait(second, all_ready)
            assert lives(stranger)
            second.stop_all()
            stale.save(stand.paths.engine("m-1"))
            assert stop_recorded(stand.paths) == ["m-1"] and lives(stranger)
        finally:
            os.kill(stranger, signal.SIGKILL)


def test_restarts_an_engine_that_dies(stand: Stand) -> None:
    supervisor = stand.supervise(stand.fleet([free_port()]))
    pid = wait(supervisor, all_ready)[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    status = wait(supervisor, lambda status: status[0].restarts == 1 and all_ready(status))[0]
    assert status.pid != pid


def test_gives_up_after_repeated_quick_deaths_and_says_why(stand: Stand) -> None:
    crash = ["{python}", "-c", "raise ValueError('no room for the model')"]
    supervisor = stand.supervise(stand.fleet([free_port()], crash))
    status = wait(supervisor, lambda status: status[0].phase == "given up")[0]
    assert status.state == "failed"
    assert status.detail == (
        "died 3 times in a row: The engine ended by itself with exit code 1: ValueError: no room for the model"
    )
    assert status.failure is not None and status.failure.kind == "unknown"
    assert status.failure.lines[-1] == "ValueError: no room for the model"
    assert stand.log().count("Traceback") == 3


def test_a_changed_fleet_gets_another_try_after_giving_up(stand: Stand) -> None:
    port = free_port()
    supervisor = stand.supervise(stand.fleet([port], ["{python}", "-c", "raise SystemExit(3)"]))
    status = wait(supervisor, lambda status: status[0].phase == "given up")[0]
    assert "exit code 3" in status.detail
    supervisor.reload(stand.fleet([port]))
    wait(supervisor, all_ready)


def test_reload_starts_new_engines_and_stops_removed_ones(stand: Stand) -> None:
    first, second = free_port(), free_port()
    supervisor = stand.supervise(stand.fleet([first, second]))
    before = [engine.pid for engine in wait(supervisor, all_ready)]
    supervisor.reload(stand.fleet([first]))
    deadline = time.monotonic() + 10
    while lives(before[1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(before[1])
    assert [engine.pid for engine in supervisor.status()] == before[:1]


def test_engines_of_backends_that_left_the_fleet_are_stopped_at_the_next_start(stand: Stand) -> None:
    first, second = free_port(), free_port()
    earlier = stand.supervise(stand.fleet([first, second]))
    gone = wait(earlier, all_ready)[1].pid
    earlier.close()
    wait(stand.supervise(stand.fleet([first])), all_ready)
    deadline = time.monotonic() + 10
    while lives(gone) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(gone)


def test_a_port_of_a_stranger_is_named_and_used_once_it_is_free(stand: Stand) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    supervisor = stand.supervise(stand.fleet([server.server_port]))
    status = wait(supervisor, failed)[0]
    assert status.phase == "port taken"
    assert f"port {server.server_port} is taken by process {os.getpid()}" in status.detail
    server.server_close()
    wait(supervisor, all_ready)


@pytest.mark.parametrize("address", ["203.0.113.7", "host.invalid"])
def test_an_address_of_another_machine_is_named(stand: Stand, address: str) -> None:
    supervisor = stand.supervise(stand.fleet([free_port()], address=address))
    status = wait(supervisor, failed)[0]
    assert status.phase == "cannot listen" and address in status.detail and "fleet.yaml" in status.detail
    assert "nobody" not in status.detail and "Stop it" not in status.detail


def test_an_old_engine_of_ours_is_waited_for(stand: Stand) -> None:
    """A model gets another name, its engine's port stays: the new engine starts when the old one has ended."""
    slow = (
        "import runpy, sys, time, uvicorn\n"
        "end = uvicorn.Server.handle_exit\n"
        "uvicorn.Server.handle_exit = lambda *a: (time.sleep(1.5), end(*a))\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', sys.argv[2]]\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    command, port = ["{python}", stand.program(slow), "{port}", "{name}"], free_port()
    supervisor = stand.supervise(stand.fleet([port], command))
    wait(supervisor, all_ready)
    supervisor.reload(stand.fleet([port], command, name="renamed"))
    seen = []

    def ready(status: list[EngineStatus]) -> bool:
        seen.append((status[0].state, status[0].phase))
        return all_ready(status)

    wait(supervisor, ready)
    assert ("starting", "waiting for m-1 to end") in seen
    assert not [state for state, _ in seen if state == "failed"]


@pytest.mark.parametrize("kind", ["key_file", "key_env"])
def test_an_engine_with_a_key_becomes_ready(stand: Stand, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    key = "sk-secret-of-this-engine"
    file = stand.folder / "engine.key"
    file.write_text(f" {key}\n")
    monkeypatch.setenv("KEY_OF_THE_ENGINE", key)
    backend = {kind: str(file) if kind == "key_file" else "KEY_OF_THE_ENGINE"}
    guarded = (
        "import runpy, sys, pathlib\n"
        "key = pathlib.Path(sys.argv[2]).read_text().strip()\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', 'm', '--api-key', key]\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    command = ["{python}", stand.program(guarded), "{port}", str(file)]
    port = free_port()
    first = stand.supervise(stand.fleet([port], command, backend=backend))
    pid = wait(first, all_ready)[0].pid
    assert requests.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).status_code == 401
    first.close()
    second = stand.supervise(stand.fleet([port], command, backend=backend))
    assert wait(second, all_ready)[0].pid == pid
    assert not [line for line in mentioning(str(stand.folder)) if key in line]
    assert key not in stand.log() and key not in (stand.paths.engine("m-1") / "process.json").read_text()
    file.write_text("another\n")
    monkeypatch.setenv("KEY_OF_THE_ENGINE", "another")
    detail = unready(local_engines(stand.fleet([port], command, backend=backend))[0].spec)
    assert "401" in detail and "another key than" in detail


def test_an_unexpected_error_is_told_and_leaves_no_engine(stand: Stand) -> None:
    """The record cannot be written (a full disk): the engine that nobody would know is ended, and tried again."""
    loaded = stand.fleet([free_port()])
    obstacle = stand.paths.engine("m-1") / "process.json.new"
    obstacle.mkdir(parents=True)
    supervisor = stand.supervise(loaded)
    status = wait(supervisor, failed)[0]
    assert "process.json.new" in status.detail and "control.log" in status.detail
    assert not [line for line in mentioning(str(REPOSITORY)) if f"--port {status.port} " in line]
    obstacle.rmdir()
    pid = wait(supervisor, all_ready)[0].pid
    supervisor.stop_all()
    assert not lives(pid)


def test_stop_all_during_an_installation_ends_the_old_engine(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of before still serves while something new is installed for it: it does not outlive stop_all."""
    loaded = stand.fleet([free_port()])
    first = stand.supervise(loaded)
    pid = wait(first, all_ready)[0].pid
    first.close()

    def endless(engine: LocalEngine, paths: StatePaths, progress: Progress) -> None:
        while True:
            progress("Installing")
            time.sleep(0.02)

    monkeypatch.setattr(local, "prepare", endless)
    second = stand.supervise(loaded)
    wait(second, lambda status: status[0].state == "installing")
    assert lives(pid)
    second.stop_all()
    assert not lives(pid)


def test_stop_all_waits_for_engines_that_left_the_fleet(stand: Stand) -> None:
    slow = (
        "import runpy, sys, time, uvicorn\n"
        "end = uvicorn.Server.handle_exit\n"
        "uvicorn.Server.handle_exit = lambda *a: (time.sleep(1), end(*a))\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', 'm']\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", stand.program(slow), "{port}"]))
    gone = wait(supervisor, all_ready)[0].pid
    supervisor.reload(stand.fleet([free_port()], ["/nowhere"], name="other"))
    supervisor.stop_all()
    assert not lives(gone)


def test_another_program_that_answers_is_not_ready(stand: Stand) -> None:
    """Only an engine that lists the model's name is ready; after start_timeout it is ended and counted as dead."""
    other_name = [*SCRIPTED[:-1], "other"]
    supervisor = stand.supervise(stand.fleet([free_port()], other_name, start_timeout="2s"))
    status = wait(supervisor, failed)[0]
    assert status.detail == (
        "The engine was not ready after 2 s (listing models): /v1/models lists other, not m. "
        "It serves another model than it was told: check models.m.engine.command, or its image."
    )


def test_no_orphan_of_an_engine_with_children(stand: Stand) -> None:
    """The leader ends at TERM but leaves a child that ignores it, and one in a session of its own."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    leader = (
        "import runpy, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', 'm']\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", stand.program(leader), "{port}"]))
    pid = wait(supervisor, all_ready)[0].pid
    family = psutil.Process(pid).children(recursive=True)
    assert len(family) == 2
    supervisor.stop_all()
    assert not any(lives(process.pid) for process in family)


def test_children_that_outlive_a_dead_leader_are_ended_before_the_restart(stand: Stand) -> None:
    leader = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "raise SystemExit(1)"
    )
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", stand.program(leader)]))
    wait(supervisor, lambda status: status[0].phase == "given up")
    assert mentioning(str(stand.folder)) == []


def test_an_engine_that_ignores_term_is_killed_after_stop_timeout(stand: Stand) -> None:
    stubborn = (
        "import runpy, signal, sys\n"
        "import uvicorn; uvicorn.Server.handle_exit = lambda *a: None\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', 'm']\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    command = ["{python}", stand.program(stubborn), "{port}"]
    supervisor = stand.supervise(stand.fleet([free_port()], command, stop_timeout="1s"))
    pid = wait(supervisor, all_ready)[0].pid
    began = time.monotonic()
    supervisor.stop_all()
    assert 0.9 < time.monotonic() - began < 4
    assert not lives(pid)


def test_stops_recorded_engines_without_a_supervisor(stand: Stand) -> None:
    supervisor = stand.supervise(stand.fleet([free_port(), free_port()]))
    pids = [engine.pid for engine in wait(supervisor, all_ready)]
    supervisor.close()
    assert stop_recorded(stand.paths) == ["m-1", "m-2"]
    assert not any(lives(pid) for pid in pids)
    assert stop_recorded(stand.paths) == []


def test_a_command_that_does_not_exist_fails_with_its_name(stand: Stand) -> None:
    supervisor = stand.supervise(stand.fleet([free_port()], ["/nowhere/vllm"]))
    status = wait(supervisor, failed)[0]
    assert "/nowhere/vllm: No such file or directory" in status.detail


def test_engine_log_is_bounded_while_the_engine_writes(tmp_path: Path) -> None:
    from control.engines.processes import bound

    log = tmp_path / "engine.log"
    with log.open("ab") as writer:
        writer.write(b"a" * 1000)
        writer.flush()
        assert not bound(log, 1000)
        assert bound(log, 999)
        writer.write(b"b")
    assert (log.read_bytes(), (tmp_path / "engine.log.1").read_bytes()) == (b"b", b"a" * 1000)


def test_stop_all_while_an_engine_still_starts(stand: Stand) -> None:
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", "-c", "import time; time.sleep(300)"]))
    pid = wait(supervisor, lambda status: status[0].pid is not None)[0].pid
    done = threading.Event()
    threading.Thread(target=lambda: (supervisor.stop_all(), done.set())).start()
    assert done.wait(10)
    assert not lives(pid)
