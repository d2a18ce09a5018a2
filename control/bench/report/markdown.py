"""A report as Markdown, for tickets and docs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from control.bench.report import tables
from control.bench.report.compare import Comparison, pairs
from control.bench.report.findings import facts, findings, headline, troubles
from control.bench.report.tables import Cell, Row
from control.bench.results import Run

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line and in a table."""
    return _SPECIAL.sub(r"\\\1", tables.plain(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def report(run: Run) -> str:
    """The whole report without its plots."""
    names = [one.name for one in run.variants]
    lines = [f"# {escape(run.workload.title)}", "", escape(f"Run {run.id}" + (f": {run.name}" if run.name else "")), ""]
    lines += _list("Read this first", troubles(run))
    for one in pairs(run):
        title = f"{one.after.variant.name} beside {one.before.variant.name}"
        lines += _list(title, [headline(one) + ".", *(found.text for found in findings(one))])
    lines += _list("Also", [found.text for found in facts(run)])
    lines += _table("All requests", names, tables.variants(run))
    for group, rows in tables.groups(run).items():
        lines += _table(f"Requests of the group {group}", names, rows)
    lines += _table("What engines and edge counted", names, tables.counters(run))
    lines += _table("What was compared", names, tables.settings(run))
    lines += _list("How it was measured", [f"{name}: {text}" for name, text in tables.conditions(run)])
    return "\n".join(lines).rstrip() + "\n"


def comparison(one: Comparison) -> str:
    """Two variants beside each other."""
    lines = [f"# {escape(one.after.label)} beside {escape(one.before.label)}", ""]
    lines += _list("Read this first", one.warnings)
    lines += _list("Findings", [headline(one) + ".", *(found.text for found in findings(one))])
    names = [one.before.label, one.after.label, "change", ""]
    lines += _table("All figures", names, tables.differences(one))
    return "\n".join(lines).rstrip() + "\n"


def _list(title: str, texts: Sequence[str]) -> list[str]:
    return [f"## {escape(title)}", "", *(f"* {escape(text)}" for text in texts), ""] if texts else []


def _table(title: str, names: Iterable[str], rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = [escape(name) for name in names]
    lines = [f"## {escape(title)}", "", f"| | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    lines += [f"| {escape(row.title)} | {' | '.join(_cell(cell) for cell in row.cells)} |" for row in rows]
    return [*lines, ""]


def _cell(cell: Cell) -> str:
    return escape(f"{cell.text} ({cell.under})" if cell.under else cell.text)
