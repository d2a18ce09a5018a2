"""Streams: every byte, at once, and an honest end."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from tests.support.client import CHAT, at_once, chat, percentile
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until
from tests.support.raw import Cut, RawClient


def texts(events: list[bytes]) -> list[str]:
    """The text of every chat event that has one."""
    found = []
    for event in events:
        data = event.removeprefix(b"data: ")
        if data.startswith(b"{"):
            found += [choice["delta"].get("content", "") for choice in json.loads(data)["choices"]]
    return [text for text in found if text]


def test_a_stream_through_the_edge_is_the_engines_stream(alphabet: Alphabet) -> None:
    """Framing, order, role chunk, usage chunk, [DONE]: byte for byte, but for the time in "created"."""
    body = {**chat("alpha", stream=True, tokens=12), "stream_options": {"include_usage": True}}
    bodies, kinds = [], []
    for port in (alphabet.edge.port, alphabet.alphas[0].port):
        with RawClient(port) as client:
            client.request(CHAT, body, headers={"X-Request-Id": "same-id"})
            head = client.head()
            kinds.append(head.headers["content-type"])
            parts = client.body(head).split(b'"created":')
            bodies.append([parts[0], *(part[10:] for part in parts[1:])])
    assert bodies[0] == bodies[1]
    assert kinds[0] == kinds[1] == "text/event-stream; charset=utf-8"
    assert bodies[0][-1].endswith(b"data: [DONE]\n\n")


def test_headers_come_before_the_first_token(alphabet: Alphabet) -> None:
    """With HTTP/1.0 or buffering towards the engine, even the headers waited for the end of the stream."""
    with alphabet.edge.raw() as client:
        began = time.monotonic()
        client.request(CHAT, chat("alpha", stream=True, first_ms=500, tokens=2))
        assert client.head().status == 200
        assert time.monotonic() - began < 0.25
        events = list(client.events())
    assert time.monotonic() - began > 0.5
    assert events[-1][1] == b"data: [DONE]"


def lateness(port: int, encoding: str, tokens: int) -> list[float]:
    """Seconds from the moment that each event names to its arrival."""
    late: list[float] = []
    with RawClient(port) as client:
        client.request(
            CHAT,
            chat("alpha", stream=True, tokens=tokens, delay_ms=20, stamp=True),
            headers={"Accept-Encoding": encoding},
        )
        head = client.head()
        assert "content-encoding" not in head.headers
        for moment, event in client.events():
            late += [moment - float(text) for text in texts([event])]
    assert len(late) == tokens
    return late


@pytest.mark.parametrize("encoding", ["identity", "gzip, deflate, br"], ids=["plain", "asks for gzip"])
def test_events_20_ms_apart_arrive_at_most_5_ms_late(alphabet: Alphabet, encoding: str) -> None:
    """Compression and buffering hold tokens back until a block is full; the 99th percentile may be 5 ms late.

    A busy machine is late by itself: a stream without the edge runs beside, and its lateness is taken off. An edge that
    holds back delays every attempt.
    """
    ports = (alphabet.edge.port, alphabet.alphas[0].port)
    measured = []
    for _ in range(4):
        through, direct = at_once(2, lambda number: lateness(ports[number], encoding, 100))
        measured.append(percentile(through, 0.99) - percentile(direct, 0.99))
        if measured[-1] <= 0.005:
            return
    raise AssertionError(f"99th percentiles of four attempts, in seconds: {measured}")


def test_gzip_for_everything_else_does_not_touch_streams(alphabet: Alphabet) -> None:
    for stream in (True, False):
        answer = alphabet.edge.post(CHAT, chat("alpha", stream=stream, pad=2000), headers={"Accept-Encoding": "gzip"})
        assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize("script", [{"split": 7}, {"merge": 5}, {"pad": 100_000, "tokens": 5}, {"comment_every": 2}],
                         ids=["7 bytes a write", "5 events a write", "events of 100 KB", "comments"])  # fmt: skip
def test_strange_writes_arrive_unchanged(alphabet: Alphabet, script: dict[str, Any]) -> None:
    """Reads are not events: an event may come in pieces, or several at once."""
    body = chat("alpha", stream=True, **{"tokens": 11, **script})
    bodies = []
    for port in (alphabet.edge.port, alphabet.alphas[0].port):
        with RawClient(port) as client:
            client.request(CHAT, body, headers={"X-Request-Id": "same-id"})
            head = client.head()
            bodies.append([part[10:] for part in client.body(head).split(b'"created":')])
    assert bodies[0] == bodies[1]


def test_anthropic_and_responses_streams_pass(alphabet: Alphabet) -> None:
    """Both name their events and end without [DONE]."""
    body = {"model": "alpha", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    text = alphabet.edge.post("/v1/messages", body).text
    assert text.startswith("event: message_start\ndata: {") and "event: message_stop\ndata:" in text
    assert "[DONE]" not in text
    text = alphabet.edge.post("/v1/responses", {"model": "alpha", "stream": True, "input": "hi"}).text
    assert text.startswith("event: response.created\ndata: {") and "event: response.completed\ndata:" in text


@pytest.mark.parametrize("when", ["mid-stream", "before the first event", "before the headers"])
def test_a_client_that_leaves_stops_the_engine(alphabet: Alphabet, when: str) -> None:
    """Otherwise the GPU goes on generating for nobody, and the slot stays taken."""
    script = {"mid-stream": {"tokens": 1000, "delay_ms": 20}, "before the first event": {"hang": True},
              "before the headers": {"hang": True}}[when]  # fmt: skip
    client = alphabet.edge.raw()
    client.request(CHAT, chat("beta", stream=when != "before the headers", **script),
                   headers={"X-Request-Id": f"left-{when.replace(' ', '-')}"})  # fmt: skip
    if when != "before the headers":
        assert client.head().status == 200
    if when == "mid-stream":
        next(client.events())
    wait_until("the engine to have the request", lambda: alphabet.beta.counters()["running"] == 1)
    assert alphabet.edge.backends()["beta-1"]["in_flight"] == 1
    client.close()
    wait_until("the engine to see it", lambda: alphabet.beta.counters()["aborted"].get(CHAT) == 1, 1.0)
    wait_until("the slot to be free", lambda: alphabet.edge.backends()["beta-1"]["in_flight"] == 0, 1.0)
    line = alphabet.edge.log_of(f"left-{when.replace(' ', '-')}")
    assert line["end"] == "client_left"
    if when == "before the headers":
        assert line["status"] == 499


def test_a_client_that_closes_at_the_last_event_has_got_all(alphabet: Alphabet) -> None:
    """OpenAI's client closes then, before the engine has ended its answer."""
    raw = 'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
    client = alphabet.edge.raw()
    client.request(CHAT, chat("beta", stream=True, raw=raw, split_ms=1500), headers={"X-Request-Id": "left-at-the-end"})
    assert client.head().status == 200
    read = b""
    while b"[DONE]\n\n" not in read:
        read += next(client.chunks())[1]
    client.close()
    assert alphabet.edge.log_of("left-at-the-end")["end"] == "complete"


