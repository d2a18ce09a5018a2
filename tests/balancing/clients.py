"""Clients as a comparison needs them: many at once in one process, with text that no engine has seen before."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.client import CHAT

WORDS = ("signal", "train", "track", "yard", "switch", "lamp", "lever", "block", "route", "queue", "token", "cache")


class Text:
    """Words drawn from a seed: equal seeds give equal text, others share no beginning."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def words(self, count: int) -> str:
        return " ".join(f"{self._random.choice(WORDS)}{self._random.randrange(1000)}" for _ in range(count))

    def number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def pauses(self, count: int, mean: float) -> list[float]:
        """Seconds between arrivals that know nothing of each other (a Poisson process)."""
        return [self._random.expovariate(1 / mean) for _ in range(count)]


@dataclass
class Client:
    """One HTTP client on one router. Latencies are seconds."""

    url: str
    http: httpx.AsyncClient
    latencies: list[float] = field(default_factory=list)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """A whole answer; its latency is noted. Raises httpx.HTTPStatusError unless it is a 2xx."""
        began = time.monotonic()
        answer = await self.http.post(self.url + CHAT, json=body)
        answer.raise_for_status()
        self.latencies.append(time.monotonic() - began)
        content: dict[str, Any] = answer.json()
        return content

    async def first_event(self, body: dict[str, Any]) -> None:
        """A stream, read to its end; the time to its first event (TTFT) is noted."""
        began, first = time.monotonic(), 0.0
        async with self.http.stream("POST", self.url + CHAT, json={**body, "stream": True}) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                first = first or (time.monotonic() if line.startswith("data:") else 0.0)
        assert first, "a stream without an event"
        self.latencies.append(first - began)


def drive(url: str, work: Callable[[Client], Awaitable[None]]) -> list[float]:
    """Run ``work`` to its end and return the latencies that it noted, seconds."""

    async def run() -> list[float]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as http:
            client = Client(url, http)
            await work(client)
            return client.latencies

    return asyncio.run(run())


async def closed_loop(count: int, works: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """``count`` clients, each of which takes the next piece of work as soon as its last one is done."""
    left = iter(works)

    async def one() -> None:
        for work in left:
            await work()

    await asyncio.gather(*(one() for _ in range(count)))


async def open_loop(pauses: Iterable[float], works: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Begin each piece of work at its time, however many are still under way. ``pauses``: seconds before each."""
    due, tasks = time.monotonic(), []
    for pause, work in zip(pauses, works, strict=True):
        due += pause
        await asyncio.sleep(due - time.monotonic())
        tasks.append(asyncio.ensure_future(work()))
    await asyncio.gather(*tasks)
