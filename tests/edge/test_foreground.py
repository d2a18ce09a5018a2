"""`signalbox start --foreground`: as a container or systemd runs it, also in a process-id namespace of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from control import alive
from control.edge import calls, report
from control.edge.process import EdgeProcess, present, running
from control.host import pid_namespace
from control.serve import daemon_pid, only_one, tell_to_reload
from tests.control.edge_site import Place, place
from tests.support.client import CHAT, chat
from tests.support.engine import ScriptedEngine
from tests.support.net import REPOSITORY, wait_until
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow

#: A process-id namespace as a container has it. Its first process ends it; it ends with us.
ALONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]


class Foreground:
    """An edge in the foreground of a child process, and what it says."""

    def __init__(self, at: Place, prefix: list[str]) -> None:
        self.at, self.output = at, at.folder / "output.txt"
        command = [*prefix, sys.executable, "-m", "control", "-f", str(at.fleet_file), "start", "--foreground"]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def until_it_runs(self) -> Foreground:
        wait_until("the edge to run", lambda: "The edge runs" in self.text() or self.process.poll() is not None, 20)
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        return self.output.read_text()

    def tell(self, number: int) -> None:
        """Send the signal to the Python process, through the one that made its namespace, if any."""
        inner = psutil.Process(self.process.pid).children() if self.process.args[0] == "unshare" else []  # type: ignore[index]
        os.kill(inner[0].pid if inner else self.process.pid, number)


@pytest.fixture
def at() -> Iterator[Place]:
    with place() as here:
        yield here


@contextlib.contextmanager
def in_foreground(at: Place, prefix: list[str] | None = None) -> Iterator[Foreground]:
    one = Foreground(at, prefix or [])
    try:
        yield one.until_it_runs()
    finally:
        if one.process.poll() is None:
            one.tell(signal.SIGKILL)
            one.process.wait(10)


def cli(at: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "control", "-f", str(at.fleet_file), *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def healthy(at: Place) -> subprocess.CompletedProcess[str]:
    """The health check of the images."""
    command = [sys.executable, "-m", "control.alive", "edge", str(at.site.paths.root)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=20)


def test_it_stays_says_what_nginx_says_and_ends_when_told(at: Place) -> None:
    with in_foreground(at) as edge:
        assert healthy(at).returncode == 0
        second = cli(at, "start", "--foreground")
        assert second.returncode == 1 and "already runs in the foreground" in second.stderr
        assert "already runs in the foreground" in cli(at, "start").stderr
        with at.site.paths.edge_logs.joinpath("error.log").open("a") as log:
            log.write("2026/01/01 00:00:00 [warn] said by nginx\n")
        wait_until("the line to be repeated", lambda: "said by nginx" in edge.text())
        edge.tell(signal.SIGTERM)
        assert edge.process.wait(10) == 0
        assert "Told to stop (SIGTERM)" in edge.text() and "The edge finished its streams." in edge.text()
    assert not at.processes() and not at.site.paths.foreground.exists()
    assert healthy(at).returncode == 1


def test_a_hangup_reloads_and_a_broken_fleet_changes_nothing(at: Place) -> None:
    paths = at.site.paths
    with in_foreground(at) as edge:
        at.write(max_body="1m")
        edge.tell(signal.SIGHUP)
        wait_until("the reload", lambda: "generation 2" in edge.text(), 20)
        at.write(max_body="2m")
        assert "generation 3" in cli(at, "reload").stdout and "generation 3" in edge.text(), "said at both places"
        at.fleet_file.write_text("edge: {listne: 1}\n")
        edge.tell(signal.SIGHUP)
        wait_until("the complaint", lambda: "The reload failed" in edge.text() and "listne" in edge.text(), 20)
        assert edge.process.poll() is None and alive.edge(paths) == ""


def test_nginx_that_dies_ends_it_with_an_error(at: Place) -> None:
    with in_foreground(at) as edge:
        pid = at.site.process.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert edge.process.wait(10) == 1
        assert "nginx ended by itself" in edge.text() and "Traceback" not in edge.text()


def test_somebody_elses_stop_is_no_failure(at: Place) -> None:
    with in_foreground(at) as edge:
        assert cli(at, "stop").returncode == 0
        assert edge.process.wait(10) == 0


def test_running_answers_finish_and_a_second_signal_cuts_them(at: Place) -> None:
    with ScriptedEngine("m") as engine:
        at.write({"m": {"backends": [{"url": engine.url}]}})
        with in_foreground(at) as edge:
            engine.ready()
            port = int(at.listen.rpartition(":")[2])
            wait_until("the backend", lambda: _ready(at), 10)
            with RawClient(port) as client:
                client.request(CHAT, chat("m", stream=True, tokens=1000, delay_ms=50))
                client.head()
                next(client.events())
                edge.tell(signal.SIGTERM)
                time.sleep(0.5)
                assert edge.process.poll() is None, "it waits for the answer"
                edge.tell(signal.SIGTERM)
                assert edge.process.wait(10) == 0
        assert "The edge finished its streams" in edge.text() or "was terminated" in edge.text()


def _ready(at: Place) -> bool:
    state = report.collect(at.site.paths).state
    return state is not None and all(row["state"] == "ready" for row in state["backends"])


@pytest.fixture
def alone() -> list[str]:
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        assert os.geteuid() != 0, f"root can make no process-id namespace here: {done.stderr}"
        pytest.skip(f"NOT TESTED: an edge in another process-id namespace, which needs root ({done.stderr.strip()})")
    return ALONE


def test_from_another_namespace_it_is_seen_reloaded_and_not_started_twice(at: Place, alone: list[str]) -> None:
    """As the control plane's container sees the edge's: the same folder and network, other process ids."""
    with in_foreground(at, alone) as edge:
        paths = at.site.paths
        assert EdgeProcess(paths).pid() is None, "its number means nothing here"
        assert running(paths) and present(paths) and calls.answers(paths)
        assert report.collect(paths).state is not None and healthy(at).returncode == 0

        at.write({"m": {"backends": [{"url": "http://127.0.0.1:9"}, {"url": "http://127.0.0.1:10"}]}})
        done = cli(at, "reload")
        assert done.returncode == 0 and "took fleet 2 without a reload" in done.stdout, done
        at.write(max_body="1m")
        done = cli(at, "reload")
        assert done.returncode == 0 and "generation 2" in done.stdout, done

        at.write(max_body="2m", tls={"certificate": "fleet.yaml", "key": "fleet.yaml"})
        done = cli(at, "reload")
        assert done.returncode == 1 and "nginx refuses" in done.stderr and "Traceback" not in done.stderr
        assert healthy(at).returncode == 0
        at.write()
        edge.tell(signal.SIGTERM)
        edge.process.wait(10)
    assert not running(paths)
    assert "is not running" in cli(at, "reload").stderr


def test_a_daemon_of_another_namespace_is_asked_by_a_file(tmp_path: Path) -> None:
    from control.paths import StatePaths

    paths = StatePaths(tmp_path)
    with only_one(paths.control_pid, "127.0.0.1:9090"):
        assert daemon_pid(paths) == os.getpid() and pid_namespace()
        paths.control_pid.write_text(f"{os.getpid()}\n127.0.0.1:9090\npid:[1]\n")
        assert daemon_pid(paths) is None, "that number is somebody else here"
        assert tell_to_reload(paths) and paths.control_reload.exists()
    paths.control_reload.unlink()
    assert not tell_to_reload(paths) and not paths.control_reload.exists()


def test_the_long_name_of_a_folder_does_not_matter(tmp_path: Path) -> None:
    from control.foreground import listening
    from control.paths import StatePaths

    paths = StatePaths(tmp_path / ("x" * 150))
    with listening(paths):
        assert calls.answers(paths)
        assert paths.foreground.stat().st_mode & 0o777 == 0o600
    assert not calls.answers(paths)
