"""``make bench-edge``: plain nginx, Signalbox and vllm-router on the same cores, in one run.

The proxy under measurement runs alone on one core; the load generator and the fake engine share the other. CPU time is
that of the proxy's whole process tree, so the figure does not depend on how fast the shared core is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from control.bench.edge import client, peers, report
from control.bench.edge.load import CPU_LOADS, EVENTS_PER_STREAM, chat_body, cpu_microseconds, run_wrk, wrk_version
from control.bench.edge.process import BenchError, Tree, two_cores
from control.bench.edge.rows import failed, summarize
from control.bench.edge.stand import (
    NGINX,
    PROXIES,
    SIGNALBOX,
    VLLM_ROUTER,
    Stand,
    fake_engine,
    on_core,
)
from control.edge.binary import find_engine
from control.errors import SignalboxError
from control.paths import REPOSITORY

DIRECT = "direct"


@dataclass(frozen=True)
class Effort:
    """How much is measured. Seconds are those of one wrk run."""

    repeats: int = 5
    warm_seconds: float = 1.0
    cpu_seconds: float = 4.0
    latency_rounds: int = 2000
    streams: int = 10
    burst: int = 50
    settle_seconds: float = 2.0


QUICK = Effort(
    repeats=1, warm_seconds=0.2, cpu_seconds=0.3, latency_rounds=100, streams=1, burst=10, settle_seconds=0.5
)


def turned(names: Sequence[str], by: int) -> list[str]:
    """``names`` rotated, so that in turn each comes first."""
    return [*names[by % len(names) :], *names[: by % len(names)]]


def verify(tree: Tree) -> None:
    """Raises BenchError unless the proxy passes on an answer and a whole stream."""
    connection = client.Connection(tree.name, tree.port)
    try:
        answer = connection.exchange(client.request_bytes(chat_body(1_000)))
        stream = connection.exchange(client.request_bytes(chat_body(1_000, stream=True)))
    finally:
        connection.close()
    if b"hello there, this is a reply" not in answer:
        raise BenchError(f"{tree.name} did not pass on the engine's answer: {answer[-300:]!r}.", "Read its log.")
    if stream.count(b'"content":"tok "') != EVENTS_PER_STREAM or b"data: [DONE]" not in stream:
        raise BenchError(f"{tree.name} did not pass on a whole stream: it ends {stream[-300:]!r}.", "Read its log.")
    if b'"usage"' in stream:
        raise BenchError(f"{tree.name} passed on usage that nobody asked for: {stream[-300:]!r}.", "Read its log.")


def measure_memory(stand: Stand, name: str, effort: Effort) -> tuple[float, float]:
    """Resident memory of a fresh, warm proxy before and after the burst of 10 MB bodies, MB (10^6 bytes)."""
    with PROXIES[name](stand) as tree:
        verify(tree)
        run_wrk(tree, CPU_LOADS["1kb"], effort.warm_seconds, core=stand.cores.load, folder=stand.folder)
        before = tree.resident_bytes()
        client.burst(name, tree.port, chat_body(10_000_000), effort.burst, at_a_time=10)
        time.sleep(effort.settle_seconds)
        return before / 1e6, tree.resident_bytes() / 1e6


def measure_cpu(
    stand: Stand, trees: Mapping[str, Tree], order: Sequence[str], effort: Effort
) -> dict[str, dict[str, float]]:
    """CPU microseconds per request for every load; after each load another proxy is first."""
    for name in order:
        for warm in ("1kb", "stream"):
            run_wrk(trees[name], CPU_LOADS[warm], effort.warm_seconds, core=stand.cores.load, folder=stand.folder)
    return {
        f"cpu_{load.name}": {
            name: cpu_microseconds(trees[name], load, effort.cpu_seconds, core=stand.cores.load, folder=stand.folder)
            for name in turned(order, turn)
        }
        for turn, load in enumerate(CPU_LOADS.values())
    }


def measure_waits(
    stand: Stand, trees: Mapping[str, Tree], order: Sequence[str], effort: Effort
) -> dict[str, dict[str, float]]:
    """What each proxy adds to the way straight to the engine: latency of small requests, lateness of spaced events."""
    ports = {DIRECT: stand.engines[0], **{name: trees[name].port for name in order}}
    taken = client.latencies(ports, chat_body(1_000), effort.latency_rounds)
    late = client.event_lateness(ports, chat_body(1_000, stream=True, spaced=True), effort.streams)

    def added(values: Mapping[str, Sequence[float]], share: float, scale: float) -> dict[str, float]:
        base = client.percentile(values[DIRECT], share)
        return {
            DIRECT: base * scale,
            **{name: (client.percentile(values[name], share) - base) * scale for name in order},
        }

    return {
        "latency_p50": added(taken, 0.50, 1),
        "latency_p99": added(taken, 0.99, 1),
        "chunk_p99": added(late, 0.99, 1e-3),
    }


def one_repeat(stand: Stand, order: Sequence[str], effort: Effort, console: Console) -> dict[str, dict[str, float]]:
    """Measure every row once for every proxy, each proxy freshly started."""
    rows: dict[str, dict[str, float]] = {"memory_before": {}, "memory_after": {}, "memory_growth": {}}
    for name in order:
        console.print(f"  memory: {name}", style="dim")
        before, after = measure_memory(stand, name, effort)
        rows["memory_before"][name], rows["memory_after"][name] = before, after
        rows["memory_growth"][name] = after - before
    with ExitStack() as stack:
        trees = {name: stack.enter_context(PROXIES[name](stand)) for name in order}
        for tree in trees.values():
            verify(tree)
        console.print("  CPU per request", style="dim")
        rows |= measure_cpu(stand, trees, order, effort)
        console.print("  added latency", style="dim")
        rows |= measure_waits(stand, trees, order, effort)
    return rows


def facts(names: Sequence[str]) -> dict[str, Any]:
    """Where and with what the run was made."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    versions = {"nginx": find_engine().title, "wrk": wrk_version(), "python": platform.python_version()}
    if VLLM_ROUTER in names:
        versions[VLLM_ROUTER] = peers.VLLM_ROUTER.version()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") or "unknown",
        "uncommitted_changes": bool(git("status", "--porcelain", "--", "control", "lua", "templates")),
        "versions": versions,
        "machine": {
            "cpu": cpu,
            "cores": psutil.cpu_count(),
            "kernel": platform.release(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
            "load_average_before": os.getloadavg()[0],
        },
    }


