"""A run on a terminal: one table, and what has to be known to read it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from control.bench import results, store
from control.bench.results import Distribution, Estimate, Figures, Run
from control.errors import BenchRunError


def print_summary(run: Run, console: Console) -> None:
    """The variants beside each other, with their groups; then warnings."""
    title = f"{run.workload.title} ({run.workload.name}, {run.workload.scale}), {run.repeats} repeats, seed {run.seed}"
    table = Table(title=Text(title, style="bold"), title_justify="left")
    table.add_column("")
    for variant in run.variants:
        table.add_column(variant.name, justify="right")
    for words, show in _ROWS:
        table.add_row(words, *(_shown(variant.figures, show) for variant in run.variants))
    for group in run.workload.groups if len(run.workload.groups) > 1 else ():
        table.add_section()
        for words, show in _GROUP_ROWS:
            table.add_row(f"{group}: {words}", *(_shown(one.groups.get(group), show) for one in run.variants))
    table.add_section()
    hits = [_share(one.engine.prefix_hits, one.engine.prefix_queries) if one.engine else "–" for one in run.variants]
    table.add_row("prefix cache hits", *hits)
    preempted = [one.engine.preemptions if one.engine else None for one in run.variants]
    table.add_row("preemptions", *("–" if count is None else str(count) for count in preempted))
    if any(one.path == "edge" for one in run.variants):
        table.add_row("waited in the edge, P99", *(_waited(run, one.name) for one in run.variants))
    console.print(table)
    if run.workload.capacity is not None:
        console.print(f"The capacity of {run.variants[0].name}: {_number(run.workload.capacity)} requests a second.")
    if any(_has_interval(variant.figures) for variant in run.variants):
        console.print("In brackets: the 95 % confidence interval over the repeats.")
    if run.scripted:
        console.print("The engines were scripted: these figures say nothing about a model.", style="yellow")
    if run.state != "complete":
        console.print(f"This run is not complete ({run.state}): {run.problem}", style="yellow", markup=False)
    for warning in run.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def print_list(runs: Path, console: Console) -> None:
    """All runs, the newest last."""
    table = Table("run", "when", "workload", "variants", "passes", "state")
    for folder in store.folders(runs):
        try:
            run = results.load(folder)
        except BenchRunError as error:
            table.add_row(folder.name, "", Text(error.message, style="yellow"), "", "", "")
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
        names = ", ".join(variant.name for variant in run.variants)
        what = f"{run.workload.name} {run.workload.scale}" + (f": {run.name}" if run.name else "")
        table.add_row(run.id, when, Text(what), Text(names), str(len(run.passes)), run.state)
    if table.row_count:
        console.print(table)
    else:
        console.print(f"There are no runs in {runs} yet. `signalbox bench run mixed` makes one.", soft_wrap=True)


Show = Callable[[Figures], str]


def _seconds(distribution: Distribution | None, name: str, scale: float = 1000, unit: str = "ms") -> str:
    return "–" if distribution is None else _estimate(getattr(distribution, name), scale, unit)


def _estimate(estimate: Estimate | None, scale: float = 1.0, unit: str = "") -> str:
    if estimate is None:
        return "–"
    text = f"{_number(estimate.value * scale)}{' ' if unit else ''}{unit}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({_number(estimate.low * scale)} to {_number(estimate.high * scale)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _share(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.1%}" if part is not None and whole else "–"


def _waited(run: Run, variant: str) -> str:
    """The longest of the passes: a queue that was there once was there."""
    waits = [one.edge.queue_wait.p99.value for one in run.passes
             if one.variant == variant and one.usable and one.edge and one.edge.queue_wait]  # fmt: skip
    return f"{_number(max(waits) * 1000)} ms" if waits else "–"


def _shown(figures: Figures | None, show: Show) -> str:
    return "–" if figures is None else show(figures)


def _has_interval(figures: Figures | None) -> bool:
    return figures is not None and figures.ttft is not None and figures.ttft.p50.low is not None


def _failures(figures: Figures) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(figures.failures.items()))
    return f"{figures.succeeded} of {figures.sent}" + (f" ({kinds})" if kinds else "")


_GROUP_ROWS: tuple[tuple[str, Show], ...] = (
    ("TTFT P50", lambda one: _seconds(one.ttft, "p50")),
    ("TTFT P99", lambda one: _seconds(one.ttft, "p99")),
    ("TPOT P50", lambda one: _seconds(one.tpot, "p50")),
    ("TPOT P99", lambda one: _seconds(one.tpot, "p99")),
)
_ROWS: tuple[tuple[str, Show], ...] = (
    ("whole answers", _failures),
    *_GROUP_ROWS,
    ("ITL P50", lambda one: _seconds(one.itl, "p50")),
    ("ITL P99", lambda one: _seconds(one.itl, "p99")),
    ("E2E P50", lambda one: _seconds(one.e2e, "p50")),
    ("E2E P99", lambda one: _seconds(one.e2e, "p99")),
    ("output tokens/s", lambda one: _estimate(one.output_tokens_per_second)),
    ("requests/s", lambda one: _estimate(one.requests_per_second)),
    ("goodput, requests/s", lambda one: _estimate(one.goodput)),
    ("of all requests within the SLO", lambda one: _estimate(one.slo_share, 100, "%")),
)
