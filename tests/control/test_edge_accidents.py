"""What happens around an edge that nobody planned: its master killed, the disk full, a start cut short."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from click.testing import CliRunner

from control.cli import main
from control.edge import apply, files, report
from control.edge.ports import require_movable
from control.edge.process import EdgeProcess
from control.edge.site import client
from control.errors import EdgeError
from tests.control.edge_site import Place, place

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


@pytest.fixture
def edge() -> Iterator[Place]:
    with place() as here:
        yield here


@pytest.fixture
def running(edge: Place) -> Place:
    apply.start(edge.site)
    return edge


def kill_master(edge: Place) -> list[psutil.Process]:
    """kill -9 of the master alone; returns the workers that it leaves."""
    pid = edge.site.process.pid()
    assert pid is not None
    master = psutil.Process(pid)
    workers = master.children()
    assert len(workers) == 2
    master.kill()
    deadline = time.monotonic() + 5
    while edge.site.process.pid() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert serves(edge)
    return workers


def serves(edge: Place) -> bool:
    try:
        return requests.get(f"http://{edge.listen}/v1/models", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def conf(edge: Place) -> dict[str, str | None]:
    return files.backup(edge.site.paths)


# The master is killed, its workers stay.


def test_stop_ends_the_workers_of_a_killed_master(running: Place) -> None:
    workers = kill_master(running)
    assert str(workers[0].pid) in report.collect(running.site.paths).problem
    assert apply.stop(running.site.paths) == "finished its streams"
    assert alive(workers) == []
    assert not serves(running)
    assert apply.stop(running.site.paths) == "was not running"


def test_start_takes_the_place_of_the_workers_of_a_killed_master(running: Place) -> None:
    workers = kill_master(running)
    result = apply.start(running.site)
    assert alive(workers) == []
    assert any("had been killed" in line for line in result.lines())
    assert serves(running)
    assert apply.stop(running.site.paths) == "finished its streams"
    assert not serves(running)


def test_a_configuration_that_is_refused_leaves_those_workers_serving(running: Place) -> None:
    workers = kill_master(running)
    template = running.sources.templates / "nginx.conf.j2"
    template.write_text(template.read_text() + "nosuch_directive on;\n")
    with pytest.raises(EdgeError, match="nosuch_directive"):
        apply.start(running.site)
    assert len(alive(workers)) == 2
    assert serves(running)


def test_stop_waits_for_the_streams_of_those_workers_and_then_cuts(running: Place) -> None:
    host, _, port = running.listen.partition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        time.sleep(0.2)
        workers = kill_master(running)
        assert apply.stop(running.site.paths, drain=0.5) == "was terminated"
    assert alive(workers) == []


def test_workers_of_another_edge_are_left_alone(running: Place) -> None:
    """A pid file that outlived a reboot may name the group of a foreign nginx."""
    with place() as other:
        other.site.process.prepare()
        other.site.paths.edge_pid.write_text(str(running.site.process.pid()))
        workers = kill_master(running)
        assert apply.stop(other.site.paths, quit=False) == "was not running"
        apply.start(other.site)
        assert len(alive(workers)) == 2
        assert serves(running)


def test_an_edge_of_another_user_is_told(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process, number: int) -> None:  # tests may run as root, who may signal everybody
        raise psutil.AccessDenied(process.pid)

    for act in (apply.stop, lambda paths: EdgeProcess(paths).reopen_logs()):
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "send_signal", refuse)
            with pytest.raises(EdgeError, match="belongs to another user") as caught:
                act(running.site.paths)
        assert "account" in caught.value.hint
    assert serves(running)


# The disk is full.


def fill_disk(path: Path) -> None:
    """Make the next write of ``path`` by this process fail with the system's own ENOSPC."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}.{os.getpid()}").symlink_to("/dev/full")


@pytest.mark.parametrize("name", files.NAMES)
def test_a_full_disk_at_start_changes_nothing(edge: Place, name: str) -> None:
    fill_disk(edge.site.paths.conf / name)
    with pytest.raises(EdgeError) as caught:
        apply.start(edge.site)
    assert f"{edge.site.paths.conf / name} could not be written: {os.strerror(errno.ENOSPC)}" == caught.value.message
    assert "Free some space" in caught.value.hint
    assert conf(edge) == dict.fromkeys(files.NAMES)
    assert list(edge.site.paths.conf.iterdir()) == []
    assert edge.processes() == []
    apply.start(edge.site)


@pytest.mark.parametrize("change", [{"max_body": "3m"}, {}], ids=["reload", "push"])
@pytest.mark.parametrize("name", files.NAMES)
def test_a_full_disk_at_reload_changes_nothing(running: Place, name: str, change: dict[str, str]) -> None:
    before = conf(running)
    running.write({"m": {"aliases": ["n"], "backends": [{"id": "m-1", "url": "http://127.0.0.1:9"}]}}, **change)
    fill_disk(running.site.paths.conf / name)
    with pytest.raises(EdgeError, match=f"{name} could not be written"):
        apply.reload(running.site)
    assert conf(running) == before
    assert serves(running)
    assert apply.reload(running.site).action == ("reloaded" if change else "pushed")


