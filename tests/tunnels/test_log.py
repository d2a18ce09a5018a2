"""Following ssh.log."""

from __future__ import annotations

from pathlib import Path

from control.tunnels.log import SshLog


def test_lines_are_given_once_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "ssh.log"
    file.write_text("of one before\n")
    log = SshLog(file, file.stat().st_size)
    assert log.news() == [] and log.lines() == []
    with file.open("a") as output:
        output.write("first\r\nsec")
        output.flush()
        assert [line for line in log.news() if line] == ["first"] and log.news() == []
        output.write("ond\n")
        output.flush()
        assert log.news() == ["second"] and log.news() == []
    assert [line for line in log.lines() if line] == ["first", "second"]


def test_a_log_that_was_cut_or_is_long_goes_on_with_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "ssh.log"
    file.write_text("x" * 99 + "\n")
    log = SshLog(file, 0)
    assert len(log.news()) == 1
    file.write_text("new\n")
    assert log.news() == ["new"] and log.news() == []
    file.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert log.news()[-1] == "line 9999" and log.news() == [] and log.lines()[0] == "line 9960"


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    log = SshLog(tmp_path / "none", 7)
    assert log.news() == [] and log.lines() == []