@pytest.mark.parametrize("how", ["cut_after", "abort_after"])
def test_a_stream_that_dies_ends_as_it_died(alphabet: Alphabet, how: str) -> None:
    """An invented [DONE] would make half an answer look whole; the missing last chunk tells the client the truth."""
    events: list[bytes] = []
    with alphabet.edge.raw() as client:
        client.request(
            CHAT, chat("alpha", stream=True, delay_ms=5, **{how: 3}), headers={"X-Request-Id": f"died-{how}"}
        )
        assert client.head().status == 200
        with pytest.raises((Cut, ConnectionResetError)):
            for _, event in client.events():
                events.append(event)
    if how == "cut_after":
        assert len(texts(events)) == 3
    assert b"data: [DONE]" not in events
    line = alphabet.edge.log_of(f"died-{how}")
    assert line["end"] == "engine_cut"
    assert sum(engine.started() for engine in alphabet.alphas) == 1


def test_an_error_event_passes_and_is_no_success(alphabet: Alphabet) -> None:
    """vLLM reports a dead engine inside a 200 stream, followed by [DONE]."""
    answer = alphabet.edge.post(CHAT, chat("alpha", stream=True, error_event_after=2),
                                headers={"X-Request-Id": "error-event-in-stream"})  # fmt: skip
    assert 'data: {"error":' in answer.text and answer.text.endswith("data: [DONE]\n\n")
    assert alphabet.edge.log_of("error-event-in-stream")["end"] == "engine_error"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_other_apis_error_events_are_no_success_either(alphabet: Alphabet, path: str) -> None:
    body = {"model": "alpha", "stream": True, "input": "hi", "max_tokens": 9, "scripted": {"error_event_after": 2},
            "messages": [{"role": "user", "content": "hi"}]}  # fmt: skip
    name = "fault-" + path.rpartition("/")[2]
    assert alphabet.edge.post(path, body, headers={"X-Request-Id": name}).status_code == 200
    assert alphabet.edge.log_of(name)["end"] == "engine_error"