def test_a_disk_that_is_full_when_the_reload_is_recorded(running: Place) -> None:
    """The new workers are there by then: the edge goes back to the old files."""
    before = conf(running)
    running.write(max_body="3m")
    fill_disk(running.site.paths.conf / "applied.json")
    with pytest.raises(EdgeError, match=r"applied\.json could not be written"):
        apply.reload(running.site)
    assert conf(running) == {**before, "generation": "3\n"}
    with contextlib.closing(client(running.site.paths)) as admin:
        assert admin.state()["generation"] == "3"
    assert apply.reload(running.site).action == "reloaded"


def test_a_full_disk_is_one_line_for_a_person(edge: Place) -> None:
    fill_disk(edge.site.paths.next / "nginx.conf")
    done = CliRunner().invoke(main, ["--fleet", str(edge.fleet_file), "render"])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert "nginx.conf could not be written: No space left on device\nFree some space" in done.stderr


def test_a_full_disk_below_our_own_output(edge: Place) -> None:
    """An error that names no file; the system's own."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "control", "schema"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=edge.folder
        )
    assert done.returncode != 0
    assert done.stderr.startswith("Error: No space left on device\nFree some space")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), requests.ConnectionError("no route"), OSError()]
)
def test_any_error_of_the_system_is_one_message(edge: Place, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def fail(site: object) -> None:
        raise error

    monkeypatch.setattr(apply, "render_next", fail)
    done = CliRunner().invoke(main, ["--fleet", str(edge.fleet_file), "render"])
    assert isinstance(done.exception, SystemExit)
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0] in ("Error: Input/output error", "Error: no route", "Error: OSError")


# A listener that nginx cannot move.


@pytest.mark.parametrize(("old", "new"), [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1")])
def test_the_same_port_on_an_overlapping_address_needs_a_restart(edge: Place, old: str, new: str) -> None:
    """What fleet.yaml itself proposes: from loopback to all addresses. nginx binds the new before it closes the old."""
    port = edge.listen.rpartition(":")[2]
    edge.write(listen=f"{old}:{port}", keys="none")
    apply.start(edge.site)
    before = conf(edge)
    edge.write(listen=f"{new}:{port}", keys="none")
    with pytest.raises(EdgeError) as caught:
        apply.reload(edge.site)
    assert f"edge.listen moves from {old}:{port} to {new}:{port} on the same port" in caught.value.message
    assert "make stop" in caught.value.hint
    assert conf(edge) == before
    assert serves(edge)
    apply.stop(edge.site.paths)
    apply.start(edge.site)
    assert serves(edge)


def test_other_moves_are_left_to_nginx() -> None:
    require_movable(
        ["127.0.0.1:8080", "127.0.0.1:9090"], ["127.0.0.2:8080", "0.0.0.0:8081", "[::1]:9090"], "edge.listen"
    )


# A start that is cut short.


class Died(BaseException):
    """The control plane's own end."""


def test_after_a_start_that_was_cut_short_a_refused_reload_keeps_what_runs(
    edge: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise Died

    edge.write(max_body="1m")
    apply.start(edge.site)
    edge.write(max_body="2m")
    apply.reload(edge.site)
    apply.stop(edge.site.paths)
    edge.write(max_body="3m")
    with monkeypatch.context() as patch:  # kill -9 before the record: nobody stops the edge or puts files back
        patch.setattr(apply, "_record", die)
        patch.setattr(EdgeProcess, "stop", lambda self, **how: "was not running")
        patch.setattr(files, "restore", lambda paths, saved: None)
        with pytest.raises(Died):
            apply.start(edge.site)
    third = conf(edge)
    assert "3145728" in str(third["nginx.conf"])
    assert "2097152" in (edge.site.paths.last / "nginx.conf").read_text()
    edge.write(max_body="4m")
    edge.append_to_lua("routes.lua", "\nthis is no Lua\n")
    with pytest.raises(EdgeError, match="the reload was refused"):
        apply.reload(edge.site)
    assert conf(edge) == third
    assert serves(edge)


def test_files_of_last_count_only_when_they_are_the_applied_ones(edge: Place) -> None:
    paths = edge.site.paths
    edge.site.process.prepare()

    def texts(number: int) -> dict[str, str | None]:
        return {"nginx.conf": f"conf {number}", "fleet.json": "{}", "generation": f"{number}\n"}

    def applied(number: int) -> files.Applied:
        return files.Applied("", [], number, {"nginx.conf": files.digest(f"conf {number}".encode())})

    files.restore(paths, texts(3))
    files.keep_last(paths, texts(1))
    assert files.good(paths, None) == texts(3)
    assert files.good(paths, applied(3)) == texts(3)
    assert files.good(paths, applied(2)) == texts(3)  # last/ is older than what was applied
    assert files.good(paths, applied(1)) == texts(1)  # a reload that was interrupted
    assert files.good(paths, applied(1), "1") == texts(1)
    assert files.good(paths, applied(1), "3") == texts(3)  # the edge says that it runs conf/
