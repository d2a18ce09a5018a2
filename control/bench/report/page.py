"""A report as one HTML page: no script, nothing from elsewhere, all texts escaped by the template. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from control.bench.records import Request
from control.bench.report import plots, tables
from control.bench.report.compare import pairs
from control.bench.report.findings import facts, findings, headline, troubles
from control.bench.report.plots import Panel
from control.bench.report.quantities import METRICS
from control.bench.report.timelines import longest_gaps, token_rate
from control.bench.results import Figures, Metric, Pass, Run

#: Parts of a pass whose longest gaps between tokens are drawn: so many, but none shorter than so many seconds.
_BINS, _LEAST_BIN = 150, 0.25
_METRIC_NAMES: dict[Metric, str] = {
    "ttft": "TTFT: until the first token",
    "tpot": "TPOT: each token after the first",
    "itl": "ITL: between two tokens as they arrive",
    "e2e": "E2E: until the last token",
}


def report(run: Run, requests: Mapping[int, Sequence[Request]]) -> str:
    """The page. ``requests`` are those of each pass by its order, where they are known."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        run=run, names=[one.name for one in run.variants], styles=plots.STYLES, moment=tables.moment(run.started),
        troubles=troubles(run),
        compared=[(one, headline(one), findings(one), tables.differences(one)) for one in pairs(run)],
        facts=facts(run), all_rows=tables.variants(run), groups=tables.groups(run), counters=tables.counters(run),
        settings=tables.settings(run), conditions=tables.conditions(run), passes=tables.passes(run),
        pass_heads=tables.PASS_HEADS, distributions=_distributions(run), repeats=_timelines(run, requests),
        gaps=bool(requests), in_edge=any(one.edge is not None for one in run.passes),
    )  # fmt: skip


def _distributions(run: Run) -> list[tuple[str, Markup]]:
    """A title and a plot for each metric, then TTFT and ITL of each group."""
    whole = [(one.name, one.figures) for one in run.variants]
    found = [(_METRIC_NAMES[metric], _curves(run, whole, metric, _METRIC_NAMES[metric])) for metric in METRICS]
    for group in run.workload.groups if len(run.workload.groups) > 1 else ():
        each = [(one.name, one.groups.get(group)) for one in run.variants]
        for metric in ("ttft", "itl"):
            title = f"{metric.upper()} of the group {group}"
            found.append((title, _curves(run, each, metric, title)))
    return [(title, plot) for title, plot in found if plot]


def _curves(run: Run, each: Sequence[tuple[str, Figures | None]], metric: Metric, title: str) -> Markup:
    curves = []
    for name, figures in each:
        distribution = None if figures is None else getattr(figures, metric)
        curves.append((name, [] if distribution is None else distribution.curve))
    return plots.percentiles(title, curves, getattr(run.slo, metric, None))


def _timelines(run: Run, requests: Mapping[int, Sequence[Request]]) -> list[list[tuple[Pass, Markup]]]:
    """The passes of each repeat with their timelines. All have the same axes, so that they can be compared by eye."""
    gaps = {one.order: _gaps(one, requests.get(one.order, ())) for one in run.passes}
    seconds = max((one.ended - one.started for one in run.passes), default=0.0)
    tops = {
        "requests": _top(column for one in run.passes
                         for column in (one.timeline.running, one.timeline.waiting, one.timeline.in_edge)),
        "rate": _top(token_rate(one.timeline) for one in run.passes),
        "gap": _top(values for _, values in gaps.values()),
    }  # fmt: skip
    repeats: dict[int, list[tuple[Pass, Markup]]] = {}
    for one in run.passes:
        if not one.timeline.t and not gaps[one.order][0]:
            continue
        title = f"Timeline of {one.variant}, repeat {one.repeat + 1}"
        drawn = plots.timeline(title, _panels(one, gaps[one.order], tops), one.marks, max(seconds, 1e-3))
        repeats.setdefault(one.repeat, []).append((one, drawn))
    order = {variant.name: place for place, variant in enumerate(run.variants)}
    return [sorted(repeats[repeat], key=lambda pair: order.get(pair[0].variant, 0)) for repeat in sorted(repeats)]


def _gaps(one: Pass, requests: Sequence[Request]) -> tuple[list[float], list[float | None]]:
    """Moments in the middle of each part of the pass, and the longest gap that ended there."""
    seconds = one.ended - one.started
    if not requests or seconds <= 0:
        return [], []
    bins = min(_BINS, math.ceil(seconds / _LEAST_BIN))
    return [(at + 0.5) * seconds / bins for at in range(bins)], longest_gaps(requests, one.started, seconds, bins)


def _panels(one: Pass, gaps: tuple[list[float], list[float | None]], tops: Mapping[str, float]) -> list[Panel]:
    """``a``, ``b`` and ``c`` are the classes of a panel's first, second and third line."""
    seen = one.timeline
    percent = [[None if value is None else value * 100 for value in column] for column in (seen.kv_usage, seen.cpu)]
    found = [
        Panel("requests: running, waiting" + (", in the edge" if _any(seen.in_edge) else ""), tops["requests"], "",
              [("a", seen.t, seen.running), ("b", seen.t, seen.waiting), ("c", seen.t, seen.in_edge)]),
        Panel("KV cache, CPU of the machine", 100, " %", [("a", seen.t, percent[0]), ("b", seen.t, percent[1])]),
        Panel("output tokens/s", tops["rate"], "", [("a", seen.t, token_rate(seen))]),
    ]  # fmt: skip
    if gaps[0]:
        found.append(Panel("longest gap between two tokens", tops["gap"], " s", [("a", *gaps)]))
    return found


def _any(column: Sequence[float | None]) -> bool:
    return any(value is not None for value in column)


def _top(columns: Iterable[Sequence[float | None]]) -> float:
    return max((value for column in columns for value in column if value is not None), default=0.0)