def test_an_empty_stream_is_no_success(alphabet: Alphabet) -> None:
    """200 and not one event: gateways have crashed on it, or counted it as served."""
    answer = alphabet.edge.post(CHAT, chat("alpha", stream=True, empty_stream=True), headers={"X-Request-Id": "empty"})
    assert answer.content == b""
    assert alphabet.edge.log_of("empty")["end"] in ("engine_cut", "engine_error")


def test_silence_ends_a_stream_after_the_models_read_time_out(engine: ScriptedEngine) -> None:
    """The time-out is that of a silence, not of the whole answer: a stream that speaks may last longer."""
    with Edge(one_model("alpha", engine, timeouts={"read": "600ms"})) as edge:
        with edge.raw() as client:
            client.request(CHAT, chat("alpha", stream=True, tokens=10, delay_ms=150), headers={"X-Request-Id": "slow"})
            assert client.head().status == 200
            assert [*client.events()][-1][1] == b"data: [DONE]"
        with edge.raw() as client:
            client.request(CHAT, chat("alpha", stream=True, first_ms=5000), headers={"X-Request-Id": "silent"})
            began = time.monotonic()
            assert client.head().status == 200
            with pytest.raises((Cut, ConnectionResetError)):
                list(client.events())
            assert 0.5 < time.monotonic() - began < 1.5
        assert edge.log_of("slow")["end"] == "complete"
        assert edge.log_of("silent")["end"] == "engine_timeout"
        wait_until("the engine to be told", lambda: engine.counters()["aborted"].get(CHAT) == 1, 1.0)


def test_a_thousand_requests_share_two_connections(engine: ScriptedEngine) -> None:
    """One idle pool per worker. A keepalive directive at the wrong place pools nothing, without a warning."""
    with Edge(one_model("alpha", engine)) as edge:
        body = chat("alpha", tokens=1)
        for number in range(1000):
            assert edge.post(CHAT, body, new_connection=number % 5 == 0).status_code == 200
        connections = engine.counters()["connections"]
        assert engine.started() == 1000
    assert connections["with_post"] <= 2, connections


def test_streams_reuse_connections_too(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        for _ in range(50):
            assert edge.post(CHAT, chat("alpha", stream=True, tokens=2)).text.endswith("[DONE]\n\n")
        assert engine.counters()["connections"]["with_post"] <= 2


@pytest.mark.slow
def test_a_post_never_meets_a_connection_that_the_engine_is_closing(engine: ScriptedEngine) -> None:
    """uvicorn closes idle connections after 5 s. A POST sent at that moment is lost, and nginx may not send it again:
    the edge must close first. Forty connections are idled around the critical moment."""
    with Edge(one_model("alpha", engine)) as edge:
        gate = threading.Barrier(40)

        def twice(number: int) -> tuple[int, int]:
            first = edge.post(CHAT, chat("alpha", tokens=1, headers_after_ms=200)).status_code
            gate.wait()
            time.sleep(4.9 + number * 0.005)
            return first, edge.post(CHAT, chat("alpha", tokens=1)).status_code

        assert at_once(40, twice) == [(200, 200)] * 40
