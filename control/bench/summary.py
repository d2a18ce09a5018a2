"""A run on a terminal: one table, and what has to be known to read it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from control.bench import results, store
from control.bench.report import tables
from control.bench.report.compare import pairs
from control.bench.report.findings import headline, troubles
from control.bench.report.quantities import BY_KEY, number
from control.bench.report.tables import Row, plain
from control.bench.results import Figures, Run
from control.errors import BenchRunError

#: What a terminal has room for; the report has all.
_GROUP_KEYS = ("ttft.p50", "ttft.p99", "tpot.p50", "tpot.p99")
_KEYS = [key for key in BY_KEY if not key.endswith(".p90")]


def print_summary(run: Run, console: Console) -> None:
    """The variants beside each other, with their groups; then what this says, and what has to be known first."""
    title = f"{run.workload.title} ({run.workload.name}, {run.workload.scale}), {run.repeats} repeats, seed {run.seed}"
    table = Table(title=Text(plain(title), style="bold"), title_justify="left")
    table.add_column("")
    for variant in run.variants:
        table.add_column(Text(plain(variant.name)), justify="right")
    _add(table, tables.variants(run, _KEYS))
    for group, rows in tables.groups(run, _GROUP_KEYS).items():
        table.add_section()
        _add(table, rows[1:], f"{group}: ")
    table.add_section()
    _add(table, tables.counters(run))
    console.print(table)
    if run.workload.capacity is not None and run.variants:
        capacity = f"The capacity of {run.variants[0].name}: {number(run.workload.capacity)} requests a second."
        console.print(Text(plain(capacity)), soft_wrap=True)
    if any(_has_interval(variant.figures) for variant in run.variants):
        console.print("In brackets: the 95 % confidence interval over the repeats.")
    for one in pairs(run):
        told = f"{one.after.variant.name} beside {one.before.variant.name}: {headline(one)}."
        console.print(Text(plain(told), style="bold"), soft_wrap=True)
    for trouble in troubles(run):
        console.print(Text(plain(f"warning: {trouble}"), style="yellow"), soft_wrap=True)


def _add(table: Table, rows: list[Row], before: str = "") -> None:
    for row in rows:
        cells = (Text(f"{cell.text} ({cell.under})" if cell.under else cell.text) for cell in row.cells)
        table.add_row(Text(plain(before + row.title)), *cells)


def _has_interval(figures: Figures | None) -> bool:
    return figures is not None and figures.ttft is not None and figures.ttft.p50.low is not None


def print_list(runs: Path, console: Console) -> None:
    """All runs, the newest last."""
    table = Table()
    table.add_column("run", no_wrap=True)  # to be copied whole
    for head in ("workload", "variants", "passes", "state"):
        table.add_column(head, overflow="fold")
    broken: list[str] = []
    for folder in store.folders(runs):
        try:
            run = results.load(folder)
        except BenchRunError as error:
            broken.append(error.message)
            continue
        names = ", ".join(variant.name for variant in run.variants)
        what = f"{run.workload.name} {run.workload.scale}" + (f": {run.name}" if run.name else "")
        table.add_row(Text(plain(folder.name)), Text(plain(what)), Text(plain(names)), str(len(run.passes)), run.state)
    if table.row_count:
        console.print(table)
    for message in broken:
        console.print(Text(plain(message), style="yellow"), soft_wrap=True)
    if not table.row_count and not broken:
        console.print(f"There are no runs in {runs} yet. `signalbox bench run mixed` makes one.", soft_wrap=True)
