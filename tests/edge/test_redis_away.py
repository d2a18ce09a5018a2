"""Redis is away for 10 seconds, paused or killed with -9: each fleet goes on as it says, nothing that runs is lost.

Two pairs of edges side by side, one with ``on_error: local``, one with ``refuse``: 10 seconds are over once for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.edge.test_redis_slots import LIMIT, Load
from tests.edge.test_redis_trouble import all_slots_are_there, seen
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.raw import RawClient
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]

AWAY = 10.0
#: Seconds after which Redis takes what an edge had that is not heard of any more (shared_state.TTL).
LEASE = 5.0
#: A stream that begins before Redis goes and ends after it came back.
TOKENS, DELAY_MS = 140, 100
TIMEOUT_MS = 300


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def pair(stack: ExitStack, redis: Redis, engine: ScriptedEngine, on_error: str) -> list[Edge]:
    state = {"redis": redis.url, "timeout": f"{TIMEOUT_MS}ms", "on_error": on_error, "prefix": on_error}
    backend = {"id": "alpha-1", "url": engine.url, "limit": LIMIT}
    models = {
        # Slots are bounded; rates are, too; nothing is.
        "alpha": {"backends": [backend], "queue": {"max_waiting": 1000}},
        "rated": {
            "backends": [{"url": engine.url, "model_name": "alpha"}],
            "limits": {"requests_per_minute": 1_000_000, "tokens_per_minute": 100_000_000, "concurrent": 1000},
        },
        "free": {"backends": [{"url": engine.url, "model_name": "alpha"}]},
    }
    edges = [stack.enter_context(Edge({"edge": {"state": state}, "models": models})) for _ in "12"]
    for edge in edges:
        wait_until("both edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == 2)  # type: ignore[misc]
    return edges


def stream(edge: Edge, model: str) -> RawClient:
    client = edge.raw(timeout=AWAY + 30)
    client.request(CHAT, chat(model, stream=True, tokens=TOKENS, delay_ms=DELAY_MS))
    assert client.head().status == 200
    return client


def ask(edge: Edge, model: str) -> Any:
    return edge.chat(chat(model, tokens=1), new_connection=True)


def goes_on(edges: list[Edge]) -> None:
    """Each edge by itself, with its share."""
    for edge in edges:
        for model in ("alpha", "rated", "free"):
            assert ask(edge, model).status_code == 200, model


def refuses(edges: list[Edge], long: bool) -> None:
    """At once, and only what must be counted. Slots that were lent hold for a lease's time."""
    for edge in edges:
        began = time.monotonic()
        check_error(ask(edge, "rated"), 503, "state_unavailable")
        if long:
            check_error(ask(edge, "alpha"), 503, "state_unavailable")
        assert ask(edge, "free").status_code == 200
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_redis_is_away_for_ten_seconds(
    how: str, redis: Redis, engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    go: Callable[[], None] = redis.freeze if how == "paused" else redis.kill
    come: Callable[[], Any] = redis.thaw if how == "paused" else redis.start
    with ExitStack() as stack:
        local = pair(stack, redis, engine, "local")
        refuse = pair(stack, redis, engine_2, "refuse")
        running = [stream(edge, model) for edge in (*local, *refuse) for model in ("alpha", "rated")]
        load = stack.enter_context(Load(local, 4))
        go()
        left = time.monotonic()
        for edge in (*local, *refuse):
            wait_until("Redis to be missed", lambda edge=edge: not edge.state()["state"]["ok"])  # type: ignore[misc]
        goes_on(local)
        refuses(refuse, long=False)
        time.sleep(LEASE + 2 - (time.monotonic() - left))
        # The leases are over: each edge has its share, or nothing.
        goes_on(local)
        refuses(refuse, long=True)
        before = len(load.codes)
        time.sleep(left + AWAY - time.monotonic())
        assert len(load.codes) > before, "it went on all the time"
        come()
        for edge in (*local, *refuse):
            seen(edge)
            wait_until("requests to be served", lambda edge=edge: ask(edge, "alpha").status_code == 200)  # type: ignore[misc]
            assert ask(edge, "rated").status_code == 200
        for one in (engine, engine_2):
            one.reset()
        # What ran meanwhile runs to its end.
        for client in running:
            events = [event for _, event in client.events()]
            assert events[-1] == b"data: [DONE]" and len(events) > TOKENS
        load.__exit__()
        assert set(load.codes) == {200}
        for one, edges in ((engine, local), (engine_2, refuse)):
            for edge in edges:
                edge.idle()
                log = edge.error_log()
                assert log.count("no answer") == 1 and log.count("answers again") == 1, log
            assert one.counters()["peak"] <= LIMIT + len(edges), "alpha's, and a stream of rated on each edge"
            # No slot is lost: each edge can have all of them.
            for edge in edges:
                all_slots_are_there(edge)
