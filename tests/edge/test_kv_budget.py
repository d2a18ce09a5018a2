"""The KV budget: an engine gets what fits into its KV cache, and no more than it makes of that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import queue_length
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def fleet(*engines: ScriptedEngine, **queue: Any) -> dict[str, Any]:
    backends = [{"id": f"alpha-{n}", "url": engine.url} for n, engine in enumerate(engines, 1)]
    model = {"backends": backends, "routing": {"policy": "least_loaded"}, "queue": queue}
    return {"edge": {"probe": {"metrics": "100ms"}}, "models": {"alpha": model}}


def small_cache(edge: Edge, *engines: ScriptedEngine, tokens: int = 1000, usage: float = 0.9) -> None:
    """Engines say that their cache is small and nearly full; wait until the edge has heard of it."""
    for engine in engines:
        engine.configure(kv_tokens=tokens, kv_usage=usage)
    wait_until("the edge to know", lambda: all(one["kv_tokens"] == tokens for one in edge.backends().values()))


def stream(edge: Edge, max_tokens: int = 300) -> RawClient:
    client = edge.raw()
    client.request(CHAT, {**chat("alpha", stream=True, tokens=100_000, delay_ms=50), "max_tokens": max_tokens})
    return client


def test_what_does_not_fit_waits_here_and_not_in_the_engine(engine: ScriptedEngine) -> None:
    """vLLM starts more than fits and then preempts: it throws away what it had computed."""
    with Edge(fleet(engine)) as edge:
        small_cache(edge, engine)
        # About 330 tokens each, of 950.
        running = [stream(edge) for _ in range(2)]
        for client in running:
            assert client.head().status == 200
        late = [stream(edge) for _ in range(2)]
        wait_until("two to wait", lambda: queue_length(edge) == 2)
        assert engine.started() == 2
        backend = edge.backends()["alpha-1"]
        assert 500 <= backend["kv_in_flight"] <= 950
        running[0].close()
        assert late[0].head().status == 200
        assert queue_length(edge) == 1
        for client in (*running, *late):
            client.close()
        edge.idle()
        assert edge.backends()["alpha-1"]["kv_in_flight"] == 0


def test_one_that_is_too_large_runs_alone(engine: ScriptedEngine) -> None:
    with Edge(fleet(engine)) as edge:
        small_cache(edge, engine)
        large = stream(edge, max_tokens=5_000)
        assert large.head().status == 200
        small = stream(edge, max_tokens=10)
        wait_until("the small one to wait", lambda: queue_length(edge) == 1)
        large.close()
        assert small.head().status == 200
        small.close()
        edge.idle()


def test_the_engine_with_room_gets_it(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(fleet(engine, engine_2)) as edge:
        small_cache(edge, engine, engine_2)
        clients = [stream(edge) for _ in range(4)]
        for client in clients:
            assert client.head().status == 200
        assert (engine.started(), engine_2.started()) == (2, 2)
        for client in clients:
            client.close()
        edge.idle()


def test_a_cache_that_is_shared_takes_more(engine: ScriptedEngine) -> None:
    """Requests with one system prompt are estimated whole, and computed once: the engine's own usage says so."""
    with Edge(fleet(engine)) as edge:
        small_cache(edge, engine, usage=0.1)
        clients = []
        for _ in range(6):  # two fit at first
            clients.append(stream(edge))
            # The edge learns from what it reads while they run.
            wait_until("it to start", lambda: engine.started() == len(clients), 10)
        for client in clients:
            client.close()
        edge.idle()


def test_without_the_budget_nothing_waits(engine: ScriptedEngine) -> None:
    with Edge(fleet(engine, kv_budget=False)) as edge:
        small_cache(edge, engine)
        clients = [stream(edge) for _ in range(10)]
        for client in clients:
            assert client.head().status == 200
            client.close()
        edge.idle()


def test_an_edge_that_has_just_started_learns_soon(engine: ScriptedEngine) -> None:
    """Text of a token every two bytes, all of it guessed at four: the engine got twice what fits, for minutes."""
    text = "a " * 5_000
    content = fleet(engine)
    content["edge"]["workers"] = 1
    with Edge(content) as edge:
        small_cache(edge, engine, tokens=1_000_000)
        for _ in range(5):
            assert edge.chat(chat("alpha", text, tokens=1)).json()["usage"]["prompt_tokens"] == 5_000
        client = edge.raw()
        client.request(CHAT, {**chat("alpha", text, stream=True, tokens=100_000, delay_ms=50), "max_tokens": 100})
        assert client.head().status == 200
        assert 4_000 <= edge.backends()["alpha-1"]["kv_in_flight"] <= 5_500
        client.close()
        edge.idle()
