"""From requests to figures: percentiles, rates, goodput, and how far repeats lie apart. Pure.

Confidence intervals come from a bootstrap in two steps (Davison and Hinkley, Bootstrap Methods, 3.8): passes are drawn
with replacement, and requests within each of them, because requests of one pass share its engine and its moment.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from control.bench.records import Request
from control.bench.results import Distribution, Estimate, FailureKind, Figures, Slo

RESAMPLES = 200
CONFIDENCE = 0.95
#: Gaps between tokens are counted in bins this much wider than the one below; so much may a drawn percentile be off.
_BIN = math.log(1.01)
#: Gaps of one read, and all below a microsecond.
_LEAST = 1e-6
_CURVE = [share / 100 for share in range(101)]


@dataclass(frozen=True)
class Measured:
    """The requests of one pass; ``seconds`` from the first one's start to the last one's end, of all groups."""

    requests: Sequence[Request]
    seconds: float


def span(requests: Sequence[Request]) -> float:
    """Seconds from the first start to the last end; 0 for none."""
    if not requests:
        return 0.0
    return max(one.started + one.e2e for one in requests) - min(one.started for one in requests)


def figures(passes: Sequence[Measured], slo: Slo, seed: int = 0) -> Figures:
    """All figures of these passes. ``seed`` is that of the bootstrap: the same passes give the same intervals."""
    everything = [one for measured in passes for one in measured.requests]
    good = [[one for one in measured.requests if one.failure is None] for measured in passes]
    failures: Counter[FailureKind] = Counter(one.failure for one in everything if one.failure is not None)
    asked = bool(slo.ttft or slo.tpot or slo.e2e)
    kept = [[one for one in ones if keeps(one, slo)] for ones in good]
    return Figures(
        sent=len(everything),
        succeeded=sum(map(len, good)),
        failures=dict(failures),
        prompt_tokens=_sum(one.prompt_tokens for ones in good for one in ones),
        output_tokens=_sum(one.output_tokens for ones in good for one in ones),
        ttft=distribution([[one.ttft for one in ones if one.ttft is not None] for ones in good], seed),
        tpot=distribution([[one.tpot for one in ones if one.tpot is not None] for ones in good], seed),
        itl=_gaps([[one.itl for one in ones if one.itl] for ones in good], seed),
        e2e=distribution([[one.e2e for one in ones] for ones in good], seed),
        requests_per_second=_rate([len(ones) for ones in good], passes, seed),
        output_tokens_per_second=_rate([sum(one.output_tokens or 0 for one in ones) for ones in good], passes, seed),
        goodput=_rate([len(ones) for ones in kept], passes, seed) if asked else None,
        slo_share=_mean([len(ones) / len(whole.requests) for ones, whole in zip(kept, passes, strict=True)
                         if whole.requests], seed) if asked else None,
    )  # fmt: skip


def without_curves(whole: Figures) -> Figures:
    """The same for one pass in run.json, where nobody draws it."""
    metrics = {name: getattr(whole, name) for name in ("ttft", "tpot", "itl", "e2e")}
    bare = {name: value and value.model_copy(update={"curve": []}) for name, value in metrics.items()}
    return whole.model_copy(update=bare)


def keeps(one: Request, slo: Slo) -> bool:
    """Whether a whole answer kept every limit. An answer of one token has no TPOT, and so keeps that one."""
    limits = ((one.ttft, slo.ttft), (one.tpot, slo.tpot), (one.e2e, slo.e2e))
    return all(limit is None or value is None or value <= limit for value, limit in limits)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The ``share`` quantile of sorted values, linear between two of them (NumPy's default, type 7)."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(passes: Sequence[Sequence[float]], seed: int = 0) -> Distribution | None:
    """Mean and percentiles of values that each belong to one request; None without values."""
    passes = [values for values in passes if values]

    def draw(choose: random.Random) -> _Values:
        return _Values([value for values in choose.choices(passes, k=len(passes))
                        for value in choose.choices(values, k=len(values))])  # fmt: skip

    return _distribution(passes, draw, seed)


def _gaps(passes: Sequence[Sequence[Sequence[float]]], seed: int) -> Distribution | None:
    """The same of the gaps between tokens: those of one request are drawn together."""
    passes = [requests for requests in passes if requests]
    binned = [[Counter(_bin(gap) for gap in gaps) for gaps in requests] for requests in passes]

    def draw(choose: random.Random) -> _Binned:
        counts: Counter[int] = Counter()
        for requests in choose.choices(binned, k=len(binned)):
            for one in choose.choices(requests, k=len(requests)):
                counts.update(one)
        return _Binned(counts)

    return _distribution([[gap for gaps in requests for gap in gaps] for requests in passes], draw, seed)


class _Drawn(Protocol):
    def mean(self) -> float: ...
    def quantile(self, share: float) -> float: ...


class _Values:
    """Values as they are."""

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)

    def mean(self) -> float:
        return sum(self._ordered) / len(self._ordered)

    def quantile(self, share: float) -> float:
        return quantile(self._ordered, share)


class _Binned:
    """Gaps by bin: sorting them anew for each draw would take minutes."""

    def __init__(self, counts: Counter[int]) -> None:
        self._bins = sorted(counts)
        self._counts = [counts[number] for number in self._bins]
        self._below = list(accumulate(self._counts))

    def mean(self) -> float:
        total = sum(_middle(number) * count for number, count in zip(self._bins, self._counts, strict=True))
        return total / self._below[-1]

    def quantile(self, share: float) -> float:
        return _middle(self._bins[bisect_left(self._below, share * (self._below[-1] - 1) + 1)])


def _bin(gap: float) -> int:
    return round(math.log(max(gap, _LEAST) / _LEAST) / _BIN)


def _middle(number: int) -> float:
    return 0.0 if number == 0 else _LEAST * math.exp(number * _BIN)


def _distribution(
    passes: Sequence[Sequence[float]], draw: Callable[[random.Random], _Drawn], seed: int
) -> Distribution | None:
    if not passes:
        return None
    whole = _Values([value for values in passes for value in values])
    alone = [_Values(values) for values in passes]
    choose = random.Random(seed)
    drawn = [draw(choose) for _ in range(RESAMPLES)] if len(passes) > 1 else []

    def estimate(of: Callable[[_Drawn], float]) -> Estimate:
        return _estimate(of(whole), [of(one) for one in drawn], [of(one) for one in alone])

    return Distribution(
        count=sum(map(len, passes)),
        mean=estimate(lambda values: values.mean()),
        p50=estimate(lambda values: values.quantile(0.50)),
        p90=estimate(lambda values: values.quantile(0.90)),
        p99=estimate(lambda values: values.quantile(0.99)),
        curve=[(share, round(whole.quantile(share), 6)) for share in _CURVE],
    )


def _rate(counts: Sequence[int], passes: Sequence[Measured], seed: int) -> Estimate | None:
    rates = [count / one.seconds for count, one in zip(counts, passes, strict=True) if one.seconds > 0]
    return _mean(rates, seed)


def _mean(values: Sequence[float], seed: int) -> Estimate | None:
    """The mean of one value per pass."""
    if not values:
        return None
    choose = random.Random(seed)
    drawn = [sum(choose.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES)]
    return _estimate(sum(values) / len(values), drawn if len(values) > 1 else [], list(values))


def _estimate(value: float, drawn: list[float], each: list[float]) -> Estimate:
    if not drawn:
        return Estimate(value=value, each=each)
    drawn.sort()
    low, high = (quantile(drawn, share) for share in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Estimate(value=value, low=min(low, value), high=max(high, value), each=each)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
