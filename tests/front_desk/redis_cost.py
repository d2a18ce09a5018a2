"""What a Redis costs a request when little is going on: one edge counts in memory, one in Redis, asked in turns."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from control.bench.edge.client import latencies
from control.bench.edge.load import chat_body
from control.bench.edge.process import two_cores
from control.bench.edge.stand import fake_engine, on_core, signalbox
from tests.support.proof import Row, row
from tests.support.redis import Redis

MEMORY, REDIS = "memory", "redis"
#: Requests of each edge in one block, and blocks: what else the machine does hits some of them, not all.
FULL, SMALL = (3_000, 9), (300, 3)


@dataclass(frozen=True)
class Block:
    """Milliseconds from a request's first byte to its answer's last, of each edge."""

    memory: list[float]
    redis: list[float]

    def added(self, percent: int) -> float:
        """How much more a percentile of the one is than that of the other."""
        return percentile(self.redis, percent) - percentile(self.memory, percent)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def measure(requests: int, blocks: int) -> list[Block]:
    """One client, one request at a time, the edges in turns; keys, limits of key and model, slots: all is on.

    The edges share a core; Redis, the engine and the client have the other one.
    """
    cores = two_cores()
    folder = Path(tempfile.mkdtemp(prefix="redis-cost-"))
    folder.chmod(0o755)  # the edges' workers are nobody
    with on_core(cores.load):
        redis = Redis().start()
    try:
        with (
            fake_engine(cores, folder) as stand,
            signalbox(stand, MEMORY) as memory,
            signalbox(stand, REDIS, redis.url) as shared,
            on_core(cores.load),
        ):
            ports, body = {MEMORY: memory.port, REDIS: shared.port}, chat_body(1_000)
            found = [latencies(ports, body, requests) for _ in range(blocks)]
    finally:
        redis.__exit__()
    return [Block(*([one / 1000 for one in block[name]] for name in (MEMORY, REDIS))) for block in found]


def rows(blocks: list[Block]) -> list[Row]:
    """The median of what the blocks say, so that a stall of the machine is not taken for Redis."""
    what = (
        f"{len(blocks)} times {len(blocks[0].redis)} requests of each, one at a time, in turns; limits of key and model"
    )
    found = []
    for name, percent in (("p99", 99), ("median", 50)):
        added = sorted(block.added(percent) for block in blocks)
        with_redis, without = (
            statistics.median(percentile(taken, percent) for taken in takes)
            for takes in ([block.redis for block in blocks], [block.memory for block in blocks])
        )
        detail = (
            f"{what}: {with_redis:.2f} ms with Redis, {without:.2f} ms in memory; the median of all times,"
            f" single ones {added[0]:.2f} to {added[-1]:.2f}"
        )
        promise = f"At low load Redis adds so much to a request's time: {name}"
        found.append(row(promise, statistics.median(added), 1, "ms", detail, single=[round(one, 3) for one in added]))
    return found


def proof() -> list[Row]:
    return rows(measure(*FULL))
