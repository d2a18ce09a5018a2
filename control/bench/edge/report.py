"""A finished run as people see it: the terminal's table, the same table in docs/performance.md, and the plot."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from control.bench.edge.process import BenchError
from control.bench.edge.stand import NGINX, SIGNALBOX, VLLM_ROUTER
from control.paths import REPOSITORY

FIGURES = REPOSITORY / "docs" / "figures" / "bench-edge.json"
DOCUMENT = REPOSITORY / "docs" / "performance.md"
BEGIN, END = "<!-- bench-edge: begin -->", "<!-- bench-edge: end -->"
HEADINGS = ("", "plain nginx", "Signalbox", "vllm-router", "÷ nginx", "÷ vllm-router", "bound", "")
MISSING = "–"
_VERDICTS = {True: "held", False: "**not held**", None: "not measured"}


def _value(spread: Mapping[str, float] | None, digits: int) -> str:
    if spread is None:
        return MISSING
    middle, least, most = (f"{spread[key]:.{digits}f}" for key in ("median", "min", "max"))
    return middle if least == most else f"{middle} ({least} to {most})"


def cells(row: Mapping[str, Any]) -> list[str]:
    """One row's cells, in the order of HEADINGS: median (least to greatest) of the repeats."""
    values, bound = row["values"], row["bound"]
    ratios = [row["ratios"].get(name) for name in (NGINX, VLLM_ROUTER)]
    return [
        f"{row['title']}, {row['unit']}",
        *(_value(values.get(name), row["digits"]) for name in (NGINX, SIGNALBOX, VLLM_ROUTER)),
        *(MISSING if ratio is None else f"{ratio['median']:.2f}" for ratio in ratios),
        bound["text"] if bound else "",
        _VERDICTS[bound["held"]] if bound else "",
    ]


def print_table(result: Mapping[str, Any], console: Console) -> None:
    """Print the run as a table; the span of the repeats stands below the median."""
    console = Console(file=console.file, width=max(console.width, 144))
    title = f"bench-edge: median (least to greatest) of {result['repeats']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index in (0, 6, 7) else "right", no_wrap=True)
    for row in result["rows"]:
        held = row["bound"]["held"] if row["bound"] else None
        style = None if held is None else ("green" if held else "bold red")
        table.add_row(*(cell.replace("**", "").replace(" (", "\n(") for cell in cells(row)), style=style)
    console.print(table)


def markdown(result: Mapping[str, Any]) -> str:
    """The table of docs/performance.md, with the facts of the run above it."""
    machine, versions = result["machine"], result["versions"]
    short = "**A short run: rough figures.** " if result["effort"]["cpu_seconds"] < 1 else ""
    lines = [
        f"{short}Run on {result['date'][:10]} at commit {result['commit'][:12]}: {result['repeats']} repeats on "
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"load average {machine['load_average_before']:.1f} before the run; "
        f"wrk for {result['effort']['cpu_seconds']:g} s per figure; "
        f"{versions['nginx']}, vllm-router {versions.get('vllm-router', 'not measured')}, wrk {versions['wrk']}.",
        "",
        "| " + " | ".join(heading or " " for heading in HEADINGS) + " |",
        "|---|---:|---:|---:|---:|---:|---|---|",
        *("| " + " | ".join(cell or " " for cell in cells(row)) + " |" for row in result["rows"]),
    ]
    return "\n".join(lines)


def filled(text: str, table: str) -> str:
    """``text`` with ``table`` between its markers. Raises BenchError when it has no such markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"No place for the table: {BEGIN} … {END} is missing.", f"Put both lines into {DOCUMENT}.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def draw(result: Mapping[str, Any], target: Path) -> None:
    """Draw the run as a PNG: CPU, added latency and memory, each proxy in its colour, with the repeats' span."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = {row["id"]: row for row in result["rows"]}
    panels = (
        (
            "CPU per request, µs",
            ("cpu_1kb", "cpu_10kb", "cpu_100kb", "cpu_1mb", "cpu_stream"),
            ("1 KB", "10 KB", "100 KB", "1 MB", "stream of\n50 events"),
            True,
        ),
        ("Added latency, µs", ("latency_p50", "latency_p99"), ("p50", "p99"), False),
        ("Resident memory, MB", ("memory_before", "memory_after"), ("before", "after fifty\n10 MB bodies"), False),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.2), width_ratios=(5, 2.4, 2.4), layout="constrained")
    for axis, (title, ids, labels, logarithmic) in zip(axes, panels, strict=True):
        _bars(axis, [rows[row_id] for row_id in ids], labels)
        axis.set_title(title, loc="left", fontsize=11)
        if logarithmic:
            axis.set_yscale("log")
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _bars(axis: Any, rows: list[Mapping[str, Any]], labels: tuple[str, ...]) -> None:
    looks = (
        (NGINX, "plain nginx", "#9aa5b1"),
        (SIGNALBOX, "Signalbox", "#0b6e4f"),
        (VLLM_ROUTER, "vllm-router", "#d98324"),
    )
    shown = [look for look in looks if look[0] in rows[0]["values"]]
    for index, (name, label, colour) in enumerate(shown):
        spreads = [row["values"][name] for row in rows]
        places = [place + (index - (len(shown) - 1) / 2) * 0.27 for place in range(len(rows))]
        middles = [spread["median"] for spread in spreads]
        spans = [
            [spread["median"] - spread["min"] for spread in spreads],
            [spread["max"] - spread["median"] for spread in spreads],
        ]
        axis.bar(places, middles, 0.25, label=label, color=colour, yerr=spans, ecolor="#333333", capsize=2)
        for place, spread in zip(places, spreads, strict=True):
            axis.annotate(
                f"{spread['median']:.0f}",
                (place, spread["max"]),
                ha="center",
                va="bottom",
                fontsize=7,
                xytext=(0, 2),
                textcoords="offset points",
            )
    axis.set_xticks(range(len(rows)), labels)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.15)


def main(arguments: list[str] | None = None) -> int:
    """Fill the table of docs/performance.md from the saved figures; with --check, only say whether it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m control.bench.edge.report", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the table is out of date")
    options = parser.parse_args(arguments)
    before = DOCUMENT.read_text()
    after = filled(before, markdown(json.loads(FIGURES.read_text())))
    if options.check:
        if after != before:
            told = f"{DOCUMENT} does not say what {FIGURES} says. Run: python -m control.bench.edge.report"
            print(told, file=sys.stderr)
        return int(after != before)
    DOCUMENT.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
