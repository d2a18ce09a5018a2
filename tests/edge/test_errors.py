"""Errors: the engine's own untouched, the edge's own always JSON in the API's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.support.client import CHAT, chat, check_error, retry_after
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model

MESSAGES = {"model": "alpha", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 429, 500, 501, 503])
def test_an_engines_error_reaches_the_client_as_it_is(alphabet: Alphabet, status: int, stream: bool) -> None:
    """Error pages of the proxy replaced the engine's JSON, and clients saw HTML."""
    body = chat("alpha", stream=stream, status=status, retry_after=7)
    through = alphabet.edge.post(CHAT, body)
    direct = requests.post(alphabet.alphas[0].url + CHAT, json=body, timeout=5)
    assert through.status_code == direct.status_code == status
    assert through.content == direct.content
    assert through.headers["Content-Type"] == direct.headers["Content-Type"]
    assert through.headers["Retry-After"] == "7"


@pytest.mark.parametrize("body", [{"messages": []}, {}, {"messages": "x"}, {"messages": [1], "max_tokens": 0}])
def test_validation_stays_the_engines_business(alphabet: Alphabet, body: dict[str, Any]) -> None:
    body = {"model": "alpha", **body}
    through = alphabet.edge.post(CHAT, body)
    direct = requests.post(alphabet.alphas[0].url + CHAT, json=body, timeout=5)
    assert (through.status_code, through.content) == (direct.status_code, direct.content)


def test_the_engines_404_for_a_name_it_does_not_know_is_logged_as_404(engine: ScriptedEngine) -> None:
    """An engine that was given another name a moment ago: the client sees the engine's words."""
    with Edge(one_model("alpha", engine)) as edge:
        engine.configure(names=["something-else"])
        answer = edge.post(CHAT, chat("alpha"), headers={"X-Request-Id": "wrong-name"})
        assert answer.status_code == 404 and "something-else" in answer.text
        assert edge.log_of("wrong-name")["status"] == 404


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**MESSAGES, "model": "nobody"}, 404, "model_not_found"),
        ({**MESSAGES, "model": None}, 400, "model_required"),
        ({**MESSAGES, "model": 5}, 400, "invalid_model"),
        ({**MESSAGES, "kv_transfer_params": {}}, 400, "field_not_allowed"),
    ],
)
def test_errors_on_messages_have_anthropics_shape(
    alphabet: Alphabet, body: dict[str, Any], status: int, code: str
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        check_error(alphabet.edge.post(path, body), status, code, anthropic=True)


def test_nginxs_own_errors_on_messages_have_anthropics_shape(alphabet: Alphabet) -> None:
    check_error(alphabet.edge.get("/v1/messages"), 405, "method_not_allowed", anthropic=True)
    check_error(alphabet.edge.post("/v1/messages", data=b"nope"), 400, "invalid_json", anthropic=True)
    check_error(alphabet.edge.post("/v1/messages", {**MESSAGES, "scripted": {"die": True}}), 502, "engine_failed",
                anthropic=True)  # fmt: skip
    large = b'{"x":"' + b"x" * (alphabet.max_body + 10) + b'"}'
    check_error(alphabet.edge.post("/v1/messages", data=large, new_connection=True), 413, "body_too_large",
                anthropic=True)  # fmt: skip


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /v1/models\tx HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["bad line", "two hosts", "no host", "bad length", "length and chunked", "bad escape", "over the top"],
)
def test_malformed_http_is_json_too(alphabet: Alphabet, request_bytes: bytes) -> None:
    with alphabet.edge.raw() as client:
        client.send(request_bytes)
        head = client.head()
        assert head.status == 400
        assert head.headers["content-type"] == "application/json"
        content = json.loads(client.body(head))
    assert content["error"]["code"] == "bad_request"


@pytest.mark.parametrize("body", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n0\r\n\r\n"])
def test_a_broken_chunk_is_400(alphabet: Alphabet, body: bytes) -> None:
    with alphabet.edge.raw() as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n" + body)  # fmt: skip
        head = client.head()
        assert head.status == 400
        assert json.loads(client.body(head))["error"]["code"] == "bad_request"


def test_headers_and_addresses_have_limits(alphabet: Alphabet) -> None:
    """The engine itself accepts a header of 5 MB."""
    for headers, path, status, code in (
        ({"X-Big": "x" * 100_000}, CHAT, 431, "headers_too_large"),
        ({}, CHAT + "?" + "x" * 100_000, 414, "uri_too_long"),
    ):
        with alphabet.edge.raw() as client:
            client.request(path, chat("alpha"), headers=headers)
            head = client.head()
            assert head.status == status
            assert json.loads(client.body(head))["error"]["code"] == code
    assert sum(engine.started() for engine in alphabet.alphas) == 0


def test_an_engine_that_dies_before_it_answers_is_502_and_nothing_is_run_twice(alphabet: Alphabet) -> None:
    """A POST that was sent may be running: to send it to the next engine would generate twice."""
    for stream in (False, True):
        check_error(alphabet.edge.post(CHAT, chat("alpha", stream=stream, die=True)), 502, "engine_failed")
    assert sum(engine.started() for engine in alphabet.alphas) == 2
    alphabet.edge.until_ready()


def test_no_answer_in_time_is_504_and_nothing_is_run_twice(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """The official clients retry 5xx by themselves: x-should-retry tells them that this would start it again."""
    with Edge(one_model("alpha", engine, engine_2, timeouts={"read": "500ms"})) as edge:
        answer = edge.post(CHAT, chat("alpha", hang=True), headers={"X-Request-Id": "late"})
        check_error(answer, 504, "engine_timeout")
        assert answer.headers["x-should-retry"] == "false"
        assert edge.log_of("late")["end"] == "engine_timeout"
        assert engine.started() + engine_2.started() == 1
        edge.idle()


def test_an_engine_that_refuses_is_502_until_it_is_known_to_be_down_then_503(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        engine.kill()
        answer = edge.post(CHAT, chat("alpha"))
        if answer.status_code == 502:
            check_error(answer, 502, "engine_unreachable")
        else:
            check_error(answer, 503, "no_backend_ready")
        edge.idle()


def test_an_engine_that_never_started_is_503_with_retry_after() -> None:
    engine = ScriptedEngine("alpha")
    with Edge(one_model("alpha", engine), ready=False) as edge:
        for stream in (False, True):
            answer = edge.post(CHAT, chat("alpha", stream=stream))
            check_error(answer, 503, "no_backend_ready")
            retry_after(answer)
        check_error(edge.post("/v1/messages", MESSAGES), 503, "no_backend_ready", anthropic=True)
        assert edge.backends()["alpha-1"]["state"] == "starting"
