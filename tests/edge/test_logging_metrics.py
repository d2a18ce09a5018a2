"""The access log and the metrics say what happened, with honest times."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

from tests.support.client import CHAT, at_once, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until

KEYS = {
    "ts", "time", "id", "trace", "key", "model", "fallback_from", "backend", "path", "method", "status", "end",
    "bytes_in", "bytes_out", "prompt_tokens", "completion_tokens", "stream", "priority", "queue_place", "queue_ms",
    "connect_ms", "ttft_ms", "total_ms", "itl_mean_ms", "itl_max_ms", "chunks", "retries", "client", "error", "rule",
}  # fmt: skip
USAGE = {"stream_options": {"include_usage": True}}


def logged(edge: Edge, request_id: str, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    """Send, wait, and give the log line back."""
    edge.post(path, body, headers={"X-Request-Id": request_id})
    return edge.log_of(request_id)


def test_a_line_has_all_keys_and_the_right_kinds(alphabet: Alphabet) -> None:
    line = logged(alphabet.edge, "line-kinds", {**chat("alpha-chat", stream=True, tokens=4, delay_ms=10), **USAGE})
    assert set(line) == KEYS
    assert abs(datetime.fromisoformat(line["ts"]).timestamp() - time.time()) < 10
    assert abs(line["time"] - time.time()) < 10
    assert (line["model"], line["path"], line["method"], line["status"]) == ("alpha", CHAT, "POST", 200)
    assert line["backend"] in ("alpha-1", "alpha-2")
    assert (line["end"], line["stream"], line["error"], line["key"]) == ("complete", True, None, None)
    assert line["client"] == "127.0.0.1" and line["retries"] == 0 and line["queue_ms"] == 0
    assert line["bytes_in"] > 100 and line["bytes_out"] > 500
    assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 4)
    assert line["chunks"] >= 4


def test_first_token_time_is_that_of_the_first_event(alphabet: Alphabet) -> None:
    """vLLM sends headers at once, and comments while a request waits: neither is a token."""
    line = logged(alphabet.edge, "ttft", chat("alpha", stream=True, comment_first=True, first_ms=250, tokens=3))
    assert 240 <= line["ttft_ms"] <= 400
    assert line["total_ms"] >= line["ttft_ms"]


def test_gaps_between_tokens_are_measured(alphabet: Alphabet) -> None:
    line = logged(alphabet.edge, "gaps", chat("alpha", stream=True, tokens=12, delay_ms=30))
    assert 25 <= line["itl_mean_ms"] <= 45
    assert 29 <= line["itl_max_ms"] <= 150


def test_what_is_unknown_is_null(alphabet: Alphabet) -> None:
    """Not zero: a zero is a measurement."""
    for name, script in (("no-usage", {}), ("null-usage", {"null_usage": True})):
        line = logged(alphabet.edge, name, chat("alpha", stream=True, tokens=3, **script))
        assert line["prompt_tokens"] is None and line["completion_tokens"] is None
        assert line["end"] == "complete"
    line = logged(alphabet.edge, "unknown-model", chat("nobody"))
    assert line["model"] is None and line["backend"] is None
    assert line["ttft_ms"] is None and line["connect_ms"] is None and line["itl_mean_ms"] is None
    assert (line["end"], line["error"], line["status"]) == ("refused", "model_not_found", 404)


def test_tokens_are_read_from_every_api(alphabet: Alphabet) -> None:
    """In whole answers and in streams, by OpenAI's names and by Anthropic's."""
    messages = {"model": "alpha", "max_tokens": 5, "messages": [{"role": "user", "content": "one two"}]}
    calls: list[tuple[str, dict[str, Any], tuple[int | None, int | None]]] = [
        (CHAT, {**chat("alpha", text="one two"), "max_tokens": 5}, (2, 5)),
        (CHAT, {**chat("alpha", text="one two", stream=True), "max_tokens": 5, **USAGE}, (2, 5)),
        (CHAT, {**chat("alpha", text="one two", stream=True, split=11), "max_tokens": 5, **USAGE}, (2, 5)),
        ("/v1/completions", {"model": "alpha", "prompt": "one two", "max_tokens": 5}, (2, 5)),
        ("/v1/completions", {"model": "alpha", "prompt": "one two", "max_tokens": 5, "stream": True, **USAGE}, (2, 5)),
        ("/v1/responses", {"model": "alpha", "input": "one two", "max_output_tokens": 5}, (2, 5)),
        ("/v1/responses", {"model": "alpha", "input": "one two", "max_output_tokens": 5, "stream": True}, (2, 5)),
        ("/v1/messages", messages, (2, 5)),
        ("/v1/messages", {**messages, "stream": True}, (2, 5)),
        ("/v1/embeddings", {"model": "alpha", "input": "one two"}, (2, 0)),
    ]
    for number, (path, body, expected) in enumerate(calls):
        line = logged(alphabet.edge, f"tokens-{number}", body, path)
        assert (line["prompt_tokens"], line["completion_tokens"]) == expected, (path, body.get("stream"), line)


def test_every_kind_of_ending_has_its_name(alphabet: Alphabet) -> None:
    cases: dict[str, tuple[dict[str, Any], int]] = {
        "complete": (chat("alpha"), 200),
        "engine_cut": (chat("alpha", die=True), 502),
        "engine_error": (chat("alpha", status=500), 500),
        "refused": (chat(5), 400),
    }
    for end, (body, status) in cases.items():
        line = logged(alphabet.edge, f"end-{end}", body)
        if end == "engine_cut":
            assert line["end"] in ("engine_cut", "engine_error"), line
        else:
            assert line["end"] == end, line
        assert line["status"] == status


def test_an_engines_4xx_is_a_complete_answer(alphabet: Alphabet) -> None:
    line = logged(alphabet.edge, "engine-422", chat("alpha", status=422))
    assert (line["end"], line["status"], line["error"]) == ("complete", 422, None)


def test_paths_that_do_not_exist_are_logged_without_their_query(alphabet: Alphabet) -> None:
    alphabet.edge.get("/no/such?token=canary", headers={"X-Request-Id": "no-such"})
    line = alphabet.edge.log_of("no-such")
    assert line["path"] == "/no/such" and "canary" not in str(line)


def test_hostile_paths_and_methods_keep_the_log_readable(alphabet: Alphabet) -> None:
    with alphabet.edge.raw() as client:
        client.request('/a%22%7D%0A{"x":1}\\%00x'.replace("%00", ""), headers={"X-Request-Id": "hostile"})
        assert client.head().status in (400, 404)
    assert alphabet.edge.log_of("hostile")["status"] in (400, 404)


def test_one_line_per_request(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        at_once(8, lambda _: [edge.post(CHAT, chat("alpha", tokens=1)) for _ in range(25)])
        lines = wait_until("200 lines", lambda: [*edge.log_lines()] if len(edge.log_lines()) >= 200 else [], every=0.05)
        assert len(lines) == 200
        assert len({line["id"] for line in lines}) == 200


SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? ([0-9.e+-]+|\+Inf|NaN)$'
)


def test_metrics_are_well_formed(alphabet: Alphabet) -> None:
    alphabet.edge.post(CHAT, chat("alpha", stream=True))
    answer = alphabet.edge.admin("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    kinds: dict[str, str] = {}
    seen = set()
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"{name} stands twice"
            kinds[name] = kind
        elif not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            assert (match[1], match[2]) not in seen, f"{line} stands twice"
            seen.add((match[1], match[2]))
            family = re.sub(r"_(bucket|sum|count)$", "", match[1]) if match[1] not in kinds else match[1]
            assert family in kinds, line
    assert "histogram" in kinds.values() and "counter" in kinds.values() and "gauge" in kinds.values()


def test_histograms_are_cumulative(alphabet: Alphabet) -> None:
    for _ in range(3):
        alphabet.edge.post(CHAT, chat("beta", stream=True, tokens=3, delay_ms=5))
    time.sleep(1.1)  # workers add up once a second
    samples = alphabet.edge.metrics()
    for family in ("ttft", "itl", "request_duration"):
        name = f"signalbox_{family}_seconds"
        buckets = [value for series, value in samples.items()
                   if series.startswith(f"{name}_bucket{{") and 'model="beta"' in series]  # fmt: skip
        assert buckets == sorted(buckets) and buckets[-1] >= 3
        assert alphabet.edge.metric(f"{name}_count", model="beta") == buckets[-1]


def test_requests_and_tokens_are_counted(alphabet: Alphabet) -> None:
    edge = alphabet.edge

    def counts() -> tuple[float, float, float]:
        return (
            edge.metric("signalbox_requests_total", model="beta", code="200"),
            edge.metric("signalbox_tokens_total", model="beta", kind="completion"),
            edge.metric("signalbox_requests_total", model="beta", code="503"),
        )

    time.sleep(1.1)  # workers add up once a second
    before = counts()
    for _ in range(4):
        edge.post(CHAT, {**chat("beta"), "max_tokens": 5})
    edge.post(CHAT, chat("beta", status=503))
    expected = (before[0] + 4, before[1] + 20, before[2] + 1)
    wait_until("the counts of both workers", lambda: counts() == expected, 3, every=0.05)


def test_unknown_names_make_no_new_series(alphabet: Alphabet) -> None:
    """A label that clients choose would fill the memory, and carry their secrets."""
    before = len(alphabet.edge.metrics())
    for number in range(30):
        alphabet.edge.post(CHAT, chat(f"canary-name-{number}"))
        alphabet.edge.get(f"/canary-path-{number}")
    wait_until("both workers to have told", lambda: alphabet.edge.metric("signalbox_requests_total", code="404") >= 60)
    assert "canary" not in alphabet.edge.admin("GET", "/metrics").text
    assert len(alphabet.edge.metrics()) <= before + 4


def test_in_flight_is_shown_while_it_lasts(alphabet: Alphabet) -> None:
    with alphabet.edge.raw() as client:
        client.request(CHAT, chat("beta", stream=True, tokens=500, delay_ms=20))
        assert client.head().status == 200
        assert alphabet.edge.metric("signalbox_in_flight", backend="beta-1") == 1
    wait_until("zero", lambda: alphabet.edge.metric("signalbox_in_flight", backend="beta-1") == 0, 2)
