"""What a run says, in plain sentences, and what stands in the way of believing it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from control.bench.report import timelines
from control.bench.report.compare import Comparison, Difference
from control.bench.report.quantities import interval, percent, scale, shown
from control.bench.results import FailureKind, Figures, Run, Variant

Tone = Literal["better", "worse", "same", "unknown", "fact"]
#: What is said in words of all requests, and of each group; everything else is in the tables.
HEADLINES = ("ttft.p50", "ttft.p99", "tpot.p50", "tpot.p99", "itl.p99", "output_tokens_per_second", "goodput")
GROUP_HEADLINES = ("ttft.p99", "tpot.p99")
#: Up to so much either way is called close, where the intervals overlap.
_CLOSE = 0.05
#: A 99th percentile of fewer values is nearly their greatest one.
_FEW = 100

FAILURES: dict[FailureKind, str] = {
    "http": "answered with an error status",
    "connect": "got no connection",
    "cut": "ended in the middle",
    "error_event": "got an error inside the stream",
    "aborted": "given up by the engine",
    "empty": "had no token",
    "timeout": "took too long",
    "no_usage": "came without usage",
    "other": "failed otherwise",
}


@dataclass(frozen=True)
class Finding:
    """One sentence, and which way it points."""

    tone: Tone
    text: str


def failures(figures: Figures) -> str:
    """``2 ended in the middle, 1 took too long``; empty for none."""
    return ", ".join(f"{count} {FAILURES[kind]}" for kind, count in sorted(figures.failures.items()))


def troubles(run: Run) -> list[str]:
    """What has to be known before any figure is read; the gravest first."""
    return list(dict.fromkeys(_troubles(run)))


def _troubles(run: Run) -> Iterator[str]:
    if run.state != "complete":
        why = f" ({run.problem})" if run.problem else ""
        yield f"This run is not complete: it is {run.state}{why}."
    if run.scripted:
        yield "The engines were scripted: these figures say nothing about a model."
    for variant in run.variants:
        if variant.figures is None:
            yield f"{variant.name}: nothing usable was measured."
        elif variant.figures.failures:
            count = variant.figures.sent - variant.figures.succeeded
            yield (
                f"{variant.name}: {count} of {variant.figures.sent} requests failed ({failures(variant.figures)}). "
                "They count in no other figure."
            )
    late = sum(bool(one.client and one.client.overloaded) for one in run.passes)
    if late:
        yield (
            f"The load generator did not keep up in {late} of {len(run.passes)} passes: their times are too long. "
            "Send fewer requests at a time, or measure from a machine of its own."
        )
    yield from run.warnings
    for variant in run.variants:
        yield from (f"{variant.name}: {warning}" for warning in variant.warnings)
    repeats = [len({one.repeat for one in run.passes if one.variant == each.name}) for each in run.variants]
    if run.passes and max(repeats, default=0) < 2:
        yield "Each variant was measured once: nothing is known of chance. --repeats 3 gives intervals."
    yield from _tails(run)


def _tails(run: Run) -> Iterator[str]:
    """Where there are too few requests for a 99th percentile."""
    few = []
    for group in ("", *(run.workload.groups if len(run.workload.groups) > 1 else ())):
        each = [one.groups.get(group) if group else one.figures for one in run.variants]
        counts = [one.ttft.count for one in each if one is not None and one.ttft is not None]
        if counts and min(counts) < _FEW:
            few.append(f"{min(counts)} of {group}" if group else f"{min(counts)} in all")
    if few:
        yield (
            f"P99 is nearly the slowest request where there are few ({', '.join(few)}): a longer run says more about "
            "the tail."
        )


def findings(comparison: Comparison) -> list[Finding]:
    """What became of the figures that matter most."""
    found = {(one.group, one.quantity.key): one for one in comparison.differences}
    groups = list(dict.fromkeys(one.group for one in comparison.differences if one.group))
    keys = [("", key) for key in HEADLINES] + [(group, key) for group in groups for key in GROUP_HEADLINES]
    return [Finding(one.verdict, sentence(one)) for key in keys if (one := found.get(key)) is not None]


def headline(comparison: Comparison) -> str:
    """The whole in one line: ``TTFT P99 fell from 4.10 s to 1.60 s; output tokens/s within 2.0 %``."""
    found = {one.quantity.key: one for one in comparison.differences if not one.group}
    parts = [_clause(found[key]) for key in ("ttft.p99", "output_tokens_per_second") if key in found]
    before, after = hit_rate(comparison.before.variant), hit_rate(comparison.after.variant)
    if before is not None and after is not None:
        instead = f" instead of {before:.2f}" if f"{before:.2f}" != f"{after:.2f}" else ""
        parts.append(f"prefix hit rate {after:.2f}{instead}")
    return "; ".join(parts)


def _clause(one: Difference) -> str:
    before, after = one.values()
    if one.verdict == "unknown":
        return f"{one.title} {before} and {after}, measured once"
    if one.verdict == "same":
        far = _far(one)
        if far is not None and far <= _CLOSE:
            return f"{one.title} within {percent(far)}"
        return f"{one.title}: no difference that this run can tell"
    return f"{one.title} {_verb(one)} from {before} to {after}"


def _far(one: Difference) -> float | None:
    """How far the change may go either way."""
    return None if one.least is None or one.most is None else max(abs(one.least), abs(one.most))


def _verb(one: Difference) -> str:
    return "fell" if one.after.value < one.before.value else "rose"


def sentence(one: Difference) -> str:
    """``TTFT P99 fell from 4.10 s to 1.60 s (61 % less).``"""
    before, after = one.values()
    title = one.title if one.group else one.title[:1].upper() + one.title[1:]
    if one.verdict == "unknown":
        by = "" if one.change is None else f" ({_signed(one.change)})"
        return f"{title}: {before} and {after}{by}, measured once."
    if one.verdict == "same":
        far = _far(one)
        if far is None or one.least is None or one.most is None:
            return f"{title}: no difference that this run can tell ({before} and {after})."
        if far <= _CLOSE:
            return f"{title} stayed within {percent(far)} ({before} and {after})."
        between = f"between {_signed(one.least)} and {_signed(one.most)}"
        return f"{title}: no difference that this run can tell ({before} and {after}; {between})."
    by = "" if one.change is None else f" ({_signed(one.change)})"
    return f"{title} {_verb(one)} from {before} to {after}{by}."


def _signed(change: float) -> str:
    return f"{percent(change)} {'less' if change < 0 else 'more'}" if change else "no change"


def facts(run: Run) -> list[Finding]:
    """What engines and edge counted, and how evenly tokens came."""
    return [Finding("fact", text) for text in (*_engines(run), *_edges(run), *_evenness(run))]


def hit_rate(variant: Variant) -> float | None:
    """Share of the prompts' tokens that the engines found in their prefix caches."""
    engine = variant.engine
    if engine is None or engine.prefix_hits is None or not engine.prefix_queries:
        return None
    return engine.prefix_hits / engine.prefix_queries


