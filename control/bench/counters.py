"""What engines and edge counted during one pass, from their samples and the edge's access log. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from control.bench.figures import distribution, quantile
from control.bench.records import Request
from control.bench.results import EdgeCounters, EngineCounters, Histogram
from control.tuning import histogram
from control.tuning.samples import EngineSample

#: The client's TTFT and the edge's agree when they differ by at most this (seconds) and this share: the edge's log has
#: whole milliseconds, and its clock stands still while a worker works.
AGREE_SECONDS, AGREE_SHARE = 0.005, 0.01
_NUMBERS = ("prefix_hits", "prefix_queries", "preemptions", "prompt_tokens", "generation_tokens")
_HISTOGRAMS = ("ttft", "itl", "queue")


def engine_counters(before: Sequence[EngineSample | None], after: Sequence[EngineSample | None]) -> EngineCounters:
    """The difference of two looks at the same engines, added up. What one of them does not tell is None."""
    values: dict[str, Any] = {}
    for name in _NUMBERS:
        each = [_difference(getattr(old, name, None), getattr(new, name, None))
                for old, new in zip(before, after, strict=True)]  # fmt: skip
        known = [one for one in each if one is not None]
        values[name] = sum(known) if known and len(known) == len(each) else None
    for name in (*_HISTOGRAMS, "iterations"):
        each_one = [_between(getattr(old, name, None), getattr(new, name, None))
                    for old, new in zip(before, after, strict=True)]  # fmt: skip
        values[name] = histogram.joined(each_one) if all(one is not None for one in each_one) else None
    steps: histogram.Histogram | None = values.pop("iterations")
    sizes = [one.kv_tokens for one in after if one is not None and one.kv_tokens is not None]
    values |= {name: cumulated(values[name]) for name in _HISTOGRAMS}
    values["iterations"] = round(steps.count) if steps else None
    values["iteration_tokens"] = round(steps.total) if steps else None
    return EngineCounters(**values, kv_cache_tokens=sum(sizes) or None)


def _difference(old: float | None, new: float | None) -> int | None:
    return round(new - old) if old is not None and new is not None and new >= old else None


def _between(old: histogram.Histogram | None, new: histogram.Histogram | None) -> histogram.Histogram | None:
    return new.minus(old) if old is not None and new is not None else None


def cumulated(one: histogram.Histogram | None) -> Histogram | None:
    """A histogram as run.json has it."""
    if one is None:
        return None
    seen, buckets = 0.0, []
    for bound, count in zip((*one.bounds, None), one.counts, strict=True):
        seen += count
        buckets.append((bound, round(seen)))
    return Histogram(buckets=buckets, sum=one.total, count=round(one.count))


def added(counters: Iterable[EngineCounters]) -> EngineCounters:
    """The counters of several passes as one. What one of them lacks is None."""
    every = list(counters)
    values: dict[str, Any] = {}
    for name in (*_NUMBERS, "iterations", "iteration_tokens"):
        each = [getattr(one, name) for one in every]
        values[name] = sum(each) if each and None not in each else None
    for name in _HISTOGRAMS:
        values[name] = _sum([getattr(one, name) for one in every])
    sizes = {one.kv_cache_tokens for one in every}
    return EngineCounters(**values, kv_cache_tokens=sizes.pop() if len(sizes) == 1 else None)


def _sum(every: Sequence[Histogram | None]) -> Histogram | None:
    known = [one for one in every if one is not None]
    if not known or len(known) != len(every):
        return None
    bounds = [bound for bound, _ in known[0].buckets]
    if any([bound for bound, _ in one.buckets] != bounds for one in known):
        return None
    counts = [sum(one.buckets[place][1] for one in known) for place in range(len(bounds))]
    return Histogram(buckets=list(zip(bounds, counts, strict=True)), sum=sum(one.sum for one in known),
                     count=sum(one.count for one in known))  # fmt: skip


def log_lines(text: str) -> dict[str, dict[str, Any]]:
    """Lines of the edge's access log by request id; what is no JSON object is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            found[entry["id"]] = entry
    return found


def edge_counters(requests: Sequence[Request], log: Mapping[str, Mapping[str, Any]]) -> EdgeCounters:
    """What the access log says of these requests."""
    pairs = [(one, log[one.id]) for one in requests if one.id in log]
    waits = [float(entry["queue_ms"] or 0) / 1000 for _, entry in pairs]
    both = [(one.ttft, float(entry["ttft_ms"]) / 1000) for one, entry in pairs
            if one.ttft is not None and entry.get("ttft_ms") is not None]  # fmt: skip
    apart = sorted(abs(client - edge) for client, edge in both)
    agreeing = sum(abs(client - edge) <= AGREE_SECONDS + AGREE_SHARE * edge for client, edge in both)
    return EdgeCounters(
        joined=len(pairs),
        queued=sum(wait > 0 for wait in waits),
        queue_wait=distribution([waits]),
        ttft_difference_p99=quantile(apart, 0.99) if apart else None,
        ttft_agreeing=agreeing / len(both) if both else None,
        by_backend=dict(Counter(str(entry["backend"]) for _, entry in pairs if entry.get("backend"))),
    )
