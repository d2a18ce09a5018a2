"""Which paths exist. A real engine serves inference and management without a key on paths that nobody must reach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripted.app import DANGEROUS
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model

SERVED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/score": {"text_1": "a", "text_2": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": ["b"]},
    "/pooling": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
}
#: What the edge itself asks an engine.
PROBES = {"/health", "/version", "/v1/models", "/metrics", "/load"}
ESCAPES = (
    "//invocations", "/v1/../invocations", "/v1/%2e%2e/invocations", "/v1/chat/completions/../../../invocations",
    "/./invocations", "/%69nvocations", "/invocations/", "/invocations%00", "/invocations;x=/v1/chat/completions",
    "/v1/chat/completions/..%2f..%2f..%2finvocations", "/invocations%3f/../v1/chat/completions2",
    "/v1/models/../../sleep", "/v1/responses/../../sleep", "/v1/responses/..%2f..%2fsleep",
    "/v1/responses/a%2f..%2f..%2f..%2fsleep", "/v1/responses/x/cancel/../../../../sleep",
)  # fmt: skip
OTHERS = (
    "/", "/state", "/fleet", "/docs", "/openapi.json", "/load", "/version", "/v1", "/v1/", "/V1/chat/completions",
    "/v1/chat/completions/", "/v1/chat/completions/batch", "/v1/realtime", "/v1/fine_tuning/jobs", "/_scripted",
)  # fmt: skip


def engine_paths(alphabet: Alphabet) -> set[str]:
    return {path for engine in alphabet.engines for path in engine.counters()["started"]} - PROBES


@pytest.mark.parametrize("path", SERVED)
def test_served_paths_reach_an_engine(alphabet: Alphabet, path: str) -> None:
    answer = alphabet.edge.post(path, {**SERVED[path], "model": "alpha"})
    assert answer.status_code == 200, answer.text
    assert engine_paths(alphabet) == {path}


@pytest.mark.parametrize("path", SERVED)
def test_every_served_path_routes_by_model(alphabet: Alphabet, path: str) -> None:
    anthropic = path.startswith("/v1/messages")
    answer = alphabet.edge.post(path, {**SERVED[path], "model": "nobody"})
    check_error(answer, 404, "model_not_found", anthropic)
    assert alphabet.edge.post(path, {**SERVED[path], "model": "beta"}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [path for path in DANGEROUS + OTHERS if path not in SERVED])
def test_everything_else_is_not_found(alphabet: Alphabet, path: str, method: str) -> None:
    body = json.dumps(chat("alpha")).encode()
    answer = alphabet.edge.call(method, path, data=body, headers={"Content-Type": "application/json"})
    check_error(answer, 404, "path_not_found")
    assert engine_paths(alphabet) == set()


@pytest.mark.parametrize("path", ESCAPES)
def test_no_spelling_of_a_path_escapes(alphabet: Alphabet, path: str) -> None:
    """nginx decides on the normalised path; an engine that got the client's spelling could read another."""
    with alphabet.edge.raw() as client:
        client.request(path, chat("alpha"))
        head = client.head()
        assert head.status in (400, 404, 405), head
        assert head.headers["content-type"] == "application/json"
        assert "error" in json.loads(client.body(head))
    assert engine_paths(alphabet) == set()


SPELLINGS = (
    "//v1//chat/completions", "/x/../v1/chat/completions", "/v1/chat%2Fcompletions",
    "/invocations/../v1/chat/completions", "/v1/%63hat/completions?a=/../sleep",
)  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
def test_the_engine_gets_the_path_that_was_allowed(alphabet: Alphabet, path: str) -> None:
    """Whatever spelling the client used, the engine sees the plain path or nothing."""
    with alphabet.edge.raw() as client:
        client.request(path, chat("alpha"))
        assert client.head().status in (200, 404)
    assert engine_paths(alphabet) <= {CHAT}


def test_absolute_form_and_strange_hosts_change_nothing(alphabet: Alphabet) -> None:
    with alphabet.edge.raw() as client:
        client.request("http://engine.internal/invocations", chat("alpha"))
        assert client.head().status == 404
    assert engine_paths(alphabet) == set()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_another_method_is_405_and_says_which(alphabet: Alphabet, method: str) -> None:
    answer = alphabet.edge.call(method, CHAT)
    assert "POST" in answer.headers["Allow"]
    if method == "HEAD":
        assert answer.status_code == 405
    else:
        check_error(answer, 405, "method_not_allowed")
    assert engine_paths(alphabet) == set()


def test_trace_and_connect_are_refused(alphabet: Alphabet) -> None:
    for method in ("TRACE", "CONNECT"):
        with alphabet.edge.raw() as client:
            client.request(CHAT, method=method)
            assert 400 <= client.head().status < 500


def test_a_websocket_upgrade_gets_a_plain_answer(alphabet: Alphabet) -> None:
    """Realtime clients ask for an upgrade; a clear 404 is better than a hang."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    answer = alphabet.edge.get("/v1/realtime?model=alpha", headers=headers, new_connection=True)
    check_error(answer, 404, "path_not_found")


def test_cors_is_off_unless_configured(alphabet: Alphabet) -> None:
    origin = {"Origin": "https://app.example.com"}
    answer = alphabet.edge.post(CHAT, chat("alpha"), headers=origin)
    assert answer.status_code == 200
    asked = alphabet.edge.call("OPTIONS", CHAT, headers={**origin, "Access-Control-Request-Method": "POST"})
    assert asked.status_code == 405
    for one in (answer, asked):
        assert not [name for name in one.headers if name.lower().startswith("access-control-")]


def test_cors_for_the_configured_origins_only(engine: ScriptedEngine) -> None:
    fleet = one_model("alpha", engine, cors={"origins": ["https://app.example.com"]})
    with Edge(fleet) as edge:
        for origin, allowed in (("https://app.example.com", True), ("https://evil.example.com", False)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST",
                       "Access-Control-Request-Headers": "authorization, content-type"}  # fmt: skip
            asked = edge.call("OPTIONS", CHAT, headers=headers)
            answer = edge.post(CHAT, chat("alpha", headers={"Access-Control-Allow-Origin": "*"}),
                               headers={"Origin": origin})  # fmt: skip
            refused = edge.post(CHAT, chat("nobody"), headers={"Origin": origin})
            expected = origin if allowed else None
            assert answer.headers.get("Access-Control-Allow-Origin") == expected
            assert refused.headers.get("Access-Control-Allow-Origin") == expected
            if allowed:
                assert asked.status_code in (200, 204)
                assert asked.headers["Access-Control-Allow-Origin"] == origin
                assert "authorization" in asked.headers["Access-Control-Allow-Headers"].lower()
