"""Fences against one address, and clients that are slow on purpose or not."""

from __future__ import annotations

import json
import socket
import time

from tests.support.client import CHAT, at_once, chat, check_error, retry_after
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until


def test_too_many_requests_per_second_are_429(engine: ScriptedEngine) -> None:
    """JSON and a whole number of seconds to wait: clients saw "429 status code (no body)" and gave up."""
    limits = {"requests_per_second": 5, "burst": 5}
    with Edge(one_model("alpha", engine, address_limits=limits)) as edge:
        answers = [edge.post(CHAT, chat("alpha", tokens=1)) for _ in range(15)]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 5 <= len(refused) <= 10
        for answer in refused:
            check_error(answer, 429, "too_many_requests")
            retry_after(answer)
        anthropic = edge.post("/v1/messages", {"model": "alpha", "max_tokens": 1, "messages": []})
        check_error(anthropic, 429, "too_many_requests", anthropic=True)
        wait_until(
            "their log lines",
            lambda: (
                sum(line["status"] == 429 and line["end"] == "refused" for line in edge.log_lines()) == len(refused) + 1
            ),
            every=0.05,
        )
        assert engine.started() == 15 - len(refused)


def test_too_many_connections_are_429(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, address_limits={"connections": 3})) as edge:

        def one(_: int) -> int:
            answer = edge.post(CHAT, chat("alpha", headers_after_ms=500), new_connection=True)
            if answer.status_code != 200:
                check_error(answer, 429, "too_many_requests")
                retry_after(answer)
            return answer.status_code

        assert sorted(at_once(6, one)) == [200, 200, 200, 429, 429, 429]
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_the_defaults_are_generous(alphabet: Alphabet) -> None:
    codes = at_once(50, lambda _: [alphabet.edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)])
    assert {code for some in codes for code in some} == {200}


def test_a_slow_header_is_cut_and_takes_no_slot(engine: ScriptedEngine) -> None:
    """One byte every few seconds keeps a connection for ever."""
    with Edge(one_model("alpha", engine, edge_timeouts={"header": "1s"})) as edge, edge.raw() as client:
        began = time.monotonic()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        for _ in range(6):
            time.sleep(0.25)
            try:
                client.send(b"x")
            except OSError:
                break
        assert client.closed()
        assert time.monotonic() - began < 3
        assert edge.in_flight() == 0


def test_a_body_that_never_ends_takes_no_slot_and_is_cut(engine: ScriptedEngine) -> None:
    """Content-Length 1000 and ten bytes: reading waits, and an engine's place must not wait with it."""
    with Edge(one_model("alpha", engine, edge_timeouts={"body": "1s"})) as edge, edge.raw() as client:
        began = time.monotonic()
        client.request(CHAT, b'{"model": ', headers={"Content-Length": "1000", "X-Request-Id": "half"})
        time.sleep(0.3)
        assert edge.in_flight() == 0
        try:
            head = client.head()
        except Exception:
            head = None
        if head is not None:
            assert head.status == 408
            assert json.loads(client.body(head))["error"]["code"] == "request_timeout"
        assert 0.8 < time.monotonic() - began < 3
        assert engine.started() == 0
        assert edge.log_of("half")["status"] in (400, 408, 499)


def test_a_client_that_leaves_in_its_body_is_no_fault(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        for number in range(5):
            client = edge.raw()
            client.request(CHAT, b'{"model": ', headers={"Content-Length": "1000", "X-Request-Id": f"gone-{number}"})
            time.sleep(0.02)
            client.close()
        for number in range(5):
            assert edge.log_of(f"gone-{number}")["end"] in ("client_left", "refused")
        assert engine.started() == 0
        assert edge.in_flight() == 0


def test_a_slow_reader_loses_nothing_and_slows_nobody(alphabet: Alphabet) -> None:
    """The engine is held back by the connection; neither memory nor other clients pay for it."""
    with alphabet.edge.raw() as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.request(CHAT, chat("alpha", stream=True, tokens=60, pad=200_000))
        assert slow.head().status == 200
        time.sleep(0.5)
        began = time.monotonic()
        assert alphabet.edge.post(CHAT, chat("alpha")).status_code == 200
        assert time.monotonic() - began < 0.5
        events = [event for _, event in slow.events()]
    assert len(events) == 62
    assert events[-1] == b"data: [DONE]"


def test_a_reader_that_stops_is_cut_after_the_send_time_out(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, edge_timeouts={"send": "1s"})) as edge, edge.raw() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.request(CHAT, chat("alpha", stream=True, tokens=2000, pad=20_000))
        assert client.head().status == 200
        wait_until("the engine to be freed", lambda: engine.counters()["aborted"].get(CHAT) == 1, 6)
        edge.idle()


def test_many_idle_connections_cost_nothing(alphabet: Alphabet) -> None:
    idle = [alphabet.edge.raw() for _ in range(200)]
    began = time.monotonic()
    assert alphabet.edge.post(CHAT, chat("alpha"), new_connection=True).status_code == 200
    assert time.monotonic() - began < 0.5
    for client in idle:
        client.close()


def test_pipelined_requests_are_answered_in_order(alphabet: Alphabet) -> None:
    with alphabet.edge.raw() as client:
        for tokens in (1, 2, 3):
            client.request(CHAT, chat("alpha", tokens=tokens))
        for tokens in (1, 2, 3):
            head = client.head()
            assert json.loads(client.body(head))["usage"]["completion_tokens"] == tokens


def test_an_edge_without_a_free_connection_says_so(engine: ScriptedEngine) -> None:
    """nginx would reset clients when its connections run out; a client can come back after a 503."""
    with Edge(one_model("alpha", engine, workers=1, worker_connections=64)) as edge:
        clients = [edge.raw() for _ in range(20)]
        statuses = []
        for client in clients:
            client.request(CHAT, chat("alpha", stream=True, tokens=200, delay_ms=50))
            statuses.append(client.head().status)
        assert statuses == [200] * 16 + [503] * 4
        answer = edge.post(CHAT, chat("alpha"))
        check_error(answer, 503, "edge_busy")
        assert answer.headers["Retry-After"] == "1"
        for client in clients:
            client.close()
        edge.idle()
        assert edge.post(CHAT, chat("alpha")).status_code == 200
