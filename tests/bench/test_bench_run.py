"""`signalbox bench run` as a person runs it: real nginx, real AIPerf, scripted engines that are started and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from control.bench import aiperf, results
from control.bench.records import Request
from control.bench.results import Run
from control.cli import main
from control.paths import REPOSITORY, StatePaths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLEET = """\
edge: {{listen: 127.0.0.1:18080, admin: 127.0.0.1:18089}}
control: {{listen: 127.0.0.1:18090, state_dir: state}}
hosts: {{here: {{local: true}}}}
models:
  m:
    slo: {{ttft: 500ms, itl: 100ms}}
    routing: {{policy: least_loaded}}
    engine:
      command: ["{{python}}", -m, tests.scripted, --port, "{{port}}", --name, "{{name}}", --delay-ms, "{delay}",
                --max-model-len, "100000"]
      start_timeout: 60s
    backends:
      - {{host: here, port: 18101}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two fleets, one of them with slower engines; AIPerf is the checkout's."""
    (tmp_path / "fleet.yaml").write_text(FLEET.format(delay=10))
    (tmp_path / "slow.yaml").write_text(FLEET.format(delay=30))
    aiperf.install(StatePaths(REPOSITORY / ".signalbox"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "runtimes").symlink_to((REPOSITORY / ".signalbox" / "runtimes").resolve())
    return tmp_path


def bench(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "control.cli", "--fleet", str(folder / "fleet.yaml"), "bench", *words]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def left(folder: Path) -> list[str]:
    """Processes that still have something to do with this folder."""
    lines = (" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(folder) in line]


def only_run(folder: Path) -> Run:
    (found,) = (folder / "runs").iterdir()
    return results.load(found)


def test_three_variants_beside_each_other(folder: Path) -> None:
    words = ["run", "mixed", "--scale", "tiny", "--variants", f"direct,edge,{folder}/slow.yaml", "--repeats", "1"]
    done = subprocess.run(bench(folder, *words, "--seed", "7"), capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(folder)
    assert run.state == "complete" and run.scripted and run.seed == 7 and run.seed_pinned
    assert [(one.name, one.path) for one in run.variants] == [
        ("direct", "direct"),
        ("edge", "edge"),
        ("slow", "direct"),
    ]
    _check_passes(run, folder)
    tpots = [one.figures.tpot.p50.value for one in run.variants if one.figures and one.figures.tpot]
    assert 0.009 < tpots[0] < 0.025 < 0.029 < tpots[2] < 0.06, tpots
    for variant in run.variants:
        assert variant.figures is not None and variant.figures.slo_share is not None, "the model's own limits"
        assert set(variant.groups) == {"short", "long"}
    assert left(folder) == []
    assert (folder / "runs" / run.id / "report.html").stat().st_size > 10_000
    for text in ("direct", "edge", "slow", "TTFT P99", "scripted"):
        assert text in done.stdout
    report = (folder / "runs" / run.id / "report.html").read_text()
    assert "edge beside direct" in report and "longest gap between two tokens" in report, "with the requests' own gaps"
    for command in (["list"], ["show", "last"]):
        shown = CliRunner().invoke(main, ["--fleet", str(folder / "fleet.yaml"), "bench", *command])
        assert shown.exit_code == 0 and "direct" in shown.output


def _check_passes(run: Run, folder: Path) -> None:
    assert [one.order for one in run.passes] == [0, 1, 2]
    seen: set[str] = set()
    for one in run.passes:
        lines = (folder / "runs" / run.id / one.requests).read_text().splitlines()
        requests = [Request.from_json(line) for line in lines]
        assert len(requests) == 24 == one.figures.succeeded
        ids = {request.id for request in requests}
        assert not ids & seen
        seen |= ids
        # The engine's own counts: 24 requests, and the four that opened the connections.
        assert one.engine.ttft is not None and one.engine.ttft.count == 28
        assert one.engine.generation_tokens == one.figures.output_tokens + 4 * 4  # type: ignore[operator]
        assert one.engine.prompt_tokens == one.figures.prompt_tokens + 4 * 8  # type: ignore[operator]
        assert one.client is not None and one.timeline.t and len(one.timeline.cpu) == len(one.timeline.t)
        assert len(one.marks) == 3, "long prompts, an eighth of all"
    edge = run.passes[1].edge
    assert edge is not None and edge.joined == 24 and edge.by_backend == {"m-1": 24}
    assert run.passes[0].edge is None
    shapes = [[(r.group, r.prompt_tokens) for r in sorted(
        (Request.from_json(line) for line in (folder / "runs" / run.id / one.requests).read_text().splitlines()),
        key=lambda r: r.conversation)] for one in run.passes]  # fmt: skip
    assert shapes[0] == shapes[1] == shapes[2], "all variants of a repeat are sent prompts of the same lengths"


def test_ctrl_c_ends_what_was_started_and_keeps_what_was_measured(folder: Path) -> None:
    words = ["run", "mixed", "--scale", "tiny", "--variants", "slow.yaml,direct", "--repeats", "20"]
    process = subprocess.Popen(bench(folder, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=ENVIRONMENT, cwd=folder)  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((folder / "runs").glob("*/run.json")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode not in (0, None)
    run = only_run(folder)
    assert run.state == "interrupted" and run.problem == "Ctrl-C"
    assert len(run.passes) == 1 and run.passes[0].figures.succeeded == 24
    assert "Traceback" not in output, output
    assert left(folder) == []


def test_what_cannot_be_measured_is_told_before_anything_starts(folder: Path) -> None:
    wrong = {
        ("run", "nothing"): "no workload 'nothing'",
        ("run", "mixed", "--variants", "fast"): "no variant 'fast'",
        ("run", "mixed", "--scale", "huge"): "no scale 'huge'",
        ("run", "mixed", "--running"): "--running starts nothing",
        ("run", "mixed", "--scale", "tiny", "--running", "--variants", "direct,edge"): "Nothing of",
        ("run", "mixed", "--slo", "ttft=1"): "no time",
        ("run", "mixed", "--model", "other"): "no model 'other'",
        ("show", "last"): "There is no run",
    }
    for words, message in wrong.items():
        done = CliRunner().invoke(main, ["--fleet", str(folder / "fleet.yaml"), "bench", *words])
        assert done.exit_code == 1 and message in done.output, (words, done.output)
    assert not (folder / "runs").exists() and left(folder) == []
