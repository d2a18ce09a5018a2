"""The order in which many waiting requests are served, what keeping it costs, and who gets how much of the engines."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import psutil

from tests.front_desk.where import MEMORY, Where
from tests.support.client import CHAT, chat, percentile
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row

#: Slots in all, how long the engine takes for each request, and how long after the one before it each client asks:
#: six times as fast as they are served, and slowly enough that one worker is not far behind the other.
CAPACITY, SERVICE_MS, PAUSE_MS = 8, 100, 2
#: A limit at which nobody waits.
UNLIMITED = 100_000


@dataclass(frozen=True)
class Scale:
    """``edges``: clients ask them in turns; several need a Redis."""

    waiters: int
    where: Where = MEMORY
    edges: int = 1


FULL, SMALL = Scale(1500), Scale(300)


@dataclass
class Outcome:
    """``displaced``: by how many places each request was served before or after its turn.

    ``redis_seconds`` are those of CPU time that Redis took, beside what the edges took.

    ``ideal`` is how many requests a second ``CAPACITY`` clients get from the engine itself, without an edge.
    ``seconds`` are from the first request to the last answer. ``unqueued_cpu_seconds`` is what the same requests cost
    when none has to wait.
    """

    answered: int
    ideal: float
    seconds: float
    displaced: list[int]
    cpu_seconds: float
    unqueued_cpu_seconds: float
    redis_seconds: float

    @property
    def of_ideal(self) -> float:
        return self.answered / self.seconds / self.ideal


async def _one(port: int, name: str, sent: list[str], turn: asyncio.Event, done: asyncio.Event) -> int:
    """Connect, send when it is one's turn, and read the answer. Returns its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(chat("alpha", tokens=1, headers_after_ms=SERVICE_MS)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    await turn.wait()
    sent.append(name)
    writer.write(f"{head}X-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    asyncio.get_running_loop().call_later(PAUSE_MS / 1000, done.set)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def _crowd(ports: list[int], count: int) -> tuple[list[int], list[str], float]:
    """``count`` clients, each of which sends after the one before it, to another port.

    Returns statuses, the order of sending, and the seconds from the first request to the last answer.
    """
    sent: list[str] = []
    turns = [asyncio.Event() for _ in range(count + 1)]
    tasks = []
    for number in range(count):
        tasks.append(
            asyncio.create_task(_one(ports[number % len(ports)], f"w-{number}", sent, turns[number], turns[number + 1]))
        )
        if number % 100 == 99:
            await asyncio.sleep(0.05)
    began = time.monotonic()
    turns[0].set()
    return await asyncio.gather(*tasks), sent, time.monotonic() - began


async def _straight(port: int, count: int) -> float:
    """``count`` requests of ``CAPACITY`` clients, each of which asks again at once: how many a second."""
    left = iter(range(count))
    told = asyncio.Event()
    told.set()

    async def client() -> None:
        for _ in left:
            assert await _one(port, "straight", [], told, told) == 200

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CAPACITY)))
    return count / (time.monotonic() - began)


def _cpu(edges: list[Edge]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for edge in edges for pid in edge.workers())


def _fleet(engine: ScriptedEngine, waiters: int, limit: int = CAPACITY) -> dict[str, Any]:
    backend = {"id": "alpha-1", "url": engine.url, "limit": limit}
    return {"models": {"alpha": {"backends": [backend], "queue": {"max_waiting": waiters, "timeout": "5m"}}}}


@dataclass(frozen=True)
class _Run:
    statuses: list[int]
    sent: list[str]
    lines: dict[str, dict[str, Any]]
    seconds: float
    cpu_seconds: float
    redis_seconds: float


def _start(scale: Scale, fleet: dict[str, Any], stack: ExitStack) -> list[Edge]:
    """The edges of one fleet, once each has seen all others."""
    fleet = scale.where.of(fleet)
    edges = [stack.enter_context(Edge(fleet)) for _ in range(scale.edges)]
    for edge in edges if scale.where.redis else []:
        wait_until("all edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == scale.edges, 10)  # type: ignore[misc]
    return edges


def _run(scale: Scale, limit: int) -> _Run:
    with ExitStack() as stack:
        engine = stack.enter_context(ScriptedEngine("alpha"))
        edges = _start(scale, _fleet(engine, scale.waiters, limit), stack)
        before, redis_before = _cpu(edges), scale.where.redis_seconds()
        statuses, sent, seconds = asyncio.run(_crowd([edge.port for edge in edges], scale.waiters))
        used, redis_used = _cpu(edges) - before, scale.where.redis_seconds() - redis_before
        lines = {}
        for number, edge in enumerate(edges):
            edge.idle()
            asked = len(range(number, scale.waiters, scale.edges))
            lines.update({line["id"]: line for line in edge.log_of_all(asked)})
        return _Run(statuses, sent, lines, seconds, used, redis_used)


def measure(scale: Scale) -> Outcome:
    """Let ``scale.waiters`` clients wait behind one engine; then the same clients without waiting."""
    run, unqueued = _run(scale, CAPACITY), _run(scale, UNLIMITED)
    with ScriptedEngine("alpha") as engine:
        ideal = asyncio.run(_straight(engine.port, scale.waiters // 3))
    lines = run.lines
    started = sorted(
        run.sent, key=lambda name: lines[name]["time"] - (lines[name]["total_ms"] - lines[name]["queue_ms"]) / 1000
    )
    place = {name: number for number, name in enumerate(started)}
    displaced = [abs(place[name] - number) for number, name in enumerate(run.sent)]
    return Outcome(run.statuses.count(200), ideal, run.seconds, displaced, run.cpu_seconds,
                   unqueued.cpu_seconds, run.redis_seconds)  # fmt: skip


def rows(scale: Scale, outcome: Outcome) -> list[Row]:
    """What waiting costs is promised of each edge."""
    whose = "two workers" if scale.edges == 1 else f"{scale.edges} edges of two workers each"
    detail = f"{scale.waiters} clients, {CAPACITY} slots, {SERVICE_MS} ms each, {whose}"
    unanswered = scale.waiters - outcome.answered
    extra = outcome.cpu_seconds - outcome.unqueued_cpu_seconds
    cost = (f"{detail}: the workers used {outcome.cpu_seconds:.2f} s, and {outcome.unqueued_cpu_seconds:.2f} s for the "
            "same requests when none waited")  # fmt: skip
    if scale.where.redis:
        cost += f"; Redis itself used {outcome.redis_seconds:.2f} s"
    return [
        row("Everyone who waits is served", unanswered, 0, "unanswered", detail),
        row(
            "A full queue keeps the engines busy",
            outcome.of_ideal,
            0.93,
            "of the ideal",
            f"{detail}; {outcome.ideal:.1f} a second is what {CAPACITY} clients get without an edge",
            at_least=True,
        ),
        row("First come, first served: out of turn, p99", percentile(outcome.displaced, 0.99), 10, "places", detail),
        row("First come, first served: out of turn, at most", max(outcome.displaced), 150, "places", detail),
        row("Waiting is cheap", extra, scale.edges, "CPU s", cost),
    ]


def proof(where: Where = MEMORY, edges: int = 1) -> list[Row]:
    """1,500 waiters."""
    scale = replace(FULL, where=where, edges=edges)
    return rows(scale, measure(scale))
