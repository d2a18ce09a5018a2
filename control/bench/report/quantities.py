"""The figures that are shown and compared: their names, their units, and which way is better. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from control.bench.results import Estimate, Figures, Metric

Kind = Literal["seconds", "rate", "share"]


@dataclass(frozen=True)
class Quantity:
    """One figure. ``of`` takes it from the figures of a variant or group; None where there is none."""

    key: str
    title: str
    kind: Kind
    less_is_better: bool
    of: Callable[[Figures], Estimate | None]


class Scale(NamedTuple):
    """How values of one row are written: multiplied by ``factor``, with ``unit`` behind them."""

    factor: float
    unit: str


def _percentile(metric: Metric, name: str) -> Quantity:
    def of(figures: Figures) -> Estimate | None:
        distribution = getattr(figures, metric)
        estimate: Estimate | None = None if distribution is None else getattr(distribution, name)
        return estimate

    return Quantity(f"{metric}.{name}", f"{metric.upper()} {name.upper()}", "seconds", True, of)


METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl", "e2e")
_NAMES = ("p50", "p90", "p99")
QUANTITIES: tuple[Quantity, ...] = (
    *(_percentile(metric, name) for metric in METRICS for name in _NAMES),
    Quantity("output_tokens_per_second", "output tokens/s", "rate", False, lambda one: one.output_tokens_per_second),
    Quantity("requests_per_second", "requests/s", "rate", False, lambda one: one.requests_per_second),
    Quantity("goodput", "goodput, requests/s", "rate", False, lambda one: one.goodput),
    Quantity("slo_share", "within the SLO", "share", False, lambda one: one.slo_share),
)
BY_KEY = {one.key: one for one in QUANTITIES}


def scale(kind: Kind, values: Iterable[float]) -> Scale:
    """One scale for all values of a row: milliseconds only where none of them reaches a second."""
    if kind == "share":
        return Scale(100, "%")
    if kind == "rate":
        return Scale(1, "")
    return Scale(1, "s") if max(values, default=0.0) >= 1 else Scale(1000, "ms")


def number(value: float) -> str:
    """Three digits or a little more, with commas in thousands."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def shown(value: float, by: Scale) -> str:
    """A value with its unit."""
    return f"{number(value * by.factor)} {by.unit}".rstrip()


def interval(estimate: Estimate, by: Scale) -> str:
    """``2.51 to 4.40``; empty where nothing is known of the spread."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{number(estimate.low * by.factor)} to {number(estimate.high * by.factor)}"


def percent(share: float) -> str:
    """``12 %``; one digit behind the point below ten. Never "0.0 %" for what is not nothing."""
    value = abs(share) * 100
    if 0 < value < 0.1:
        return "less than 0.1 %"
    return f"{value:,.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"
