"""What changed during a pass: token rates, and the longest gaps between tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev

from control.bench.records import Request
from control.bench.results import Estimate, Run, Timeline

#: With fewer samples at full load a spread is not worth telling.
_LEAST_SAMPLES = 8


def token_rate(timeline: Timeline) -> list[float | None]:
    """Output tokens a second between each sample and the one before; None where either is not known."""
    rates: list[float | None] = [None] * min(1, len(timeline.t))
    rows = zip(timeline.t, timeline.generation_tokens, strict=True)
    for (before, old), (now, new) in pairwise(rows):
        known = old is not None and new is not None and new >= old and now > before
        rates.append((new - old) / (now - before) if known else None)  # type: ignore[operator]
    return rates


def swing(timeline: Timeline) -> float | None:
    """Standard deviation of the token rate by its mean, while at least half as many ran as at most; None if too short.

    Beginning and end are left out: there the rate changes because the load does.
    """
    most = max((value for value in timeline.running if value is not None), default=0.0)
    busy = [place for place, value in enumerate(timeline.running) if value is not None and value >= most / 2 > 0]
    if not busy:
        return None
    rates = [one for one in token_rate(timeline)[busy[0] + 1 : busy[-1] + 1] if one is not None]
    if len(rates) < _LEAST_SAMPLES or not (mean := fmean(rates)):
        return None
    return pstdev(rates) / mean


def unevenness(run: Run, variant: str) -> Estimate | None:
    """``swing`` of a variant's usable passes: its mean, the least and the greatest of them."""
    each = [value for one in run.passes if one.variant == variant and one.usable
            and (value := swing(one.timeline)) is not None]  # fmt: skip
    if not each:
        return None
    several = len(each) > 1
    return Estimate(
        value=fmean(each), low=min(each) if several else None, high=max(each) if several else None, each=each
    )


def longest_gaps(requests: Sequence[Request], started: float, seconds: float, bins: int) -> list[float | None]:
    """The longest gap between two tokens of one answer that ended in each of ``bins`` equal parts of the pass.

    A long prompt that is computed in one step holds up all others: their gaps show it. None where no token came.
    """
    longest: list[float | None] = [None] * bins
    for one in requests if seconds > 0 else ():
        at = one.started - started + (one.ttft or 0.0)
        for gap in one.itl:
            at += gap
            place = at / seconds * bins
            if 0 <= place < bins:
                before = longest[int(place)]
                longest[int(place)] = gap if before is None else max(before, gap)
    return longest
