"""What the page asks beside the edge: certificates, commands that run, the log of a container."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import trustme

from control.errors import ControlError
from control.web.certificates import ends_at
from control.web.engine_logs import EngineLogs
from control.web.jobs import Job, Jobs
from tests.support.net import wait_until


def test_when_a_certificate_ends(tmp_path: Path) -> None:
    path = tmp_path / "edge.pem"
    assert ends_at(path) is None
    path.write_text("no certificate")
    assert ends_at(path) is None
    trustme.CA().issue_cert("edge.example").cert_chain_pems[0].write_to_path(path)
    end = ends_at(path)
    assert end is not None and end > time.time()


def test_one_command_at_a_time_for_each_backend() -> None:
    jobs, ended = Jobs(), list[Job]()
    slow = [
        sys.executable,
        "-c",
        "import time; print('begun', flush=True); time.sleep(0.5); raise SystemExit('no room')",
    ]
    jobs.start("m-1", "restart", slow, ended.append)
    with pytest.raises(ControlError, match="already being done with m-1"):
        jobs.start("m-1", "stop", slow, ended.append)
    jobs.start("m-2", "start", [sys.executable, "-c", "print('x' * 10_000)"], ended.append)
    jobs.start("m-3", "start", ["/no/such/program"], ended.append)
    wait_until("all to end", lambda: len(ended) == 3, 10)
    found = {job.backend: job for job in jobs.all()}
    assert found["m-1"].state == "failed" and found["m-1"].output == "begun\nno room\n"
    assert found["m-2"].state == "done" and len(found["m-2"].output) == 4000
    assert found["m-3"].state == "failed" and "No such file" in found["m-3"].output
    assert all(job.ended is not None for job in ended)


def test_a_containers_output_is_asked_for_seldom_and_a_failure_is_told(tmp_path: Path) -> None:
    asked: list[str] = []

    def container(backend: str, _lines: int) -> bytes | None:
        asked.append(backend)
        if backend == "away":
            raise ControlError("The host does not answer.", "Look there.")
        return b"one\ntwo ERROR\n" if backend == "boxed" else None

    (tmp_path / "engine.log").write_text("of a file\n")
    logs = EngineLogs(lambda _backend: tmp_path, container)
    assert logs.end("boxed", ask=False).lines == ("of a file",), "nobody is asked by a stream"
    end = logs.end("boxed")
    assert end.lines == ("one", "two ERROR") and not end.live
    assert logs.end("boxed", search="error").lines == ("two ERROR",) and logs.end("boxed", ask=False).lines == end.lines
    assert asked == ["boxed"]
    assert logs.end("local").lines == ("of a file",) and logs.end("local").live
    assert logs.end("away").problem == "The host does not answer. Look there."
