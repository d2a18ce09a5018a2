"""Log rotation, with a real nginx that keeps writing; and reading back what error.log said."""

from __future__ import annotations

import time
from pathlib import Path

import requests

from control.edge import apply
from control.edge.logs import ErrorLog, rotate
from tests.control.edge_site import place


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_small_files_stay(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text("123")
    assert rotate(tmp_path, 4, 3, lambda: 1 / 0) == []
    assert files(tmp_path) == {"access.log": "123"}


def test_the_oldest_goes(tmp_path: Path) -> None:
    calls = []
    for text in ("one", "two", "three", "four"):
        (tmp_path / "access.log").write_text(text)
        assert rotate(tmp_path, 3, 2, lambda: calls.append(1)) == ["access.log"]
    assert files(tmp_path) == {"access.log.1": "four", "access.log.2": "three"}
    assert len(calls) == 4


def test_fewer_are_kept_when_fleet_yaml_says_so(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"error.log.{number}").write_text(str(number))
    (tmp_path / "error.log.bak").write_text("a person's")
    (tmp_path / "error.log").write_text("now")
    assert rotate(tmp_path, 1, 2, lambda: None) == ["error.log"]
    assert files(tmp_path) == {"error.log.1": "now", "error.log.2": "1", "error.log.bak": "a person's"}


def test_nginx_writes_to_the_new_file_and_loses_no_line() -> None:
    with place() as edge:
        apply.start(edge.site)
        logs = edge.site.paths.edge_logs
        for _ in range(3):
            for _ in range(5):
                assert requests.get(f"http://{edge.listen}/v1/nosuch", timeout=5).status_code == 404
            rotate(logs, 0, 10, edge.site.process.reopen_logs)
            deadline = time.monotonic() + 5
            while not (logs / "access.log").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        apply.stop(edge.site.paths)
        lines = [line for path in logs.glob("access.log*") for line in path.read_text().splitlines()]
        assert len(lines) == 15
        assert (logs / "access.log.1").exists()


def test_error_log_from_a_moment_on(tmp_path: Path) -> None:
    path = tmp_path / "error.log"
    path.write_text("2026/01/01 00:00:00 [emerg] 1#1: old\n")
    log = ErrorLog(path)
    assert (log.new_lines(), log.fatal()) == ([], False)
    with path.open("a") as file:
        file.write("2026/01/01 00:00:01 [warn] 1#1: harmless\n")
        file.write("2026/01/01 00:00:01 [emerg] 1#1: bind() to 127.0.0.1:1 failed (98: Address already in use)\n")
        assert not log.fatal()
        file.write("2026/01/01 00:00:02 [error] 1#1: init_by_lua error: module 'a' not found:\n")
        file.write(
            "\tno field package.preload['a']\n\tno file './a.lua'\nstack traceback:\n\t[C]: in function 'require'\n"
        )
        file.write("2026/01/01 00:00:03 [notice] 1#1: signal process started\n")
    assert log.fatal()
    assert log.severe() == [
        "2026/01/01 00:00:01 [emerg] 1#1: bind() to 127.0.0.1:1 failed (98: Address already in use)",
        "2026/01/01 00:00:02 [error] 1#1: init_by_lua error: module 'a' not found:",
        "stack traceback:",
        "\t[C]: in function 'require'",
    ]
    path.rename(tmp_path / "error.log.1")
    path.write_text("2026/01/01 00:00:04 [error] 1#1: after a rotation\n")
    assert log.severe() == ["2026/01/01 00:00:04 [error] 1#1: after a rotation"]


def test_no_log_yet(tmp_path: Path) -> None:
    log = ErrorLog(tmp_path / "error.log")
    assert (log.new_lines(), log.fatal()) == ([], False)
