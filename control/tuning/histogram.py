"""A Prometheus histogram, and what can be said of what it counted between two looks. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Histogram:
    """Observations by size. ``counts[i]`` are those above ``bounds[i - 1]`` and up to ``bounds[i]``.

    The last count, one more than there are bounds, has those above all of them. ``total`` is the sum of all.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """How many were observed."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean; None when there are none."""
        return self.total / self.count if self.count else None

    def minus(self, older: Histogram) -> Histogram | None:
        """What came after ``older``; None when it is not a later state of the same: the engine was started anew."""
        if self.bounds != older.bounds:
            return None
        counts = tuple(new - old for new, old in zip(self.counts, older.counts, strict=True))
        return None if min(counts) < 0 else Histogram(self.bounds, counts, self.total - older.total)

    def plus(self, other: Histogram) -> Histogram:
        """Both together. Raises ValueError when their bounds differ."""
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bounds cannot be added")
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    def quantile(self, share: float) -> float | None:
        """The value that ``share`` (0 to 1) of all do not exceed; None without any.

        Inside a bucket values are taken to lie evenly, as Prometheus's histogram_quantile does; beyond the last bound
        that bound is given.
        """
        if not self.count:
            return None
        wanted, seen, low = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= wanted:
                return low + (bound - low) * max(0.0, wanted - seen) / count
            seen, low = seen + count, bound
        return low

    def above(self, limit: float) -> float:
        """How many exceed ``limit``; of its own bucket a part in proportion."""
        place = bisect_left(self.bounds, limit)
        beyond = sum(self.counts[place + 1 :])
        if place == len(self.bounds):
            return self.counts[-1]
        low = self.bounds[place - 1] if place else 0.0
        return beyond + self.counts[place] * (self.bounds[place] - limit) / (self.bounds[place] - low)

    def sum_above(self, limit: float) -> float:
        """About how much those that exceed ``limit`` come to, by the middles of their buckets, at most ``total``."""
        edges = (0.0, *self.bounds, self.bounds[-1] if self.bounds else 0.0)
        found = 0.0
        for (low, high), count in zip(pairwise(edges), self.counts, strict=True):
            if high > limit:
                part = (high - limit) / (high - low) if low < limit < high else 1.0
                found += count * part * (max(low, limit) + high) / 2
            elif low == high:  # above all bounds
                found += count * low
        return min(found, self.total)


def joined(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """All that are there and have the bounds of the first, together; None without any."""
    known = [one for one in histograms if one is not None]
    if not known:
        return None
    whole = known[0]
    for one in known[1:]:
        if one.bounds == whole.bounds:
            whole = whole.plus(one)
    return whole
