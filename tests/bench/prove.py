"""Whether the bench measures what happens: `make prove-bench`, figures in docs/figures/bench.json and docs/bench.md.

Run it on a machine that does nothing else. ``python -m tests.bench.prove NAME...`` measures only some proofs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from control.bench import results
from control.bench.records import Request
from control.bench.results import Histogram, Pass, Run
from tests.bench.truth import SCRIPTS, deviations, measure
from tests.support.net import REPOSITORY
from tests.support.proof import Chapter, Proof, Row, row

#: The client reads an answer this much later than the engine made it, at most: seconds, and a share.
LATER, LATER_SHARE = 0.005, 0.01


def truth() -> list[Row]:
    """Figures of one pass against what the scripted engine did."""
    with tempfile.TemporaryDirectory(prefix="bench-truth-") as folder:
        found = measure(Path(folder) / "pass")
    names = ("plain", "comments", "null-usage")
    first, each = zip(*(deviations(found, name) for name in names), strict=True)
    off_first = [abs(value) * 100 for values in first for value in values]
    off_each = [abs(value) * 100 for values in each for value in values]
    kinds = {name: name for name in SCRIPTS} | {"reset": "cut", "merged": None} | dict.fromkeys(names)
    wrong = [one for one in found.requests if one.group in kinds and one.failure != kinds[one.group]]
    how = f"median of {len(off_first)} streams, against the engine's own clock"
    return [
        row("TTFT is the engine's", statistics.median(off_first), 2, "%", how, worst=max(off_first)),
        row("TPOT is the engine's", statistics.median(off_each), 2, "%", how, worst=max(off_each)),
        row("failures told otherwise than they were", len(wrong), 0, "requests",
            "errors, hangs, aborts, cuts, resets, error events, empty streams"),
    ]  # fmt: skip


def through_the_edge() -> list[Row]:
    """One scripted engine, directly and through the edge, in turns."""
    sent = {"title": "Streams", "requests": 80, "concurrency": 2,
            "groups": {"stream": {"prompt": 20, "output": [6, 16]}}}  # fmt: skip
    command = ["{python}", "-m", "tests.scripted", "--port", "{port}", "--name", "{name}", "--delay-ms", "20"]
    model = {"engine": {"command": command}, "backends": [{"host": "here", "port": 18101}]}
    with tempfile.TemporaryDirectory(prefix="bench-edge-") as name:
        folder = Path(name)
        (folder / "sent.yaml").write_text(yaml.safe_dump(sent))
        run = bench(folder, {"m": model}, str(folder / "sent.yaml"), "--variants", "direct,edge", "--repeats", "4")
    direct, edge = (one.figures for one in run.variants)
    assert direct and edge and direct.ttft and edge.ttft and direct.itl and edge.itl
    agreeing = [one.edge.ttft_agreeing or 0.0 for one in run.passes if one.edge]
    joined = sum(one.edge.joined for one in run.passes if one.edge)
    how = "320 streams of 6 to 16 tokens each way, two at a time, 20 ms a token, 4 passes in turns"
    return [
        row("the edge adds to TTFT, P50", (edge.ttft.p50.value - direct.ttft.p50.value) * 1000, 1, "ms", how),
        row("the edge changes ITL, P99", abs(edge.itl.p99.value / direct.itl.p99.value - 1) * 100, 3, "%", how,
            direct=direct.itl.p99.value, edge=edge.itl.p99.value),
        row("requests found in the edge's log by id", joined / edge.sent * 100, 100, "%", f"of {edge.sent}",
            at_least=True),
        row("of these, the client's TTFT is the edge's within 5 ms and 1 %", statistics.mean(agreeing) * 100, 99, "%",
            "the mean of 4 passes", at_least=True),
    ]  # fmt: skip


def real_vllm() -> list[Row]:
    """Three variants of real vLLM on this machine's CPU."""
    model = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())["models"]["smollm2"]
    model["backends"] = [{"host": "here", "port": 18101}]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-vllm-") as name:
        folder = Path(name)
        run = bench(folder, {"smollm2": model}, "mixed", "--scale", "cpu", "--slo", "ttft=1.5s,tpot=60ms")
        minutes = (time.monotonic() - began) / 60
        astray = [_astray(folder / "runs" / run.id, one) for one in run.passes]
    assert len(astray) == 9 and all(one.usable for one in run.passes)
    sent = sum(one.figures.sent for one in run.passes)
    failed = sent - sum(one.figures.succeeded for one in run.passes)
    curves: Any = {metric: {"curve"} for metric in ("ttft", "tpot", "itl", "e2e")}
    facts = {one.name: one.figures.model_dump(mode="json", exclude=curves) for one in run.variants if one.figures}
    return [
        row("three variants, three repeats each, are measured in", minutes, 30, "min",
            f"real vLLM {run.tools['vllm']}, SmolLM2-135M, mixed at --scale cpu; engines start anew for each setting",
            variants=facts),
        row("requests without a whole answer", failed, 0, "requests", f"of {sent}"),
        row("TTFTs in another bucket than in vLLM's own histogram", max(astray), 0, "requests",
            "worst of 9 passes, where the engine's may be up to 5 ms and 1 % shorter"),
    ]  # fmt: skip


def _astray(folder: Path, one: Pass) -> int:
    assert one.engine.ttft is not None
    with (folder / one.requests).open() as lines:
        return misplaced([Request.from_json(line) for line in lines], one.engine.ttft)


def misplaced(requests: Sequence[Request], engine: Histogram, opening: int = 4) -> int:
    """How many TTFTs lie in another bucket than the engine put them in, whatever it did with ``opening`` others.

    A client's TTFT is a little longer than the engine's, so one just above a bound may be below it there.
    """
    values = [one.ttft for one in requests if one.ttft is not None]
    worst = 0
    for bound, count in engine.buckets:
        if bound is None:
            worst = max(worst, abs(count - len(values) - opening))
            continue
        least = sum(value <= bound for value in values)
        most = sum(value <= bound + LATER + LATER_SHARE * bound for value in values) + opening
        worst = max(worst, least - count, count - most)
    return worst


def bench(folder: Path, models: dict[str, object], *words: str) -> Run:
    """Run ``signalbox bench run`` with a fleet of its own in ``folder``."""
    (folder / "fleet.yaml").write_text(yaml.safe_dump({
        "edge": {"listen": "127.0.0.1:18080", "admin": "127.0.0.1:18089"},
        "control": {"listen": "127.0.0.1:18090", "state_dir": "state"},
        "hosts": {"here": {"local": True}}, "models": models,
    }))  # fmt: skip
    (folder / "state").mkdir()
    for name in ("runtimes", "models"):
        (folder / "state" / name).symlink_to((REPOSITORY / ".signalbox" / name).resolve())
    command = [sys.executable, "-m", "control.cli", "--fleet", str(folder / "fleet.yaml"), "bench", "run", *words]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    (found,) = (folder / "runs").iterdir()
    return results.load(found)


PROOFS: dict[str, Proof] = {"truth": truth, "edge": through_the_edge, "vllm": real_vllm}
CHAPTER = Chapter("bench", PROOFS, REPOSITORY / "docs" / "bench.md")

if __name__ == "__main__":
    sys.exit(CHAPTER.main())
