"""Where the edge of a proof counts: in memory, or in a Redis of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from tests.support.proof import Proof, Row
from tests.support.redis import Redis

_numbers = itertools.count()


@dataclass(frozen=True)
class Where:
    """In memory without ``redis``."""

    redis: Redis | None = None

    def of(self, fleet: dict[str, Any]) -> dict[str, Any]:
        """The fleet, with an ``edge.state`` that no other edge has used."""
        if self.redis is None:
            return fleet
        state = {"redis": self.redis.url, "prefix": f"proof-{next(_numbers)}"}
        return {**fleet, "edge": {**fleet.get("edge", {}), "state": state}}

    def redis_seconds(self) -> float:
        """CPU seconds that the Redis has taken so far."""
        if self.redis is None or self.redis.process is None:
            return 0.0
        return sum(psutil.Process(self.redis.process.pid).cpu_times()[:2])


MEMORY = Where()


@contextmanager
def a_redis() -> Iterator[Where]:
    """A Redis for the proofs inside."""
    with Redis() as redis:
        yield Where(redis)


def in_redis(proof: Callable[[Where], list[Row]]) -> Proof:
    """The same promises, counted in a Redis."""

    def run() -> list[Row]:
        with a_redis() as where:
            return [{**one, "promise": f"{one['promise']}, in Redis"} for one in proof(where)]

    return run
