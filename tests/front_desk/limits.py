"""Limits under a hundred clients at once: exact, corrected by what the engine counted, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import requests

from tests.front_desk.where import MEMORY, Where
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row
from tests.support.queueing import hold

CLIENTS = 100
PLACES = 10
#: The most of an answer that is reserved, and answers of one request that take a whole minute's worth.
ANSWER, ANSWERS = 4096, 15


@dataclass(frozen=True)
class Scale:
    """Times in seconds. ``overshoot``: of the tokens that were due, so many may be taken beyond.

    What is under way may take more than was estimated, which is charged afterwards: in a few seconds that weighs more
    than in minutes. ``whole``: wait until the rate is whole again, up to a minute. ``where`` it is counted.
    """

    seconds: float
    tokens_per_minute: int
    tokens_seconds: float
    overshoot: float
    budget_requests: int
    whole: bool
    where: Where = MEMORY


FULL, SMALL = Scale(15, 60_000, 120, 0.02, 600, True), Scale(2, 6_000, 3, 0.15, 60, False)


def _edge(engine: ScriptedEngine, where: Where, **limits: int) -> Edge:
    fleet = {"models": {"alpha": {"backends": [{"id": "alpha-1", "url": engine.url}], "limits": limits}}}
    return Edge(where.of(fleet))


def crowd(work: Callable[[httpx.AsyncClient, int], Awaitable[None]], clients: int = CLIENTS) -> None:
    """Run ``work`` for each of the clients, all at once."""

    async def run() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
        async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
            await asyncio.gather(*(work(http, number) for number in range(clients)))

    asyncio.run(run())


def _spent(edge: Edge, where: Where) -> int:
    """What the edge has written down of budgets when it ends."""
    if where.redis is not None:
        names = [name for name in where.redis.names() if "budget/" in name]
        return sum(int(where.redis.call("GET", name)) for name in names)
    edge.process.stop(quit=True)
    texts = [path.read_text() for path in edge.paths.edge.glob("run/budgets-*")]
    newest = max(texts, key=lambda text: int(text.split()[0]) if text else 0)
    return sum(int(tokens) for tokens in re.findall(r"^budget/\S+ (\d+)$", newest, re.MULTILINE))


def _all_of_it(edge: Edge, limit: int) -> requests.Response:
    """Ask for as much as a limit allows in a minute, less than ``ANSWERS`` tokens short of it."""
    body = {**chat("alpha", tokens=1), "max_tokens": ANSWER, "n": ANSWERS}
    told = check_error(edge.chat(body), 429, "request_too_large")
    prompt = int(re.findall(r"about (\d+) tokens", told)[0]) - ANSWERS * ANSWER
    return edge.chat({**body, "max_tokens": (limit - prompt) // ANSWERS})


def _seconds(text: str) -> float:
    """``1m30s``, ``12.5s`` or ``850ms``."""
    parts = re.findall(r"([\d.]+)(ms|h|m|s)", text)
    return sum(float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)


def per_minute(scale: Scale) -> list[Row]:
    """120 requests a minute: two come back each second."""
    limit, codes = 120, []
    with ScriptedEngine("alpha") as engine, _edge(engine, scale.where, requests_per_minute=limit) as edge:
        began = time.monotonic()

        async def client(http: httpx.AsyncClient, _: int) -> None:
            while time.monotonic() < began + scale.seconds:
                codes.append((await http.post(edge.url + CHAT, json=chat("alpha", tokens=1))).status_code)
                await asyncio.sleep(0.1)

        crowd(client)
        edge.idle()
        # By the edge's clock: a busy client hears of it late.
        came = [line["time"] - line["total_ms"] / 1000 for line in edge.log_of_all(len(codes)) if line["status"] == 200]
        expected = limit + int((max(came) - min(came)) * limit / 60)
        assert set(codes) == {200, 429} and engine.started() == codes.count(200)
    return [row("Requests per minute are exact", abs(codes.count(200) - expected), 1, "requests too many or too few",
                f"{CLIENTS} clients, {len(codes)} requests in {scale.seconds:g} s at {limit} a minute: "
                f"{codes.count(200)} passed, {expected} were due")]  # fmt: skip


def at_once(scale: Scale) -> list[Row]:
    """Ten at the same time, by the engine's own peak; then all ten places are there again."""
    codes: list[int] = []
    with ScriptedEngine("alpha") as engine, _edge(engine, scale.where, concurrent=PLACES) as edge:
        until = time.monotonic() + scale.seconds

        async def client(http: httpx.AsyncClient, number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < until:
                body = chat("alpha", stream=chance.random() < 0.5, tokens=chance.randint(1, 20), delay_ms=5)
                try:
                    # A third of those that run leave.
                    async with asyncio.timeout(0.03 if chance.random() < 0.3 else None):
                        codes.append((await http.post(edge.url + CHAT, json=body)).status_code)
                except TimeoutError:
                    pass
                await asyncio.sleep(0.05)

        crowd(client)
        peak = int(engine.counters()["peak"])
        edge.idle()
        holders = [hold(edge, f"hold-{number}") for number in range(PLACES)]
        check_error(edge.chat(chat("alpha")), 429, "concurrency_limit")
        for holder in holders:
            holder.close()
        edge.idle()
    what = f"{CLIENTS} clients, {codes.count(200)} answered, {codes.count(429)} refused, others left; limit {PLACES}"
    return [
        row("As many run at the same time as allowed", abs(peak - PLACES), 0, "too many or too few",
            f"{what}: the engine's peak was {peak}, and afterwards {PLACES} places were free and not one more"),
    ]  # fmt: skip


def tokens(scale: Scale) -> list[Row]:
    """Tokens taken by streams and plain answers, some of whose clients leave."""
    limit = scale.tokens_per_minute
    with (
        ScriptedEngine("alpha") as engine,
        _edge(engine, scale.where, tokens_per_minute=limit, concurrent=1000) as edge,
    ):
        began = time.monotonic()
        until, codes = began + scale.tokens_seconds, []

        async def client(http: httpx.AsyncClient, number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < until:
                codes.append(await _take(http, edge.url + CHAT, chance))
                if codes[-1] == 429:
                    await asyncio.sleep(chance.uniform(0.1, 0.4))

        crowd(client)
        edge.idle()
        took, used = time.monotonic() - began, _engine_tokens(engine)
        rows = _tokens_rows(scale, limit, took, used, codes)
        return [*rows, *(_whole_again(edge, limit) if scale.whole else [])]


def _whole_again(edge: Edge, limit: int) -> list[Row]:
    refused = _all_of_it(edge, limit)
    check_error(refused, 429, "rate_limit_exceeded")
    seconds = _seconds(refused.headers["x-ratelimit-reset-tokens"])
    time.sleep(seconds + 0.1)
    there = _all_of_it(edge, limit).status_code == 200
    return [row("Nothing stays reserved: all of a rate is there again", seconds if there else 1e9, 61, "s", "as the "
                f"answer had said; then a request for all {limit} tokens of a minute passed")]  # fmt: skip


def _engine_tokens(engine: ScriptedEngine) -> int:
    text = requests.get(f"{engine.url}/metrics", timeout=5).text
    return sum(
        int(float(found)) for found in re.findall(r"^vllm:(?:prompt|generation)_tokens_total\S* (\S+)", text, re.M)
    )


def _tokens_rows(scale: Scale, limit: int, took: float, used: int, codes: list[int]) -> list[Row]:
    due = limit + took * limit / 60
    over = max(0.0, used / due - 1)
    return [row("Tokens per minute: more than allowed, as the engine counted them", over, scale.overshoot,
                "of what was due", f"{CLIENTS} clients, {took:.0f} s at {limit} a minute: {used} of {due:.0f} due; "
                f"{codes.count(200)} answered, {codes.count(0)} left, {codes.count(429)} refused; half are streams, "
                "answers of 1 to 400 tokens, most without max_tokens", used=used, due=round(due))]  # fmt: skip


async def _take(http: httpx.AsyncClient, url: str, chance: random.Random) -> int:
    """One request; its status, or 0 when its client left before the end."""
    stream, length = chance.random() < 0.5, chance.choice((1, 10, 50, 100, 400))
    body = chat("alpha", "word " * chance.randint(1, 50), stream, tokens=length, delay_ms=chance.choice((0, 1, 3)))
    if chance.random() < 0.3:
        body["max_tokens"] = 2 * length
    leaves = chance.random() < 0.2
    try:
        async with asyncio.timeout(chance.uniform(0.01, 0.4) if leaves else None):
            return (await http.post(url, json=body)).status_code
    except TimeoutError:
        return 0


def budget(scale: Scale) -> list[Row]:
    """What a budget has counted against what the engine has, for whole answers."""
    limit = 300_000
    numbers = itertools.count()
    with ScriptedEngine("alpha") as engine, _edge(engine, scale.where, tokens_per_day=limit) as edge:

        async def client(http: httpx.AsyncClient, _: int) -> None:
            while (number := next(numbers)) < scale.budget_requests:
                body = chat("alpha", "word " * (number % 40 + 1), stream=number % 2 == 0, tokens=number % 97 + 1)
                assert (await http.post(edge.url + CHAT, json=body)).status_code == 200

        crowd(client, 20)
        edge.idle()
        used = _engine_tokens(engine)
        if scale.where.redis is not None:  # which is told a moment later
            with contextlib.suppress(AssertionError):
                wait_until("all to be settled", lambda: _spent(edge, scale.where) == used, 5)
        spent = _spent(edge, scale.where)
    return [row("Budgets are what the engine counted", abs(spent - used), 0, "tokens apart",
                f"{scale.budget_requests} answers, half of them streams whose clients did not ask for usage: {used} "
                "tokens")]  # fmt: skip


def usage() -> list[Row]:
    """The event that the edge asked for, cut at every byte: no client sees any of it."""
    events = ['{"choices":[{"index":0,"delta":{"content":"a"}}]}',
              '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}',
              "[DONE]"]  # fmt: skip
    lines = [f"data: {event}\n\n" for event in events]
    stream, wanted, wrong = "".join(lines), lines[0] + lines[2], 0
    with ScriptedEngine("alpha") as engine, _edge(engine, MEMORY, tokens_per_minute=100_000_000) as edge:
        for at in range(1, len(stream)):
            body = chat("alpha", stream=True, raw=stream, split_at=[at], split_ms=3)
            wrong += edge.chat(body).text != wanted
        edge.idle()
        counted = {line["completion_tokens"] for line in edge.log_of_all(len(stream) - 1)}
        assert counted == {1}, counted
    return [row("The usage that the edge asked for is never seen", wrong, 0, "streams differ",
                f"a stream cut in two at each of its {len(stream) - 1} places, and counted")]  # fmt: skip


def proof(scale: Scale = FULL) -> list[Row]:
    """All of it; what clients see of a stream does not depend on where it is counted."""
    rows = [*per_minute(scale), *at_once(scale), *tokens(scale), *budget(scale)]
    return rows if scale.where.redis is not None else [*rows, *usage()]
