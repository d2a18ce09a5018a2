"""Redis, edges and workers that hang, die and come back: nothing runs wild, nothing is lost, nothing leaks."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edge.test_redis_slots import LIMIT, Load, edges, fleet, holders, kill_all
from tests.support.client import chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def seen(edge: Edge) -> None:
    wait_until("Redis to be seen again", lambda: edge.state()["state"]["ok"], 10)


def all_slots_are_there(edge: Edge) -> None:
    """One edge gets all of them: nobody keeps any that is gone."""
    wait_until("nothing to be in flight", lambda: edge.in_flight() == 0)
    held = holders(edge, LIMIT)
    for client in held:
        client.close()
    edge.idle()


def test_workers_die_under_load(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as both:
        with Load(both):
            for _ in range(4):
                time.sleep(0.4)
                for edge in both:
                    edge.kill_worker(edge.workers()[0])
        time.sleep(1.2)  # the janitor's round
        for edge in both:
            all_slots_are_there(edge)
        assert engine.counters()["peak"] <= LIMIT


def test_an_edge_dies_while_redis_is_away(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as (one, other):
        lost = holders(one, 2)
        redis.kill()
        kill_all(one)
        redis.start()
        seen(other)
        for client in lost:
            client.close()
        all_slots_are_there(other)


def test_the_master_is_found_by_its_sentinels(redis: Redis, engine: ScriptedEngine, tmp_path: Path) -> None:
    port, settings = free_port(), tmp_path / "sentinel.conf"
    settings.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor one 127.0.0.1 {redis.port} 1\n")
    sentinel = subprocess.Popen(["redis-server", str(settings), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        content = fleet(redis, engine)
        # The URL leads nowhere: only its database counts.
        content["edge"]["state"] = {"redis": f"redis://127.0.0.1:{free_port()}/3", "master": "one", "timeout": "2s",
                                    "sentinels": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"]}  # fmt: skip
        wait_until("the sentinel to know its master", lambda: "# Keyspace" and redis.call("CLIENT", "LIST"), 10)
        with Edge(content) as edge:
            seen(edge)
            wait_until(
                "the edge to be known there",
                lambda: (
                    int(redis.call("EVAL", "redis.call('SELECT', 3) return redis.call('ZCARD', 'signalbox:edges')", 0))
                    == 1
                ),
            )
            redis.kill()
            wait_until("Redis to be missed", lambda: not edge.state()["state"]["ok"])
            redis.start()
            seen(edge)
    finally:
        sentinel.kill()
        sentinel.wait()


def test_without_redis_what_needs_a_slot_is_refused_when_the_fleet_says_so(
    redis: Redis, engine: ScriptedEngine
) -> None:
    content = fleet(redis, engine)
    content["edge"]["state"]["on_error"] = "refuse"
    with edges(content, 1) as (edge,):
        held = holders(edge, LIMIT)
        redis.kill()
        wait_until("Redis to be missed", lambda: not edge.state()["state"]["ok"])
        check_error(edge.chat(chat("alpha", tokens=1)), 503, "state_unavailable")
        # What Redis lent last holds for a lease's time.
        held.pop().close()
        wait_until("a slot to be free", lambda: edge.chat(chat("alpha", tokens=1)).status_code == 200)
        wait_until("the lease to run out", lambda: edge.chat(chat("alpha", tokens=1)).status_code == 503, 10, every=0.2)
        redis.start()
        wait_until("to be served again", lambda: edge.chat(chat("alpha", tokens=1)).status_code == 200, 10, every=0.2)
        for client in held:
            client.close()
