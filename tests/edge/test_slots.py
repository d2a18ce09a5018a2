"""Slots weigh as many sequences as a request makes."""

from __future__ import annotations

import time

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import hold, limited, queue_length
from tests.support.raw import RawClient


def start(edge: Edge, path: str = CHAT, **members: object) -> RawClient:
    client = edge.raw()
    body = chat("alpha", stream=True, tokens=100_000, delay_ms=50)
    client.request(path, {**body, **members})
    return client


def in_flight(edge: Edge, weight: int) -> None:
    wait_until(f"{weight} in flight", lambda: edge.in_flight() == weight, 2)


def test_a_request_weighs_its_sequences(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, limit=6)) as edge:
        four = start(edge, n=4)
        in_flight(edge, 4)
        two = start(edge, "/v1/completions", prompt=["a", "b"], messages=None)
        in_flight(edge, 6)
        waiting = start(edge)
        wait_until("the seventh to wait", lambda: queue_length(edge) == 1)
        two.close()
        assert waiting.head().status == 200
        in_flight(edge, 5)
        for client in (four, waiting):
            client.close()
        edge.idle()


def test_a_heavy_request_is_not_overtaken_and_runs_alone_when_it_must(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, limit=3)) as edge:
        holder = hold(edge)
        heavy = start(edge, n=8)
        wait_until("it to wait", lambda: queue_length(edge) == 1)
        light = start(edge)
        wait_until("the next one to wait", lambda: queue_length(edge) == 2)
        time.sleep(0.2)
        assert engine.counters()["running"] == 1
        holder.close()
        assert heavy.head().status == 200
        in_flight(edge, 8)
        assert queue_length(edge) == 1
        heavy.close()
        assert light.head().status == 200
        in_flight(edge, 1)
        light.close()
        edge.idle()


def test_weights_come_back_however_requests_end(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, limit=8, timeouts={"read": "200ms"})) as edge:
        for number in range(40):
            script = ({"die": True}, {"hang": True}, {"tokens": 1}, {"cut_after": 1})[number % 4]
            client = edge.raw()
            client.request(CHAT, {**chat("alpha", stream=number % 3 == 0, **script), "n": number % 7 + 1})
            if number % 2:
                client.close()
            else:
                client.head()
                client.close()
        edge.idle(2)
        wait_until("a whole answer", lambda: edge.post(CHAT, {**chat("alpha"), "n": 8}).status_code == 200)
