"""What AIPerf's raw export says of a request, read right: pure, with records as it writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from control.bench.records import Request, as_scheduled, read, request


def event(at: float, **value: Any) -> dict[str, Any]:
    """An event read ``at`` seconds after the request was sent."""
    return {"perf_ns": 1_000_000_000 + round(at * 1e9), "packets": [{"name": "data", "value": json.dumps(value)}]}


def chunk(at: float, text: str | None = None, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    content = {} if text is None else {"content": text}
    return event(at, choices=[{"index": 0, "delta": {**content, **delta}, "finish_reason": reason}])


def done(at: float) -> dict[str, Any]:
    return {"perf_ns": 1_000_000_000 + round(at * 1e9), "packets": [{"name": "data", "value": "[DONE]"}]}


def comment(at: float) -> dict[str, Any]:
    return {"perf_ns": 1_000_000_000 + round(at * 1e9), "packets": [{"name": "comment", "value": "keep-alive"}]}


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
ROLE = chunk(0.01, "", role="assistant")
WHOLE = [ROLE, chunk(0.2, "a"), chunk(0.3, "b"), chunk(0.4, "c"), chunk(0.5, "d", "length"),
         event(0.51, choices=[], usage=USAGE), done(0.52)]  # fmt: skip


def record(
    responses: list[dict[str, Any]], error: dict[str, Any] | None = None, status: int | None = 200
) -> dict[str, Any]:
    metadata = {
        "x_request_id": "id-1", "conversation_id": "short:0003", "turn_index": 0, "benchmark_phase": "profiling",
        "credit_issued_ns": 5_000_000_000, "request_start_ns": 5_002_000_000, "request_end_ns": 5_902_000_000,
    }  # fmt: skip
    return {"metadata": metadata, "start_perf_ns": 1_000_000_000, "responses": responses, "status": status,
            "error": error}  # fmt: skip


def test_a_whole_answer() -> None:
    found = request(record(WHOLE))
    assert found.failure is None and found.group == "short" and found.conversation == "short:0003"
    assert found.ttft == pytest.approx(0.2), "the role chunk is no token"
    assert found.e2e == pytest.approx(0.5), "neither usage nor [DONE] makes an answer longer"
    assert found.itl == pytest.approx([0.1, 0.1, 0.1])
    assert (found.prompt_tokens, found.output_tokens) == (9, 4)
    assert found.tpot == pytest.approx(0.1)
    assert (found.due, found.started) == (5.0, 5.002)


def test_comments_count_for_nothing() -> None:
    found = request(record([comment(0.001), *WHOLE[:2], comment(0.25), *WHOLE[2:]]))
    assert found.ttft == pytest.approx(0.2) and found.itl == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning", "tool_calls"])
def test_reasoning_and_tool_calls_are_tokens(member: str) -> None:
    first = chunk(0.1, **{member: [{"index": 0}] if member == "tool_calls" else "hm"})
    assert request(record([ROLE, first, *WHOLE[1:]])).ttft == pytest.approx(0.1)


def test_several_tokens_in_an_event_are_counted_by_the_engine() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 11}
    found = request(record([ROLE, chunk(0.2, "a b c d"), chunk(0.7, "e f g h i j k", "stop"),
                            event(0.7, choices=[], usage=usage), done(0.7)]))  # fmt: skip
    assert found.tpot == pytest.approx(0.05) and found.itl == pytest.approx([0.5])


def test_usage_in_every_chunk_counts_the_last() -> None:
    events = [event(0.1 * n, choices=[{"delta": {"content": "x"}, "finish_reason": "stop" if n == 3 else None}],
                    usage={"prompt_tokens": 9, "completion_tokens": n}) for n in (1, 2, 3)]  # fmt: skip
    assert request(record([*events, done(0.3)])).output_tokens == 3


PAYLOAD_ERROR = {"type": "ClientPayloadError", "message": "Response payload is not completed",
                 "cause_chain": ["ClientPayloadError"]}  # fmt: skip


@pytest.mark.parametrize(
    ("responses", "error", "status", "failure"),
    [
        ([], {"code": 503, "type": "Service Unavailable", "message": "busy"}, 503, "http"),
        ([], {"type": "ServerDisconnectedError", "cause_chain": ["ServerDisconnectedError"]}, None, "connect"),
        ([], {"type": "ClientConnectorError", "cause_chain": ["ClientConnectorError"]}, None, "connect"),
        (WHOLE[:3], PAYLOAD_ERROR, 200, "cut"),
        (WHOLE[:3], None, 200, "cut"),
        (WHOLE[:-1], None, 200, "cut"),
        (WHOLE[:4] + WHOLE[-2:], None, 200, "cut"),  # [DONE] without finish_reason
        ([*WHOLE[:2], event(0.3, error={"message": "EngineCore", "code": 500}), done(0.3)], None, 200, "error_event"),
        ([*WHOLE[:2], chunk(0.3, "", "abort"), *WHOLE[-2:]], None, 200, "aborted"),
        ([], {"type": "InvalidInferenceResultError", "cause_chain": ["InvalidInferenceResultError"]}, 200, "empty"),
        ([ROLE, chunk(0.2, "", "stop"), *WHOLE[-2:]], None, 200, "empty"),
        ([], {"type": "TimeoutError", "cause_chain": ["TimeoutError", "CancelledError"]}, 200, "timeout"),
        (WHOLE[:3], {"type": "TimeoutError", "cause_chain": ["TimeoutError"]}, 200, "timeout"),
        ([*WHOLE[:5], done(0.5)], None, 200, "no_usage"),
    ],
)  # fmt: skip
def test_each_way_to_fail(
    responses: list[dict[str, Any]], error: dict[str, Any] | None, status: int | None, failure: str
) -> None:
    found = request(record(responses, error, status))
    assert found.failure == failure
    assert found.e2e == pytest.approx(0.9), "a failure took as long as it took"


def test_scheduled_requests_are_due_when_the_schedule_says() -> None:
    sent = [replace(request(record(WHOLE)), conversation=f"a:{number}", due=due)
            for number, due in enumerate((100.0, 101.0, 102.5))]  # fmt: skip
    found = as_scheduled(sent, {"a:0": 0.0, "a:1": 1.0, "a:2": 2.0})
    assert [one.due for one in found] == [100.0, 101.0, 102.0], "the last was half a second late"
    assert as_scheduled(sent, {}) == sent


def test_only_the_measured_phase_is_read() -> None:
    warm_up = record(WHOLE)
    warm_up["metadata"] = {**warm_up["metadata"], "benchmark_phase": "warmup"}
    found: list[Request] = list(read([json.dumps(warm_up), json.dumps(record(WHOLE))]))
    assert len(found) == 1
