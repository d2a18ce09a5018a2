"""Requests that wait in several edges with one Redis are served in one order, and no slot lies idle meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.edge.test_redis_slots import edges, fleet
from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import queue_length, served
from tests.support.raw import RawClient
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def line(edge: Edge, name: str, headers: dict[str, str] | None = None, **body: Any) -> RawClient:
    """A client that waits; the next one comes when this one has its place."""
    before = queue_length(edge)
    client = edge.raw()
    client.request(CHAT, chat("alpha", **{"tokens": 1, **body}), headers={"X-Request-Id": name, **(headers or {})})
    wait_until(f"{name} to wait", lambda: queue_length(edge) > before)
    return client


def occupy(edge: Edge, slots: int, ms: int) -> list[RawClient]:
    """Takes all slots; they come back by themselves."""
    clients = []
    for number in range(slots):
        clients.append(edge.raw())
        clients[-1].request(
            CHAT, chat("alpha", tokens=1, headers_after_ms=ms), headers={"X-Request-Id": f"hold-{number}"}
        )
    wait_until("all slots to be taken", lambda: edge.in_flight() == slots)
    return clients


def test_first_come_first_served_over_two_edges(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, 1)) as both:
        engine.reset()
        waiting = occupy(both[0], 1, 3_000)
        names = [f"wait-{number:02}" for number in range(40)]
        waiting += [line(both[number // 3 % 2], name, headers_after_ms=10) for number, name in enumerate(names)]
        assert [client.head().status for client in waiting] == [200] * 41
        order = [name for name in served(engine) if name.startswith("wait")]
        away = sorted(abs(place - names.index(name)) for place, name in enumerate(order))
        assert len(order) == 40 and away[-1] <= 3, order
        assert engine.counters()["peak"] == 1


def test_the_higher_class_goes_first_wherever_it_waits(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, 1)) as (one, other):
        waiting = occupy(one, 1, 3_000)
        waiting += [line(one, f"low-{n}", {"X-Priority": "low"}, headers_after_ms=20) for n in range(6)]
        waiting += [line(other, f"usual-{n}", headers_after_ms=20) for n in range(6)]
        assert {client.head().status for client in waiting} == {200}
        order = [name for name in served(engine) if name.startswith(("low", "usual"))]
        # One of eight places is for the lowest class.
        assert sum(name.startswith("usual") for name in order[:6]) >= 4, order


def test_no_slot_lies_idle_while_somebody_waits_elsewhere(redis: Redis, engine: ScriptedEngine) -> None:
    """Each slot goes to and fro between the edges."""
    with edges(fleet(redis, engine, 2)) as both:
        alone = took(both[:1])
        assert took(both) <= 1.6 * alone + 0.5


def took(over: list[Edge]) -> float:
    """Seconds for 60 requests of 50 ms over two slots."""
    waiting = occupy(over[0], 2, 2_500)
    waiting += [line(over[number % len(over)], f"to-{number}", headers_after_ms=50) for number in range(60)]
    for client in waiting[:2]:
        assert client.head().status == 200
    began = time.monotonic()
    assert {client.head().status for client in waiting[2:]} == {200}
    return time.monotonic() - began


def test_a_dead_edge_holds_up_nobody(redis: Redis, engine: ScriptedEngine) -> None:
    """What waited there was first in line."""
    with edges(fleet(redis, engine, 1)) as (one, other):
        (holder,) = occupy(other, 1, 2_000)
        lost = [line(one, f"lost-{number}") for number in range(3)]
        kept = [line(other, f"kept-{number}") for number in range(3)]
        one.process.stop(quit=False)
        began = time.monotonic()
        assert holder.head().status == 200
        assert [client.head().status for client in kept] == [200] * 3
        assert time.monotonic() - began < 5
        for client in lost:
            client.close()


def test_the_order_outlives_a_redis_that_begins_anew(redis: Redis, engine: ScriptedEngine) -> None:
    """Those that came later must not go first because Redis has forgotten how far the line is."""
    with edges(fleet(redis, engine, 1)) as both:
        waiting = occupy(both[0], 1, 6_000)
        waiting += [line(both[number % 2], f"old-{number}", headers_after_ms=20) for number in range(6)]
        redis.kill()
        redis.start()
        for edge in both:
            wait_until("Redis to be seen again", lambda edge=edge: edge.state()["state"]["ok"])  # type: ignore[misc]
        waiting += [line(both[number % 2], f"new-{number}", headers_after_ms=20) for number in range(4)]
        assert {client.head().status for client in waiting} == {200}
        order = [name[:3] for name in served(engine) if name.startswith(("old", "new"))]
        assert order.count("old") == 6 and "new" not in order[:3], order
