"""The daemon as a process: starts, refuses, reloads, rotates, and what becomes of its engines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from control import alive, engine_report
from control.errors import ControlError
from control.fleet.load import load
from control.host import pid_namespace
from control.paths import StatePaths
from control.serve import daemon_address, daemon_pid, listen, only_one
from control.web.logins import set_login
from tests.support.net import REPOSITORY, free_port, wait_until
from tests.web.conftest import Daemon, Stack, serve_app
from tests.web.fakes import Sources

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

COMMAND = ["{python}", "-m", "tests.scripted", "--port", "{port}", "--name", "{name}"]


def lives(pid: int) -> bool:
    """Whether the process runs; one that only waits for its parent to read its exit code does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Local:
    """A fleet of local engines in a folder of its own, and its daemon."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "fleet.yaml"
        self.paths = StatePaths(folder / "state")
        self.port, self.admin = free_port(), free_port()
        self.daemon = Daemon(self.file, self.port)
        self.engine_ports = [free_port()]
        self.write()

    def write(self, **control: Any) -> None:
        """fleet.yaml with one engine per port."""
        engine = {"command": COMMAND, "environment": {"PYTHONPATH": str(REPOSITORY), "SECRET": "hunter2"}}
        backends = [{"host": "here", "port": port} for port in self.engine_ports]
        fleet = {
            "edge": {"admin": f"127.0.0.1:{self.admin}", "listen": f"127.0.0.1:{free_port()}"},
            "control": {"listen": f"127.0.0.1:{self.port}", "state_dir": "state", **control},
            "hosts": {"here": {"local": True}},
            "models": {"m": {"engine": engine, "backends": backends}},
        }
        self.file.write_text(yaml.safe_dump(fleet))

    def engines(self) -> dict[str, dict[str, Any]]:
        """What the page knows of the engines' processes."""
        return {b["id"]: b["engine"] for b in self.daemon.facts()["backends"] if b["engine"]}

    def until_ready(self, *ids: str) -> dict[str, int]:
        """Wait until exactly these engines are ready; their pids."""

        def ready() -> bool:
            return dict.fromkeys(ids, "ready") == {id_: engine["state"] for id_, engine in self.engines().items()}

        wait_until(f"{ids} to be ready", ready, 20, every=0.1)
        return {id_: engine["pid"] for id_, engine in self.engines().items()}

    def clean_up(self) -> None:
        """End whatever a failed test left."""
        with contextlib.suppress(AssertionError, AttributeError):
            self.daemon.stop()
        for record in self.paths.root.glob("engines/*/process.json"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    yield local
    local.clean_up()


def test_engines_outlive_a_killed_daemon_and_end_with_a_told_one(local: Local) -> None:
    local.daemon.start()
    pids = local.until_ready("m-1")
    assert daemon_pid(local.paths) == local.daemon.process.pid
    address = f"127.0.0.1:{local.port}"
    assert local.paths.control_pid.read_text() == f"{local.daemon.process.pid}\n{address}\n{pid_namespace()}\n"
    assert daemon_address(local.paths) == address

    local.daemon.tell(signal.SIGKILL)
    local.daemon.process.wait()
    assert daemon_pid(local.paths) is None and local.paths.control_pid.exists(), "the pid file is stale now"
    assert lives(pids["m-1"])

    local.daemon.start()
    assert local.until_ready("m-1") == pids, "adopted, not started again"
    assert local.daemon.stop() == 0
    assert not lives(pids["m-1"])
    assert not local.paths.control_pid.exists()
    text = local.daemon.text()
    assert "Told to stop (SIGTERM)" in text and "Traceback" not in text and "hunter2" not in text


def test_hangup_reads_the_fleet_again_and_a_broken_one_changes_nothing(local: Local) -> None:
    local.daemon.start()
    pids = local.until_ready("m-1")
    good = local.file.read_text()
    local.file.write_text(good.replace("policy", "polizy") + "\nunknown_key: 1\n")
    local.daemon.tell(signal.SIGHUP)
    wait_until("the complaint", lambda: "the old one stays in force" in local.daemon.text(), 5)
    assert "unknown_key" in local.daemon.text()
    assert local.until_ready("m-1") == pids

    local.engine_ports.append(free_port())
    local.write()
    local.daemon.tell(signal.SIGHUP)
    both = local.until_ready("m-1", "m-2")
    assert both["m-1"] == pids["m-1"], "the first engine was left alone"

    del local.engine_ports[1]
    local.write()
    local.daemon.tell(signal.SIGHUP)
    assert local.until_ready("m-1") == pids
    wait_until("the second engine to end", lambda: not lives(both["m-2"]), 10)


def test_an_engine_is_stopped_started_and_restarted_by_hand(local: Local) -> None:
    local.daemon.start()
    pid = local.until_ready("m-1")["m-1"]
    token = {"Authorization": f"Bearer {local.paths.page_token.read_text().strip()}"}

    def do(action: str, backend: str = "m-1") -> int:
        answer = requests.post(f"{local.daemon.url}/api/backends/{backend}/{action}", headers=token, timeout=10)
        return answer.status_code

    assert do("restart") == 200
    wait_until("another process", lambda: (local.engines()["m-1"]["pid"] or pid) != pid, 20, every=0.1)
    again = local.until_ready("m-1")["m-1"]
    assert not lives(pid)
    assert do("stop") == 200
    wait_until("the end", lambda: local.engines()["m-1"]["state"] == "stopped", 20, every=0.1)
    assert not lives(again)
    local.daemon.tell(signal.SIGHUP)  # a reload is no reason to start it
    wait_until("the reload", lambda: "Read fleet.yaml again" in local.daemon.text())
    assert local.engines()["m-1"]["state"] == "stopped" and local.engines()["m-1"]["phase"] == "by hand"
    assert do("start") == 200
    last = local.until_ready("m-1")["m-1"]
    assert do("start") == 200 and local.until_ready("m-1")["m-1"] == last, "it runs: nothing to do"
    assert do("drain") == 409 and do("stop", "nobody") == 409, "no edge runs; no such backend"
    kept = [json.loads(line) for line in local.paths.audit_log.read_text().splitlines()]
    assert [(entry["who"], entry["what"]) for entry in kept][:3] == [
        ("token", "restart"),
        ("token", "stop"),
        ("token", "start"),
    ]


def test_a_page_with_logins_still_tells_this_machines_programs(local: Local) -> None:
    set_login(local.file.parent / "page.logins", "alice", "correct horse")
    local.write(login="page.logins")
    local.daemon.start(wait=False)
    wait_until("the engine", lambda: engine_report.collect(load(local.file)) is not None, 20, every=0.1)
    assert requests.get(f"{local.daemon.url}/api/fleet", timeout=5).status_code == 401
    assert "Log in" in requests.get(local.daemon.url, timeout=5).text
    assert alive.control(local.paths, None) == "", "who asks for a login is alive"
    (local.file.parent / "page.logins").write_text("")
    assert local.daemon.stop() == 0
    local.daemon.start(wait=False)
    assert local.daemon.process.wait(15) == 1 and "has no login" in local.daemon.text()


def test_keys_are_made_and_revoked_and_the_edge_knows_at_once(stack: Stack) -> None:
    token = {"Authorization": f"Bearer {stack.edge.paths.page_token.read_text().strip()}"}

    def call(method: str, path: str, **more: Any) -> Any:
        answer = requests.request(method, stack.url + path, headers=token, timeout=10, **more)
        return answer.json()

    made = call("POST", "/api/keys", json={"name": "alice", "models": ["m"], "requests_per_minute": 60})
    assert "does not ask for keys" in made["result"], "fleet.yaml has no keys: the page says which line is missing"
    row = call("GET", "/api/keys")["keys"][0]
    assert row == {"name": "alice", "ends": made["secret"][-4:], "state": "active", "models": ["m"], "weight": 1,
                   "priority": "normal", "expires": None, "limits": "requests_per_minute=60"}  # fmt: skip
    assert "there is a key 'alice' already" in call("POST", "/api/keys", json={"name": "alice"})["error"]["message"]
    again = call("POST", "/api/keys/alice/rotate")
    assert again["secret"] != made["secret"] and call("GET", "/api/keys")["keys"][0]["state"] == "rotated"
    call("POST", "/api/keys/alice/disable")
    assert call("GET", "/api/keys")["keys"][0]["state"] == "disabled"
    text = (stack.edge.folder / "keys.yaml").read_text() + stack.edge.paths.audit_log.read_text() + stack.daemon.text()
    assert made["secret"] not in text and again["secret"] not in text
    assert "error" not in call("POST", "/api/keys/alice/revoke") and call("GET", "/api/keys")["keys"] == []
    (stack.edge.folder / "keys.yaml").write_text("keys: [\n")
    assert "keys.yaml" in call("GET", "/api/keys")["problem"]
    (stack.edge.folder / "keys.yaml").unlink()


def test_signals_of_the_first_moment_are_kept(local: Local) -> None:
    """Whoever finds the pid file may send a signal at once: a fresh daemon must not die of a hangup."""
    local.daemon.start(wait=False)
    wait_until("the pid file", lambda: daemon_pid(local.paths), 20, every=0.0005)
    local.daemon.tell(signal.SIGHUP)
    wait_until("the page", local.daemon.answers, 20)
    local.until_ready("m-1")
    assert local.daemon.stop() == 0


def test_told_to_make_way_it_leaves_its_engines(local: Local) -> None:
    local.daemon.start()
    pids = local.until_ready("m-1")
    local.daemon.tell(signal.SIGUSR1)
    assert local.daemon.process.wait(20) == 0
    assert lives(pids["m-1"]) and not local.paths.control_pid.exists()
    local.daemon.start()
    assert local.until_ready("m-1") == pids


def test_the_daemon_of_another_user_is_named() -> None:
    """No right to send a signal: told in words. (As root we have it, so the child gives it up first.)"""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from control.errors import ControlError; from control.paths import StatePaths\n"
        "from control.serve import tell_to_reload\n"
        "os.getuid() == 0 and os.setuid(65534)\n"
        "try: tell_to_reload(StatePaths(Path(sys.argv[1])))\n"
        "except ControlError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder, only_one(StatePaths(Path(folder)).control_pid, ""):
        Path(folder).chmod(0o755)
        path = StatePaths(Path(folder)).control_pid
        path.write_text("1\n" if os.getuid() else f"{os.getpid()}\n")  # somebody whom the child may not signal
        said = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, cwd=REPOSITORY)
    assert "belongs to another user\nUse the account (or sudo) that started it." in said.stdout, said.stderr


