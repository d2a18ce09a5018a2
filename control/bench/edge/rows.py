"""The rows of the comparison, their bounds, and what repeats add up to: medians, spans, ratios, held or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from control.bench.edge.stand import NGINX, SIGNALBOX, VLLM_ROUTER

#: One repeat: row id → proxy (or "direct") → value in the row's unit.
Repeat = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Bound:
    """A promise about Signalbox: its value, or its ratio to ``against``, is at most ``limit``.

    A limit in milliseconds says nothing on a machine whose cores others hold for longer than that: with ``or_peer``,
    where plain nginx is above the limit in the same run, vllm-router's value is the limit instead.
    """

    limit: float
    against: Literal["vllm-router"] | None = None
    or_peer: bool = False

    def text(self, unit: str) -> str:
        """The bound as people read it."""
        return f"≤ {self.limit:g} × {self.against}" if self.against else f"≤ {self.limit:g} {unit}"


@dataclass(frozen=True)
class Row:
    """One thing measured. ``ratios`` is off where values are differences that may be near zero."""

    id: str
    title: str
    unit: str
    digits: int = 1
    ratios: bool = True
    bound: Bound | None = None


ROWS = (
    Row("cpu_1kb", "CPU per request, 1 KB body", "µs", bound=Bound(1.0, "vllm-router")),
    Row("cpu_10kb", "CPU per request, 10 KB body", "µs", bound=Bound(1.0, "vllm-router")),
    Row("cpu_100kb", "CPU per request, 100 KB body", "µs", bound=Bound(0.9, "vllm-router")),
    Row("cpu_1mb", "CPU per request, 1 MB body", "µs", digits=0),
    Row("cpu_stream", "CPU per stream of 50 events", "µs", digits=0, bound=Bound(1.0, "vllm-router")),
    Row("latency_p50", "Added latency, p50", "µs", digits=0),
    Row("latency_p99", "Added latency, p99", "µs", digits=0),
    Row("chunk_p99", "Added lateness per event, p99", "ms", digits=3, ratios=False, bound=Bound(0.5, or_peer=True)),
    Row("memory_before", "Memory before 50 bodies of 10 MB", "MB"),
    Row("memory_after", "Memory after them", "MB"),
    Row("memory_growth", "Growth of memory", "MB", ratios=False, bound=Bound(64.0)),
)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest of the repeats, and the repeats themselves."""
    return {"median": median(values), "min": min(values), "max": max(values), "repeats": list(values)}


def ratio(row: Row, repeats: Sequence[Repeat], other: str) -> dict[str, Any] | None:
    """Signalbox's value over ``other``'s, computed within each repeat; None where that says nothing."""
    pairs = [(repeat[row.id].get(SIGNALBOX), repeat[row.id].get(other)) for repeat in repeats]
    usable = [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None and theirs > 0]
    return spread(usable) if row.ratios and len(usable) == len(repeats) else None


def judge(row: Row, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row's bound with the value it is held against; ``held`` is None when that was not measured."""
    if row.bound is None:
        return None
    if row.bound.against is None:
        measured = summary["values"].get(SIGNALBOX)
    else:
        measured = summary["ratios"].get(row.bound.against)
    value = None if measured is None else measured["median"]
    limit, text = row.bound.limit, row.bound.text(row.unit)
    if row.bound.or_peer and {NGINX, VLLM_ROUTER} <= set(summary["values"]):
        nginx, peer = (summary["values"][name]["median"] for name in (NGINX, VLLM_ROUTER))
        if nginx > limit:
            text = f"≤ vllm-router (plain nginx is above {limit:g} {row.unit})"
            limit = peer
    return {
        "text": text,
        "limit": limit,
        "against": row.bound.against,
        "value": value,
        "held": None if value is None else value <= limit,
    }


def summarize(repeats: Sequence[Repeat]) -> list[dict[str, Any]]:
    """All rows as they are saved: values of each proxy, ratios, bound."""
    rows = []
    for row in ROWS:
        names = list(repeats[0][row.id])
        summary: dict[str, Any] = {
            "id": row.id,
            "title": row.title,
            "unit": row.unit,
            "digits": row.digits,
            "values": {name: spread([repeat[row.id][name] for repeat in repeats]) for name in names},
            "ratios": {
                other: found for other in (NGINX, VLLM_ROUTER) if (found := ratio(row, repeats, other)) is not None
            },
        }
        summary["bound"] = judge(row, summary)
        rows.append(summary)
    return rows


def failed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Titles of the rows whose bound does not hold."""
    return [row["title"] for row in rows if row["bound"] and row["bound"]["held"] is False]
