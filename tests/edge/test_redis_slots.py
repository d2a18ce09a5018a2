"""Slots and places of several edges with one Redis: lent to each, never more in all than the limit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

from control.edge import apply
from tests.support.client import at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import hold, queue_length, send
from tests.support.raw import RawClient
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]

LIMIT = 6


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def fleet(redis: Redis, engine: ScriptedEngine, limit: int = LIMIT, **model: Any) -> dict[str, Any]:
    return {
        "edge": {"state": {"redis": redis.url, "timeout": "5s"}},
        "models": {
            "alpha": {
                "backends": [{"id": "alpha-1", "url": engine.url, "limit": limit}],
                "queue": {"max_waiting": 1000},
                **model,
            }
        },
    }


@contextmanager
def edges(content: dict[str, Any], number: int = 2) -> Iterator[list[Edge]]:
    """So many edges of one fleet, each of which has seen all others and has served a request."""
    with ExitStack() as stack:
        found = [stack.enter_context(Edge(content, may_kill=True)) for _ in range(number)]
        for edge in found:
            wait_until("all edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == number)  # type: ignore[misc]
            assert short(edge) == 200
        yield found


def short(edge: Edge) -> int:
    return edge.chat(chat("alpha", tokens=2, delay_ms=10), new_connection=True).status_code


def holders(edge: Edge, number: int) -> list[RawClient]:
    return [hold(edge, f"hold-{number}-{one}") for one in range(number)]


class Load:
    """``with Load(edges)``: clients that never stop asking; errors of edges that are being killed do not count."""

    def __init__(self, edges: list[Edge], clients: int = 8) -> None:
        self.codes: list[int] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(edges[n % len(edges)],)) for n in range(clients)]

    def _ask(self, edge: Edge) -> None:
        while not self._over.is_set():
            try:
                self.codes.append(short(edge))
            except OSError:
                time.sleep(0.02)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_never_more_than_the_limit_and_all_are_served(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine), 3) as three:
        body = chat("alpha", headers_after_ms=100)
        codes = at_once(60, lambda number: three[number % 3].chat(body, new_connection=True).status_code)
        assert codes == [200] * 60
        assert engine.counters()["peak"] == LIMIT


def test_what_is_unused_elsewhere_comes_at_once(redis: Redis, engine: ScriptedEngine) -> None:
    """All slots through one edge, then all through the other."""
    with edges(fleet(redis, engine)) as (one, other):
        for first, second in ((one, other), (other, one)):
            held = holders(first, LIMIT)
            waiting = send(second, "late")
            wait_until("it to wait", lambda second=second: queue_length(second) == 1)  # type: ignore[misc]
            held.pop().close()
            began = time.monotonic()
            assert waiting.head().status == 200
            assert time.monotonic() - began < 2
            for client in (*held, waiting):
                client.close()
            for edge in (one, other):
                edge.idle()
        # An engine may hear of a client that has left after its slot has gone to the other edge.
        assert LIMIT <= engine.counters()["peak"] <= LIMIT + 1


def test_without_contention_no_request_asks_redis(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine), 1) as (edge,):
        waits = {edge.chat(chat("alpha", tokens=1)).headers.get("X-Signalbox-Queue-Ms") for _ in range(30)}
        assert waits == {None}


def test_places_of_a_key_are_counted_over_all_edges(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, 50, limits={"concurrent": 5})) as (one, other):
        held = [*holders(one, 3), *holders(other, 2)]
        for edge in (one, other):
            check_error(edge.chat(chat("alpha")), 429, "concurrency_limit")
        held.pop(0).close()
        # The free place is lent to the one edge; the other gets it when it asks.
        wait_until("a free place", lambda: short(other) == 200)
        for client in held:
            client.close()


def test_the_slots_of_a_dead_edge_come_back(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as (one, other):
        held = holders(one, LIMIT - 1)
        kill_all(one)
        for client in held:
            client.close()
        began = time.monotonic()
        codes = at_once(LIMIT, lambda number: other.chat(chat("alpha", tokens=20, delay_ms=20), timeout=20).status_code)
        assert codes == [200] * LIMIT and time.monotonic() - began < 12
        mine = holders(other, LIMIT)
        # Back from the dead it has none, and asks.
        apply.start(one.site)
        waiting = send(one, "late")
        wait_until("it to wait", lambda: queue_length(one) == 1)
        mine.pop().close()
        assert waiting.head().status == 200
        for client in (*mine, waiting):
            client.close()
        assert engine.counters()["peak"] <= LIMIT


def kill_all(edge: Edge) -> None:
    """nginx's master and workers, with -9 and at once."""
    pid = edge.process.pid()
    assert pid is not None
    master = psutil.Process(pid)
    for process in (master, *master.children()):
        process.kill()
    wait_until("all to be gone", lambda: not any(psutil.pid_exists(child) for child in (pid,)))


def test_a_killed_worker_gives_back_what_it_held(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as (one, other):
        held = holders(one, LIMIT - 1)
        for pid in one.workers():
            one.kill_worker(pid)
        for client in held:
            client.close()
        mine = holders(other, LIMIT)
        assert engine.counters()["peak"] <= LIMIT
        for client in mine:
            client.close()


def test_an_edge_that_drains_keeps_its_slots(redis: Redis, engine: ScriptedEngine) -> None:
    """All its workers are to end, their timers are gone, and it takes longer than a lease lasts."""
    with edges(fleet(redis, engine)) as (one, other):
        held = holders(one, LIMIT - 2)
        master = psutil.Process(one.process.pid())
        master.send_signal(signal.SIGQUIT)
        time.sleep(7)
        with Load([other], 6):
            time.sleep(1)
        codes = [short(other) for _ in range(3)]
        assert codes == [200] * 3
        assert engine.counters()["peak"] == LIMIT
        for client in held:
            client.close()
        master.wait(3)


def test_redis_may_be_restarted_empty_under_load(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as both, Load(both) as load:
        for _ in range(2):
            time.sleep(0.7)
            redis.kill()
            time.sleep(0.7)
            redis.start()
        for edge in both:
            wait_until("Redis to be seen again", lambda edge=edge: edge.state()["state"]["ok"])  # type: ignore[misc]
        before = len(load.codes)
        wait_until("requests to be served as before", lambda: len(load.codes) > before + 100, 10)
    assert set(load.codes) == {200}
    assert engine.counters()["peak"] <= LIMIT


def test_edges_join_and_die_under_load(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine)) as both, Load(both) as load:
        for _ in range(2):
            time.sleep(0.5)
            kill_all(both[0])
            time.sleep(0.5)
            apply.start(both[0].site)
        wait_until("both to be seen", lambda: all(edge.state()["state"]["edges"] == 2 for edge in both))
    assert set(load.codes) <= {200, 503} and load.codes.count(200) > 50
    assert engine.counters()["peak"] <= LIMIT
