"""Engines of unequal speed: one of four scripted engines is three times slower, and every router gets the same load."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from control.bench.edge.peers import SGLANG_ROUTER, VLLM_ROUTER
from tests.balancing.clients import Client, Text, closed_loop, drive, open_loop
from tests.balancing.comparison import Repeat, facts, of_runs, ratios
from tests.balancing.routers import OURS, Router
from tests.support.client import percentile
from tests.support.engine import ScriptedEngine
from tests.support.proof import Row, row

MODEL = "alpha"
#: Milliseconds a token: the last engine is three times slower.
DELAYS = (20, 20, 20, 60)
#: Requests that an engine runs at a time; the others wait there.
MAX_RUNNING = 4
FEWEST_TOKENS, MOST_TOKENS = 4, 16
#: Clients of the closed loop: more than all engines run at a time.
CLIENTS = 28
#: Arrivals a second of the open loop: three quarters of what the engines can do.
RATE = 56.0

LEAST_LOADED = Router(OURS, "least_loaded")
#: As for engines that Signalbox starts itself: the edge knows how many requests one runs at a time.
LIMITED = Router(OURS, f"least_loaded, limit {MAX_RUNNING}")
PEERS = (Router(VLLM_ROUTER.name, "power_of_two"), Router(SGLANG_ROUTER.name, "cache_aware"))
ARMS = (LIMITED, LEAST_LOADED, *PEERS)


@dataclass(frozen=True)
class Load:
    """``count`` requests, the same for every router."""

    title: str
    count: int
    open: bool

    async def __call__(self, seed: str, client: Client) -> None:
        text = Text(seed)
        works = [partial(client.chat, body) for body in bodies(text, self.count)]
        if self.open:
            await open_loop(text.pauses(self.count, 1 / RATE), works)
        else:
            await closed_loop(CLIENTS, works)


def bodies(text: Text, count: int) -> Iterator[dict[str, Any]]:
    """Requests of unequal length that have no beginning in common."""
    for _ in range(count):
        messages = [{"role": "user", "content": text.words(40)}]
        yield {"model": MODEL, "messages": messages, "max_tokens": text.number(FEWEST_TOKENS, MOST_TOKENS)}


@contextmanager
def four_engines() -> Iterator[list[str]]:
    """Addresses of the engines; they end with the block."""
    with ExitStack() as running:
        engines = [ScriptedEngine(MODEL, delay_ms=delay, max_running=MAX_RUNNING) for delay in DELAYS]
        for engine in engines:
            running.enter_context(engine)
        yield [engine.url for engine in engines]


def measure(arm: Router, urls: Sequence[str], load: Load, seed: str) -> list[float]:
    """Latencies of all requests, seconds."""
    with arm.in_front_of(MODEL, urls) as url:
        return drive(url, partial(load, seed))


def repeat(urls: Sequence[str], count: int, arms: Sequence[Router] = ARMS) -> dict[str, dict[str, float]]:
    """Both loads through every router: percentiles in seconds, by arm."""
    found: dict[str, dict[str, float]] = {arm.title: {} for arm in arms}
    for load in (Load("closed loop", count, False), Load("open loop", count, True)):
        seed = uuid.uuid4().hex
        for arm in arms:
            seconds = measure(arm, urls, load, seed)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                found[arm.title][f"{load.title}, {name}, s"] = percentile(seconds, share)
        print(f"  {load.title}: " + ", ".join(f"{title} {values[f'{load.title}, p99, s']:.3f} s"
              for title, values in found.items()), file=sys.stderr, flush=True)  # fmt: skip
    return found


def rows(repeats: Sequence[Repeat]) -> list[Row]:
    """The promises: p99 beside each peer, under each load."""
    found: list[Row] = []
    for load in ("closed loop", "open loop"):
        for peer in PEERS:
            beside = ratios(repeats, f"{load}, p99, s", LIMITED.title, peer.title)
            promise = f"Latency p99 on engines of unequal speed, {load}: `least_loaded` to {peer.title}"
            detail = f"{of_runs(len(repeats))}, worst {max(beside):.2f}; one of four engines three times slower"
            found.append(row(
                promise, median(beside), 1, "×", detail,
                **(facts("One of four engines three times slower", repeats) if not found else {}),
            ))  # fmt: skip
    return found


def proof(repeats: int = 3, count: int = 600) -> list[Row]:
    """Every router under the same load, in changing order."""
    with four_engines() as urls:
        return rows([repeat(urls, count, [*ARMS[number:], *ARMS[:number]]) for number in range(repeats)])
