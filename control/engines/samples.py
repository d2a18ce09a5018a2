"""What an engine uses of its machine, looked at every few seconds and kept for an hour. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from control.engines.gpus import Gpu
from control.engines.progress import size_text

#: Seconds between two looks; so many are kept: an hour.
INTERVAL, KEPT = 5.0, 720
#: A look that is older than this says nothing of now (seconds).
FRESH = 3 * INTERVAL
MINUTES = int(INTERVAL * KEPT / 60)
_Amount = TypeVar("_Amount", int, float)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, ``at`` Unix seconds. What nothing tells is None.

    ``cpu``: percent of one CPU, all its processes together. ``memory``: main memory in bytes. Of the engine's GPUs:
    ``gpu`` is the mean of how busy they were in percent; memory in bytes and ``power`` in watts are added up.
    """

    at: float
    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    power: float | None = None

    def words(self) -> str:
        """The same for people: ``GPU 93 %, 21.5 of 25.8 GB, 310 W; CPU 104 %, 3.2 GB``."""
        gpu = [f"GPU {self.gpu:.0f} %"] if self.gpu is not None else []
        if self.gpu_memory is not None and self.gpu_memory_total is not None:
            gpu.append(f"{size_text(self.gpu_memory)} of {size_text(self.gpu_memory_total)}")
        elif self.gpu_memory is not None:
            gpu.append(size_text(self.gpu_memory))
        gpu += [f"{self.power:.0f} W"] if self.power is not None else []
        cpu = [f"CPU {self.cpu:.0f} %"] if self.cpu is not None else []
        cpu += [size_text(self.memory)] if self.memory is not None else []
        return "; ".join(", ".join(part) for part in (gpu, cpu) if part)


@dataclass(frozen=True, slots=True)
class Spent:
    """A counter: ``seconds`` of CPU time until the moment ``at`` (seconds of a clock that nobody sets)."""

    seconds: float
    at: float

    def percent_since(self, before: Spent | None) -> float | None:
        """Percent of one CPU since then; None when there is nothing to compare with."""
        if before is None or self.at <= before.at:
            return None
        # Time of a process that ended meanwhile is not in the sum any more.
        return max(0.0, 100 * (self.seconds - before.seconds) / (self.at - before.at))


class Hour:
    """The samples of one engine. A look that failed leaves a gap."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, sample: Sample) -> None:
        """The newest look."""
        self._samples.append(sample)

    def since(self, at: float) -> list[Sample]:
        """All that are not older than ``at``, oldest first."""
        return [sample for sample in list(self._samples) if sample.at >= at]

    def now(self, at: float) -> Sample | None:
        """The newest one, unless it says nothing of the moment ``at`` any more."""
        newest = self._samples[-1] if self._samples else None
        return newest if newest is not None and at - newest.at <= FRESH else None


def minutes(samples: Iterable[Sample], field: str, at: float) -> tuple[float | None, ...]:
    """The mean of ``field`` in each of the 60 minutes up to that of ``at``, oldest first; None where nobody knows.

    Minutes of the clock, so that a past one does not change any more.
    """
    found: list[list[float]] = [[] for _ in range(MINUTES)]
    for sample in samples:
        value, ago = getattr(sample, field), int(at // 60) - int(sample.at // 60)
        if value is not None and 0 <= ago < MINUTES:
            found[MINUTES - 1 - ago].append(value)
    return tuple(sum(values) / len(values) if values else None for values in found)


@dataclass(frozen=True)
class Use:
    """What is shown of one engine: ``now``, and each minute of the last hour of ``field`` (gpu, or cpu without GPU)."""

    now: Sample | None
    field: str
    hour: tuple[float | None, ...]


def use(hour: Hour, at: float) -> Use:
    """What is shown at the moment ``at`` (Unix seconds)."""
    samples = hour.since(at - INTERVAL * KEPT)
    field = "gpu" if any(sample.gpu is not None for sample in samples) else "cpu"
    values = minutes(samples, field, at)
    return Use(hour.now(at), field, tuple(None if value is None else round(value, 1) for value in values))


def with_gpus(sample: Sample, gpus: Iterable[Gpu]) -> Sample:
    """The sample with what its GPUs do."""
    found = list(gpus)
    if not found:
        return sample
    busy = [gpu.percent for gpu in found if gpu.percent is not None]
    return replace(
        sample,
        gpu=sum(busy) / len(busy) if busy else None,
        gpu_memory=_sum([gpu.memory for gpu in found if gpu.memory is not None]),
        gpu_memory_total=_sum([gpu.memory_total for gpu in found if gpu.memory_total is not None]),
        power=_sum([gpu.power for gpu in found if gpu.power is not None]),
    )


def _sum(known: Sequence[_Amount]) -> _Amount | None:
    return sum(known[1:], known[0]) if known else None