def _engines(run: Run) -> Iterator[str]:
    rates = [(one.name, rate) for one in run.variants if (rate := hit_rate(one)) is not None]
    if rates:
        yield f"Prefix hit rate: {_listed((name, f'{rate:.2f}') for name, rate in rates)}."
    preempted = [(one.name, one.engine.preemptions) for one in run.variants if one.engine and one.engine.preemptions]
    if preempted:
        listed = _listed((name, f"{count}") for name, count in preempted)
        yield f"Preemptions (the KV cache was full, and work was done twice): {listed}."


def _edges(run: Run) -> Iterator[str]:
    for variant in run.variants:
        passes = [one for one in run.passes if one.variant == variant.name and one.usable and one.edge is not None]
        joined = sum(one.edge.joined for one in passes if one.edge)
        if not joined:
            continue
        queued = sum(one.edge.queued for one in passes if one.edge)
        waits = [one.edge.queue_wait.p99.value for one in passes if one.edge and one.edge.queue_wait]
        longest = f"; P99 of the wait {shown(max(waits), scale('seconds', waits))}" if queued and waits else ""
        yield f"{variant.name}: {queued:,} of {joined:,} requests waited in the edge for a slot{longest}."


def _evenness(run: Run) -> Iterator[str]:
    spreads = [(one.name, estimate) for one in run.variants if (estimate := timelines.unevenness(run, one.name))]
    if not spreads:
        return
    listed = _listed(
        (
            name,
            f"{percent(one.value)}"
            + (f" ({words} in its passes)" if (words := interval(one, scale("share", ()))) else ""),
        )
        for name, one in spreads
    )
    yield f"How far output tokens/s swung around their mean within a pass: {listed}."


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)