def run(effort: Effort, names: Sequence[str], console: Console) -> dict[str, Any]:
    """Make the whole comparison. Raises BenchError as soon as one measurement is not valid."""
    cores = two_cores()
    result = facts(names)
    if VLLM_ROUTER in names:
        with console.status("Installing vllm-router into its own venv, unless it is there"):
            peers.VLLM_ROUTER.install()
    repeats = []
    with ExitStack() as stack:
        stack.enter_context(on_core(cores.load))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="signalbox-bench-")))
        folder.chmod(0o755)  # started by root, nginx's workers are somebody else and keep large bodies in files here
        stand = stack.enter_context(fake_engine(cores, folder))
        for number in range(effort.repeats):
            console.print(f"Repeat {number + 1} of {effort.repeats}")
            repeats.append(one_repeat(stand, turned(names, number), effort, console))
    return {**result, "repeats": effort.repeats, "effort": asdict(effort), "rows": summarize(repeats)}


def save(result: Mapping[str, Any], target: Path) -> None:
    """Write the figures and, beside them, the plot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    report.draw(result, target.with_suffix(".png"))


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison; 0 when every bound holds, 1 when one does not or a measurement was not valid."""
    parser = argparse.ArgumentParser(prog="python -m control.bench.edge", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repeat: shows that the bench works, not more")
    parser.add_argument("--repeats", type=int, help="how many repeats (default: 5; --quick: 1)")
    parser.add_argument("--without", action="append", default=[], choices=[NGINX, VLLM_ROUTER], help="leave one out")
    parser.add_argument("--output", type=Path, help="where the JSON goes (default: docs/figures; --quick: nowhere)")
    options = parser.parse_args(arguments)
    console = Console()
    effort = QUICK if options.quick else Effort()
    effort = replace(effort, repeats=options.repeats or effort.repeats)
    names = [name for name in (NGINX, SIGNALBOX, VLLM_ROUTER) if name not in options.without]
    try:
        result = run(effort, names, console)
        report.print_table(result, console)
        target = options.output or (None if options.quick or options.without else report.FIGURES)
        if target is not None:
            save(result, target)
        if target == report.FIGURES:
            report.main([])
    except SignalboxError as error:
        print(error, file=sys.stderr)
        return 1
    for title in failed(result["rows"]):
        console.print(f"Bound not held: {title}", style="bold red")
    return int(bool(failed(result["rows"])))


if __name__ == "__main__":
    raise SystemExit(main())
