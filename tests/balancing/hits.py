"""Prefix hits: conversations over shared system prompts on two real vLLM engines, counted by the engines themselves."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

from control.bench.edge.peers import SGLANG_ROUTER, VLLM_ROUTER
from tests.balancing.clients import Client, Text, drive
from tests.balancing.comparison import facts, of_runs, ratios
from tests.balancing.routers import OURS, Router
from tests.balancing.vllm_engines import MODEL, cache
from tests.support.client import percentile
from tests.support.proof import Row, row

USERS, TURNS, SYSTEMS, AT_ONCE = 24, 6, 4, 8
SYSTEM_WORDS, TURN_WORDS, ANSWER_TOKENS = 60, 12, 12

ALONE = Router("one engine", "alone")
PREFIX = Router(OURS, "prefix")
SGLANG = Router(SGLANG_ROUTER.name, "cache_aware")
ARMS = (ALONE, PREFIX, SGLANG, Router(VLLM_ROUTER.name, "round_robin"), Router(VLLM_ROUTER.name, "cache_aware"))


@dataclass(frozen=True)
class Hits:
    """One arm: hits per query, the greatest share of queries that one engine got, seconds of the answers."""

    rate: float
    share: float
    p50: float
    p99: float


async def converse(client: Client, seed: str) -> None:
    """24 users of 6 turns each, 8 requests at a time; who has waited longest is next."""
    text = Text(seed)
    systems = [text.words(SYSTEM_WORDS) for _ in range(SYSTEMS)]
    turn = asyncio.Semaphore(AT_ONCE)

    async def user(number: int) -> None:
        messages = [{"role": "system", "content": systems[number % SYSTEMS]}]
        for _ in range(TURNS):
            messages.append({"role": "user", "content": text.words(TURN_WORDS)})
            body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS}
            async with turn:
                answer = await client.chat({**body, "ignore_eos": True, "temperature": 0.8})
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    await asyncio.gather(*(user(number) for number in range(USERS)))


def measure(arm: Router, engines: Sequence[str], seed: str) -> Hits:
    """One arm on fresh text."""
    if arm is ALONE:
        engines = engines[:1]
    with nullcontext(engines[0]) if arm is ALONE else arm.in_front_of(MODEL, engines) as url:
        before = [cache(engine) for engine in engines]
        latencies = drive(url, lambda client: converse(client, seed))
        after = [cache(engine) for engine in engines]
    queries = [new.queries - old.queries for new, old in zip(after, before, strict=True)]
    hits = sum(new.hits - old.hits for new, old in zip(after, before, strict=True))
    p50, p99 = (percentile(latencies, share) for share in (0.5, 0.99))
    return Hits(hits / sum(queries), max(queries) / sum(queries), p50, p99)


def repeat(engines: Sequence[str], arms: Sequence[Router] = ARMS) -> dict[str, Hits]:
    """All arms one after the other, each with conversations of its own."""
    found = {}
    for arm in arms:
        found[arm.title] = hits = measure(arm, engines, uuid.uuid4().hex)
        print(f"  {arm.title}: {hits.rate:.3f} hits per query, {hits.share:.1%} on one engine, "
              f"p50 {hits.p50:.2f} s, p99 {hits.p99:.2f} s", file=sys.stderr, flush=True)  # fmt: skip
    return found


def rows(repeats: Sequence[dict[str, Hits]]) -> list[Row]:
    """The promises, from all repeats."""
    figures = [
        {
            title: {"hits per query": one.rate, "greatest share of one engine": one.share, "latency p50, s": one.p50,
                    "latency p99, s": one.p99}
            for title, one in found.items()
        }
        for found in repeats
    ]  # fmt: skip
    ours, alone, sglang = PREFIX.title, ALONE.title, SGLANG.title
    of_one = ratios(figures, "hits per query", ours, alone)
    short = [found[sglang].rate - found[ours].rate for found in repeats]
    shares = [found[ours].share for found in repeats]
    rates = f"{of_runs(len(repeats))}: {USERS} users with {TURNS} turns on two vLLM engines"
    return [
        row("Prefix hits per query on two engines, of those of one engine alone", median(of_one), 0.97, "×",
            f"{rates}; worst {min(of_one):.3f}", at_least=True,
            **facts("Conversations over shared system prompts, real vLLM", figures)),
        row("No engine computes more than 60 % of what shares system prompts", max(shares), 0.6, "of the tokens",
            f"the worst of the same; median {median(shares):.3f}"),
        row("Prefix hits per query less than with sglang-router's cache_aware", median(short), 0.01, "hits per query",
            f"the same; worst {max(short):.3f}"),
    ]  # fmt: skip
