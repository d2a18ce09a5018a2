"""Who gets how much of an engine that all want: keys by weight, and classes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

from tests.front_desk.where import MEMORY, Where
from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.keyed import bearer, keyed
from tests.support.proof import Row, row

#: Shares are in estimated tokens: the same for all, not learned while it is measured.
#: Slow enough that each client is back in line long before its turn.
BODY = {**chat("alpha", tokens=1, headers_after_ms=20), "max_tokens": 400}
ROUND = 8
#: The parts that weights of three and one should have.
DUE = {"heavy": 0.75, "light": 0.25}


@dataclass(frozen=True)
class Crowd:
    """``clients`` of one key, each of which asks again as soon as it has its answer."""

    key: str
    clients: int
    weight: int = 1
    priority: str = "normal"


def _fleet(engine: ScriptedEngine) -> dict[str, Any]:
    backends = [{"id": "alpha-1", "url": engine.url, "limit": 1}]
    return {"models": {"alpha": {"backends": backends, "queue": {"max_waiting": 400}}}}


def served(where: Where, seconds: float, *crowds: Crowd) -> list[str]:
    """The keys in the order in which the engine got their requests, while all of them waited."""
    keys: dict[str, dict[str, Any]] = {one.key: {"weight": one.weight, "priority": one.priority} for one in crowds}
    with ScriptedEngine("alpha") as engine, keyed(where.of(_fleet(engine)), **keys) as edge:
        answers = asyncio.run(_compete(edge, seconds, crowds))
        edge.idle()
        lines = edge.log_of_all(answers)
    lines.sort(key=lambda line: line["time"])  # one slot: the order of ends is the order of starts
    ends = lines[-1]["time"]
    # Its first second the line fills; in the last second it runs dry.
    return [line["key"] for line in lines if lines[0]["time"] + 1 < line["time"] < ends - 1]


async def _compete(edge: Edge, seconds: float, crowds: tuple[Crowd, ...]) -> int:
    """How many were answered."""
    until, answers = time.monotonic() + seconds, 0

    async def client(http: httpx.AsyncClient, key: str) -> None:
        nonlocal answers
        while time.monotonic() < until:
            answer = await http.post(edge.url + CHAT, json=BODY, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            answers += 1

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
        await asyncio.gather(*(client(http, crowd.key) for crowd in crowds for _ in range(crowd.clients)))
    return answers


def _of_due(order: list[str], key: str, share: float) -> float:
    """By which part of what it should have a key has more or less."""
    return abs(Counter(order)[key] / len(order) / share - 1)


def proof(seconds: float = 20, where: Where = MEMORY) -> list[Row]:
    """Equal weights under unequal load, unequal weights, and the lowest class."""
    equal = served(where, seconds, Crowd("many", 40), Crowd("few", 4))
    weighted = served(where, seconds, Crowd("heavy", 16, weight=3), Crowd("light", 40))
    classes = served(where, seconds, Crowd("high", 40, priority="high"), Crowd("low", 4, priority="low"))
    longest = max((len(list(run)) for key, run in itertools.groupby(classes) if key == "high"), default=0)
    what = "one slot, two workers"
    return [
        row("Equal keys get equal shares, whatever they offer", _of_due(equal, "few", 0.5), 0.1, "off",
            f"40 clients against 4, {len(equal)} served; {what}"),
        row("Shares follow weights", max(_of_due(weighted, key, due) for key, due in DUE.items()), 0.1, "off",
            f"weight 3 with 16 clients against weight 1 with 40, {len(weighted)} served; {what}"),
        row("The lowest class moves", longest, ROUND - 1, "of the highest in between, at most",
            f"40 clients of class high against 4 of low, {len(classes)} served, {classes.count('low')} of low; {what}"),
    ]  # fmt: skip
