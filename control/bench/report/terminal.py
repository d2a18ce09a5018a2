"""A comparison on a terminal: what to know first, the sentences, and one table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from control.bench.report import tables
from control.bench.report.compare import Comparison
from control.bench.report.findings import findings, headline
from control.bench.report.tables import Cell, plain

_STYLES = {"better": "green", "worse": "red", "same": "", "unknown": "dim", "fact": ""}


def print_comparison(one: Comparison, console: Console) -> None:
    """``before`` on the left."""
    console.print(Text(plain(f"{one.after.label} beside {one.before.label}"), style="bold"), soft_wrap=True)
    for warning in one.warnings:
        console.print(Text(plain(f"warning: {warning}"), style="yellow"), soft_wrap=True)
    console.print(Text(plain(headline(one)) + "."), soft_wrap=True)
    for found in findings(one):
        console.print(Text(f"  {plain(found.text)}", style=_STYLES[found.tone]), soft_wrap=True)
    table = Table("", "A", "B", "change", "")
    for row, difference in zip(tables.differences(one), one.differences, strict=True):
        if row.begins:
            table.add_section()
        style = _STYLES[difference.verdict]
        table.add_row(
            Text(plain(row.title)), *(_cell(cell, style if at >= 2 else "") for at, cell in enumerate(row.cells))
        )
    console.print(table)


def _cell(cell: Cell, style: str) -> Text:
    text = Text(cell.text, style=style)
    return text.append(f"\n{cell.under}", style="dim") if cell.under else text
