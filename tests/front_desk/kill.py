"""A worker that is killed with -9 while requests wait, run and are limited."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row
from tests.support.queueing import line_up, queue_length, send
from tests.support.raw import Cut, RawClient

#: Of each worker so many run and so many wait.
RUNNING, WAITING = 3, 3
TOKENS, DELAY_MS = 500, 20


@dataclass
class Outcome:
    """One kill. ``freed``: seconds until only what the other worker holds was counted."""

    freed: float
    lost: int
    leaked: int


def _fleet(engine: ScriptedEngine) -> dict[str, Any]:
    backend = {"id": "alpha-1", "url": engine.url, "limit": 2 * RUNNING}
    limits = {"concurrent": 2 * (RUNNING + WAITING), "requests_per_minute": 100_000, "tokens_per_minute": 10_000_000}
    return {"models": {"alpha": {"backends": [backend], "queue": {"max_waiting": 100}, "limits": limits}}}


def _streams(edge: Edge, worker: int) -> list[RawClient]:
    clients = []
    for _ in range(RUNNING):
        clients.append(send(edge, worker=worker, stream=True, tokens=TOKENS, delay_ms=DELAY_MS))
        assert clients[-1].head().status == 200
    return clients


def _whole(client: RawClient) -> bool:
    """Read a stream; whether all of it came: a role, the tokens, [DONE]."""
    try:
        events = [event for _, event in client.events()]
    except (Cut, ConnectionError):
        return False
    return len(events) == TOKENS + 2 and events[-1] == b"data: [DONE]"


def _answered(client: RawClient) -> bool:
    try:
        return client.head().status == 200
    except (Cut, ConnectionError):
        return False


def once() -> Outcome:
    """Kill one of two workers, each of which has requests that run and requests that wait."""
    with ScriptedEngine("alpha") as engine, Edge(_fleet(engine), may_kill=True) as edge:
        victim, other = edge.workers()
        doomed, lives = _streams(edge, victim), _streams(edge, other)
        doomed += line_up(edge, *(f"doomed-{number}" for number in range(WAITING)), worker=victim, tokens=1)
        waiting = line_up(edge, *(f"waiting-{number}" for number in range(WAITING)), worker=other, tokens=1)
        began = time.monotonic()
        edge.kill_worker(victim)
        # The places of those that ran are free: those that wait in the other worker take them.
        lost = sum(not _answered(client) for client in waiting)
        freed = time.monotonic() - began
        wait_until("only the other's to be counted", lambda: edge.in_flight() <= RUNNING and not queue_length(edge))
        lost += sum(not _whole(client) for client in lives)
        edge.idle(5)
        for client in (*doomed, *lives, *waiting):
            client.close()
        # Every place is there again, of the engine and of the limit.
        again = [edge.raw() for _ in range(2 * (RUNNING + WAITING))]
        for number, client in enumerate(again):
            client.request(CHAT, chat("alpha", stream=number < 2 * RUNNING, tokens=20, delay_ms=20))
        leaked = sum(not _answered(client) for client in again)
        for client in again:
            client.close()
        edge.idle(5)
        return Outcome(freed, lost, leaked + queue_length(edge))


def proof(times: int = 5) -> list[Row]:
    """Some kills, each in an edge of its own."""
    outcomes = [once() for _ in range(times)]
    what = (
        f"{times} kills; each worker had {RUNNING} streams and {WAITING} requests that waited, at a concurrency limit"
    )
    return [
        row("kill -9 of a worker: no request of the other is lost", sum(one.lost for one in outcomes), 0, "lost", what),
        row(
            "kill -9 of a worker: no slot and no place is leaked",
            sum(one.leaked for one in outcomes),
            0,
            "leaked",
            what,
        ),
        row("kill -9 of a worker: those that wait take its places", max(one.freed for one in outcomes), 2, "s", what),
    ]
