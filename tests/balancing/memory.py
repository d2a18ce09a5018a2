"""Memory of an edge while it works: samples, and how the last third of them compares with the second."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field

import psutil
import requests

from tests.support.edge import Edge

MB = 1024 * 1024


@dataclass
class Memory:
    """``with Memory(edge) as memory``: a sample each half second. All in bytes.

    ``workers``: private memory of the largest worker; ``master``: that of the master; ``dictionaries``: what is used of
    all shared dictionaries.
    """

    edge: Edge
    workers: list[float] = field(default_factory=list)
    master: list[float] = field(default_factory=list)
    dictionaries: list[float] = field(default_factory=list)

    def __enter__(self) -> Memory:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(0.5):
            sizes = [size for pid in self.edge.workers() if (size := _private(pid))]
            if sizes:
                self.workers.append(max(sizes))
            self.master.append(_private(self.edge.process.pid() or 0))
            try:
                samples = self.edge.metrics()
            except requests.RequestException:  # the worker that was asked is being killed
                continue
            used = {"capacity": 0.0, "free": 0.0}
            for series, value in samples.items():
                for what in used:
                    if series.startswith(f"signalbox_dict_{what}_bytes"):
                        used[what] += value
            self.dictionaries.append(used["capacity"] - used["free"])
            time.sleep(0.5)


def _private(pid: int) -> float:
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0.0
    return float(memory.rss - memory.shared)


def growth(samples: list[float]) -> tuple[float, float]:
    """Median of the second third, and what the median of the last third is above it."""
    third = len(samples) // 3
    second = statistics.median(samples[third : 2 * third])
    return second, statistics.median(samples[2 * third :]) - second
