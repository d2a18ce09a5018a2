"""Looks at engines, edge and machine once a second while a pass runs: its timeline, and whether the client kept up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from control.bench.figures import quantile
from control.bench.records import Request
from control.bench.results import Client, Timeline
from control.errors import SignalboxError
from control.fleet.resolve import ResolvedBackend
from control.tuning.observe import ask
from control.tuning.samples import EngineSample, edge_sample

EVERY = 1.0
#: A sender whose busiest process takes more than this of a core is late with everything it does.
_BUSY_CORES = 0.9
#: A request that is sent later than this after it was due (P99, seconds) was not sent as the workload says.
_LATE_SECONDS = 0.1

Processes = Callable[[], Sequence[psutil.Process]]


def look(backends: Sequence[ResolvedBackend]) -> list[EngineSample | None]:
    """What each engine says of itself now; None of one that does not answer, or tells nothing that vLLM tells."""
    with ThreadPoolExecutor(len(backends)) as pool:
        return [sample for sample, _ in pool.map(ask, backends)]


class Watch:
    """``with Watch(...) as watch:`` looks until the end of the block; ``timeline`` has what it saw."""

    def __init__(
        self, backends: Sequence[ResolvedBackend], engines: Processes, client: Processes, edge: Callable[[], str] | None
    ) -> None:
        self._backends, self._edge = backends, edge
        self._engines, self._client = _Cores(engines), _Cores(client)
        self._columns: dict[str, list[float | None]] = {name: [] for name in Timeline.model_fields}
        self._busiest: list[float] = []
        self._all: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-watch", daemon=True)
        self.began = time.time()

    def __enter__(self) -> Watch:
        psutil.cpu_percent()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        generated: float | None = None
        while not self._over.wait(EVERY):
            samples = look(self._backends)
            waiting = self._in_edge()
            total = _sum(samples, "generation_tokens")
            generated = total if generated is None else generated
            _, engine_cpu = self._engines.since()
            busiest, client_cpu = self._client.since()
            self._busiest.append(busiest)
            self._all.append(client_cpu)
            usages = [one.kv_usage for one in samples if one is not None and one.kv_usage is not None]
            row: dict[str, float | None] = {
                "t": round(time.time(), 3),
                "running": _sum(samples, "running"),
                "waiting": _sum(samples, "waiting"),
                "kv_usage": max(usages, default=None),
                "in_edge": waiting,
                "generation_tokens": None if total is None or generated is None else total - generated,
                "cpu": psutil.cpu_percent() / 100,
                "engine_cpu": round(engine_cpu, 3),
                "memory": float(psutil.virtual_memory().used),
            }
            for name, column in self._columns.items():
                column.append(row[name])

    def _in_edge(self) -> float | None:
        if self._edge is None:
            return None
        try:
            sample = edge_sample(self._edge(), time.monotonic())
        except (SignalboxError, ValueError):
            return None
        return sum(model.waiting for model in sample.models.values())

    def timeline(self, started: float) -> Timeline:
        """What was seen from ``started`` (Unix seconds) on."""
        keep = [place for place, at in enumerate(self._columns["t"]) if at is not None and at >= started]
        columns = {name: [column[place] for place in keep] for name, column in self._columns.items()}
        columns["t"] = [round((at or 0.0) - started, 3) for at in columns["t"]]
        return Timeline.model_validate(columns)

    def client(self, requests: Sequence[Request]) -> Client:
        """Whether the load generator kept up with these requests."""
        return client(requests, self._busiest, self._all)


def client(requests: Sequence[Request], busiest: Sequence[float], together: Sequence[float]) -> Client:
    """The same from numbers: cores of its busiest process and of all, once a second. Pure."""
    late = sorted(max(0.0, one.started - one.due) for one in requests) or [0.0]
    told = Client(
        lateness_p50=quantile(late, 0.5),
        lateness_p99=quantile(late, 0.99),
        cpu_busiest=round(quantile(sorted(busiest), 0.9), 3) if busiest else None,
        cpu=round(sum(together) / len(together), 3) if together else None,
    )
    reasons = []
    if told.cpu_busiest is not None and told.cpu_busiest > _BUSY_CORES:
        reasons.append(f"one process of the load generator took {told.cpu_busiest:.2f} of a core: its times are late")
    if told.lateness_p99 > _LATE_SECONDS:
        reasons.append(f"1 % of the requests were sent {told.lateness_p99 * 1000:.0f} ms or more after they were due")
    return told.model_copy(update={"overloaded": reasons})


def _sum(samples: Sequence[EngineSample | None], name: str) -> float | None:
    known = [value for one in samples if (value := getattr(one, name, None)) is not None]
    return float(sum(known)) if known else None


class _Cores:
    """CPU time of changing processes since the last question, in cores: of the busiest, and of all together."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._last: dict[int, float] = {}
        self._at = time.monotonic()

    def since(self) -> tuple[float, float]:
        now, seen = time.monotonic(), dict[int, float]()
        for one in self._processes():
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            seen[one.pid] = times.user + times.system
        passed = max(now - self._at, 1e-6)
        each = [(used - self._last[pid]) / passed for pid, used in seen.items() if pid in self._last]
        self._last, self._at = seen, now
        return max(each, default=0.0), sum(each)
