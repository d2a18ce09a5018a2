"""What one scripted engine knows and counts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from tests.scripted.script import Script

#: Upper bounds in seconds of every latency histogram.
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """A cumulative histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.total += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1


@dataclass
class Engine:
    """Settings and counters of the process. ``names[0]`` is the name that metrics carry."""

    names: list[str]
    loras: list[str] = field(default_factory=list)
    api_key: str = ""
    max_model_len: int = 4_194_304
    script: Script = field(default_factory=Script)
    frozen: bool = False  # /health stays 200, /metrics stands still, nothing is generated
    stale: bytes = b""  # what /metrics says meanwhile
    health_status: int = 200
    health_delay_ms: float = 0
    metrics_status: int = 200
    max_running: int = 0  # requests that generate at a time, as vLLM's max_num_seqs; the others wait. 0: no bound
    waiting: int = 0  # gauges of /metrics; requests that wait for their turn are added
    kv_usage: float = 0
    kv_tokens: int = 16_000_000
    models_delay_ms: float = 0
    started_at: float = field(default_factory=time.time)
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    starts: Any = None  # a file to which every started request's id is written at once
    server: Any = None  # uvicorn's Server, for refusing connections a while

    opened: int = 0
    open: int = 0
    post_connections: int = 0  # connections that carried at least one POST
    started: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    running: int = 0
    generating: int = 0  # sequences (n of each request) whose last byte is not written yet
    peak: int = 0  # the most of them at one time
    queued: int = 0  # requests that wait for their turn
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=100))
    responses: dict[str, dict[str, Any]] = field(default_factory=dict)

    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0  # of the scheduler, without a token
    reasons: Counter[str] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.max_running) if self.max_running else None

    async def work(self, ms: float) -> None:
        """Let time pass as in a long prefill: the scheduler's steps are counted, tokens are not there yet."""
        while ms > 0:
            await asyncio.sleep(min(ms, 250) / 1000)
            await self.melt()
            self.steps += ms > 250
            ms -= 250

    async def melt(self) -> None:
        """Wait while the engine is frozen."""
        while self.frozen:
            await asyncio.sleep(0.02)

    def reset(self) -> None:
        """Counters back to zero; open connections and running requests stay what they are."""
        self.opened = self.post_connections = 0
        self.peak = self.generating
        for counter in (self.started, self.finished, self.aborted):
            counter.clear()
        self.last.clear()

    def counters(self) -> dict[str, Any]:
        """What ``GET /_scripted`` answers."""
        return {
            "scripted": True,
            "instance": self.instance,
            "connections": {"opened": self.opened, "open": self.open, "with_post": self.post_connections},
            "started": dict(self.started),
            "finished": dict(self.finished),
            "aborted": dict(self.aborted),
            "running": self.running,
            "peak": self.peak,
            "requests": list(self.last),
            "tokens": {"prompt": self.prompt_tokens, "generation": self.generation_tokens},
        }