def test_a_second_daemon_is_refused(local: Local) -> None:
    local.daemon.start()
    second = Daemon(local.file, local.port).start(wait=False)
    assert second.process.wait(15) == 1
    text = second.text()
    assert f"already runs (pid {local.daemon.process.pid})" in text and "make stop" in text and "Traceback" not in text
    assert daemon_pid(local.paths) == local.daemon.process.pid


def test_a_port_in_use_is_named_with_its_holder(local: Local) -> None:
    with socket.create_server(("127.0.0.1", local.port)):
        local.daemon.start(wait=False)
        assert local.daemon.process.wait(15) == 1
    text = local.daemon.text()
    assert f"127.0.0.1:{local.port} is in use by" in text and str(os.getpid()) in text and "Traceback" not in text
    assert not local.paths.control_pid.exists() and not (local.paths.root / "engines").exists(), "nothing half-started"


@pytest.mark.parametrize("address", ["0.0.0.0:9090", "192.0.2.1:9090", "[::]:9090", "example.com:9090"])
def test_only_this_machine_can_reach_the_page(address: str) -> None:
    with pytest.raises(ControlError, match="listens on this machine only"), listen(address):
        pass


def test_a_page_that_asks_for_logins_can_be_reached_from_elsewhere() -> None:
    with listen(f"0.0.0.0:{free_port()}", asks=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_an_unreadable_stale_pid_file_is_no_obstacle(tmp_path: Path) -> None:
    path = StatePaths(tmp_path).control_pid
    path.parent.mkdir()
    for left in ("", "1\n", "not a number", "99999999999999999999"):
        path.write_text(left)
        assert daemon_pid(StatePaths(tmp_path)) is None
        with only_one(path, "127.0.0.1:9090"):
            assert path.read_text() == f"{os.getpid()}\n127.0.0.1:9090\n{pid_namespace()}\n"
        assert not path.exists()


def test_no_secret_reaches_the_page_or_the_log(stack: Stack) -> None:
    shown = requests.get(stack.url, timeout=5).text + json.dumps(stack.daemon.facts()) + stack.daemon.text()
    assert stack.edge.token not in shown


def test_the_edges_logs_are_rotated(stack: Stack) -> None:
    for _ in range(20):
        stack.edge.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    log = stack.edge.paths.edge_logs / "access.log"
    stack.edge.process.reopen_logs()  # nginx writes out what it holds back
    wait_until("a log that is too long", lambda: log.stat().st_size > 1024)
    stack.daemon.tell(signal.SIGHUP)  # looks at once, not only at the next turn
    wait_until("the old log", lambda: (log.parent / "access.log.1").exists(), 5)
    wait_until("the new log", log.exists, 5)
    assert "Rotated the edge's access.log." in stack.daemon.text()


def test_a_reader_that_leaves_frees_its_place() -> None:
    url, view, server = serve_app(Sources(), listeners=2)
    try:
        readers = [requests.get(url + "api/events", stream=True, timeout=5) for _ in range(2)]
        for reader in readers:
            assert next(reader.iter_lines()) == b"event: whole"
        refused = requests.get(url + "api/events", timeout=5)
        assert refused.status_code == 503 and "Close a tab" in refused.text
        assert requests.get(url, timeout=5).ok, "the page itself is always there"
        readers[0].close()

        def free() -> bool:
            with requests.get(url + "api/events", stream=True, timeout=5) as again:
                return again.status_code == 200

        wait_until("the place", free, 5, every=0.1)
        readers[1].close()
    finally:
        view.close()
        server.close()
