"""W3C Trace Context: a client's trace goes on through the edge, else the edge begins one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BEGUN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


def seen_headers(answer: Any) -> dict[str, str]:
    """What the engine received, by lower-case names."""
    assert answer.status_code == 200, answer.text
    return {name.lower(): value for name, value in answer.json()["headers"]}


@pytest.mark.parametrize(
    "given",
    [
        f"00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-00",
        f"00-{'0' * 31}1-{'0' * 15}1-ff",
        # Versions to come: the same four fields, and more after another dash.
        f"01-{TRACE}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-09-what-may-come.next",
        f"fe-{TRACE}-{PARENT}-01-",
    ],
)
def test_a_valid_trace_goes_on_unchanged(alphabet: Alphabet, given: str) -> None:
    headers = {"Traceparent": given, "Tracestate": "a=1,b@c=2", "X-Request-Id": "goes-on-" + given[:2] + given[-4:]}
    seen = seen_headers(alphabet.edge.post(CHAT, chat("alpha", echo=True), headers=headers))
    assert (seen["traceparent"], seen["tracestate"]) == (given, "a=1,b@c=2")
    assert alphabet.edge.log_of(headers["X-Request-Id"])["trace"] == given[3:35]


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"0A-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}",
        f"01-{TRACE}-{PARENT}-01more",
        f"01-{TRACE}-{PARENT}-01-a b",
        f"01-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01",
        f'00-{TRACE}-{PARENT}-0"',
        "00-canary",
    ],
)
def test_any_other_trace_is_replaced(alphabet: Alphabet, given: str | None) -> None:
    """An engine that throws at a malformed trace, or a log that carries a client's text, would be ours to explain."""
    headers = {"Tracestate": "a=1", **({} if given is None else {"Traceparent": given})}
    answer = alphabet.edge.post(CHAT, chat("alpha", echo=True), headers=headers)
    seen = seen_headers(answer)
    match = BEGUN.fullmatch(seen["traceparent"])
    assert match, seen["traceparent"]
    assert match[1] != TRACE and int(match[1], 16) and int(match[2], 16)
    assert "tracestate" not in seen
    assert alphabet.edge.log_of(answer.headers["X-Request-Id"])["trace"] == match[1]


def test_every_request_begins_a_trace_of_its_own(alphabet: Alphabet) -> None:
    """On one connection too."""
    traces = {seen_headers(alphabet.edge.post(CHAT, chat("alpha", echo=True)))["traceparent"] for _ in range(20)}
    assert len(traces) == 20
    assert len({trace[36:52] for trace in traces}) == 20


@pytest.mark.parametrize("given", [None, f"00-{TRACE}-{PARENT}-01"])
def test_the_next_engine_gets_the_same_trace(
    engine: ScriptedEngine, engine_2: ScriptedEngine, given: str | None
) -> None:
    """After a failed connect the request goes on in another location: its trace must not begin anew there."""
    headers = {"Traceparent": given} if given else {}
    fleet = one_model("alpha", engine, engine_2, policy="round_robin")
    fleet["edge"]["probe"] = {"interval": "1h"}  # nobody but the requests finds the dead one
    with Edge(fleet) as edge:
        engine.kill()
        for number in range(4):
            sent = {**headers, "X-Request-Id": f"next-{number}"}
            seen = seen_headers(edge.post(CHAT, chat("alpha", echo=True), headers=sent))
            line = edge.log_of(f"next-{number}")
            assert seen["traceparent"].split("-")[1] == line["trace"]
            assert given in (None, seen["traceparent"])
            if line["retries"]:
                return
    raise AssertionError("no request met the dead engine")


def test_refused_requests_have_a_trace_too(alphabet: Alphabet) -> None:
    """Errors of Lua, of nginx in a location, and of nginx before it has read a request."""
    edge = alphabet.edge
    sent = {"Traceparent": f"00-{TRACE}-{PARENT}-01"}
    check_error(edge.post(CHAT, chat("nobody"), headers={**sent, "X-Request-Id": "trace-404"}), 404, "model_not_found")
    large = {**sent, "X-Request-Id": "trace-413", "Content-Length": str(alphabet.max_body + 1)}
    with edge.raw() as client:
        client.request(CHAT, b"", headers=large)
        assert client.head().status == 413
    assert [edge.log_of(one)["trace"] for one in ("trace-404", "trace-413")] == [TRACE, TRACE]
    with edge.raw() as client:
        client.send(b"GET / HTTP/9.9\r\n\r\n")
        refused = client.head()
        assert refused.status == 505
    assert re.fullmatch("[0-9a-f]{32}", edge.log_of(refused.headers["x-request-id"])["trace"])


def test_a_large_body_with_another_name_keeps_its_trace(alphabet: Alphabet) -> None:
    sent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"}
    seen = seen_headers(alphabet.edge.post(CHAT, chat("beta", text="x" * 2_000_000, echo=True), headers=sent))
    assert {name: seen[name] for name in sent} == sent
