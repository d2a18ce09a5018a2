"""The last hour in bins of half a minute, from samples that come and sometimes do not. Pure: the time is given.

The newest numbers are over a shorter span: from the oldest sample of the last minute to the newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from control.web.recent import Answers
from control.web.traffic import ALL, Sample, Share, Traffic, between, shares

BIN, BINS = 30.0, 120
#: Seconds that the newest numbers are over, and after which a silent edge has none.
NOW, STALE = 60.0, 15.0


@dataclass(frozen=True)
class Gauges:
    """What the edge says of a backend at one moment."""

    in_flight: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None


@dataclass(frozen=True)
class BackendPoint:
    """One backend over one bin. Times in seconds, tokens per second; None where nothing is known."""

    gauges: Gauges | None
    share: Share | None
    answers: Answers | None


@dataclass(frozen=True)
class Bin:
    """All models and backends over one bin; empty when the edge did not tell."""

    models: Mapping[str, Traffic] = field(default_factory=dict)
    backends: Mapping[str, BackendPoint] = field(default_factory=dict)


class History:
    """Takes what is seen, gives the newest numbers and the series. Not thread-safe: the poller owns it."""

    def __init__(self) -> None:
        self._recent: deque[Sample] = deque()
        self._bins: deque[Bin] = deque(maxlen=BINS)
        self._start: Sample | None = None
        self._number: int | None = None

    @property
    def bins(self) -> tuple[Bin, ...]:
        """Finished bins, the oldest first."""
        return tuple(self._bins)

    def add(self, sample: Sample, gauges: Mapping[str, Gauges], answers: Mapping[str, Answers]) -> None:
        """The counters now; ``gauges`` of each backend, ``answers`` of the last ``BIN`` seconds."""
        number = int(sample.at // BIN)
        if self._number is None or self._start is None:
            self._pass(number)
            self._number, self._start = number, sample
        elif number > self._number:
            self._bins.append(self._bin(self._start, sample, gauges, answers))
            self._number += 1
            self._pass(number)
            self._start = sample
        self._recent.append(sample)
        while self._recent[0].at < sample.at - NOW:
            self._recent.popleft()

    def miss(self, at: float) -> None:
        """No counters now: the edge does not run, or does not answer."""
        self._pass(int(at // BIN))
        self._start = None
        if self._recent and self._recent[-1].at < at - STALE:
            self._recent.clear()

    def now(self) -> dict[str, Traffic]:
        """Every model's traffic, and that of ALL; empty while unknown."""
        return between(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else {}

    def shares(self) -> dict[str, Share]:
        """Every backend's share."""
        return shares(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else {}

    @property
    def limits(self) -> Mapping[str, float]:
        """How many sequences each backend may have in flight; those without a limit are absent."""
        return self._recent[-1].limits if self._recent else {}

    def _pass(self, number: int) -> None:
        """Empty bins up to ``number``."""
        if self._number is not None:
            self._bins.extend([Bin()] * min(BINS, max(0, number - self._number)))
            self._number = max(number, self._number)

    def _bin(self, start: Sample, sample: Sample, gauges: Mapping[str, Gauges], answers: Mapping[str, Answers]) -> Bin:
        told = shares(start, sample)
        names = {*gauges, *told, *answers}
        points = {name: BackendPoint(gauges.get(name), told.get(name), answers.get(name)) for name in names}
        return Bin(between(start, sample), points)


def model_series(bins: tuple[Bin, ...], field_: str, model: str = ALL) -> list[float | None]:
    """One number of a model over the hour, the newest last."""
    return [getattr(one.models[model], field_) if model in one.models else None for one in bins]


def backend_series(bins: tuple[Bin, ...], room: str, field_: str, backend: str) -> list[float | None]:
    """One number of a backend over the hour: ``room`` is gauges, share or answers."""
    rooms = [getattr(one.backends[backend], room) if backend in one.backends else None for one in bins]
    return [getattr(found, field_) if found is not None else None for found in rooms]
