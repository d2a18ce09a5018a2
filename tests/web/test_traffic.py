"""Rates, quantiles and the last hour, from the edge's counters. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control.web.history import BIN, BINS, Gauges, History, backend_series, model_series
from control.web.plots import lines
from control.web.recent import Answers, LogTail, Recent, parse
from control.web.traffic import ALL, between, quantile, read_sample


def metrics(requests: int, tokens: int = 0, **more: Any) -> str:
    """The edge's /metrics after so many requests of m-1, half of them with a TTFT below 0.1 s, half below 0.2 s."""
    return f"""# TYPE signalbox_requests_total counter
signalbox_requests_total{{model="m",backend="m-1",code="200",end="complete"}} {requests}
signalbox_requests_total{{model="m",backend="",code="429",end="refused"}} {more.get("full", 0)}
signalbox_requests_total{{model="",backend="",code="401",end="refused"}} {more.get("strangers", 0)}
# TYPE signalbox_tokens_total counter
signalbox_tokens_total{{model="m",kind="completion"}} {tokens}
signalbox_tokens_total{{model="m",kind="prompt"}} 99999
# TYPE signalbox_ttft_seconds histogram
signalbox_ttft_seconds_bucket{{model="m",le="0.1"}} {requests // 2}
signalbox_ttft_seconds_bucket{{model="m",le="0.2"}} {requests}
signalbox_ttft_seconds_bucket{{model="m",le="+Inf"}} {requests}
signalbox_ttft_seconds_sum{{model="m"}} 1
signalbox_ttft_seconds_count{{model="m"}} {requests}
# TYPE signalbox_queue_length gauge
signalbox_queue_length{{model="m",priority="high"}} 1
signalbox_queue_length{{model="m",priority="low"}} 2
# TYPE signalbox_backend_limit gauge
signalbox_backend_limit{{model="m",backend="m-1"}} 8
# TYPE signalbox_engine_prefix_queries_total counter
signalbox_engine_prefix_queries_total{{model="m",backend="m-1"}} {requests * 100}
# TYPE signalbox_engine_prefix_hits_total counter
signalbox_engine_prefix_hits_total{{model="m",backend="m-1"}} {requests * 25}
"""


def test_rates_shares_and_quantiles_between_two_looks() -> None:
    old, new = read_sample(metrics(100, 1000), 10.0), read_sample(metrics(190, 3000, full=10, strangers=100), 20.0)
    found = between(old, new)
    assert set(found) == {ALL, "m"}
    traffic = found["m"]
    assert (traffic.requests, traffic.tokens, traffic.queue) == (10.0, 200.0, 3.0)
    assert traffic.failed == pytest.approx(0.1), "a full queue is a failure"
    assert found[ALL].failed == pytest.approx(10 / 200), "a wrong key is the client's own"
    assert traffic.ttft_p50 == pytest.approx(0.1) and traffic.ttft_p99 == pytest.approx(0.198)
    assert traffic.itl_p50 is None and new.limits == {"m-1": 8}


def test_an_edge_that_was_started_anew_began_at_nothing() -> None:
    traffic = between(read_sample(metrics(1000, 9000), 0.0), read_sample(metrics(50, 100), 10.0))["m"]
    assert (traffic.requests, traffic.tokens) == (5.0, 10.0) and traffic.ttft_p50 == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("buckets", "q", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, 2.0: 10, float("inf"): 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, float("inf"): 10}, 0.5, 1.5),
        ({1.0: 0, 2.0: 0, float("inf"): 10}, 0.5, 2.0),
        ({1.0: 5, 2.0: 10, float("inf"): 20}, 0.99, 2.0),
    ],
)
def test_quantile(buckets: dict[float, float], q: float, value: float | None) -> None:
    assert quantile(buckets, q) == value


def add(history: History, at: float, requests: int) -> None:
    gauges = {"m-1": Gauges(3, 2, 1, 0.5)}
    history.add(read_sample(metrics(requests), at), gauges, {"m-1": Answers(0.2, 0.9, 50.0)})


def test_the_hour_has_a_gap_where_the_edge_did_not_answer() -> None:
    history, count = History(), 0
    for at in range(0, 120, 5):
        count += 50
        add(history, float(at), count)
    assert model_series(history.bins, "requests") == [10.0] * 3
    assert backend_series(history.bins, "share", "prefix_hits", "m-1") == [0.25] * 3
    assert backend_series(history.bins, "gauges", "running", "m-1") == [2] * 3
    assert backend_series(history.bins, "answers", "tokens", "m-1") == [50.0] * 3
    assert history.now()[ALL].requests == 10.0 and history.shares()["m-1"].requests == 10.0
    for at in range(120, 215, 5):
        history.miss(float(at))
    assert history.now() == {}, "old numbers are no news"
    add(history, 215.0, count)
    add(history, 245.0, count + 60)
    assert model_series(history.bins, "requests") == [10.0] * 3 + [None] * 4 + [2.0]


def test_the_hour_is_bounded_whatever_the_clock_does() -> None:
    history = History()
    for number in range(BINS + 50):
        add(history, number * BIN, number)
    assert len(history.bins) == BINS
    history.miss(1e9)
    add(history, 2e9, 5)
    add(history, 5.0, 6)
    add(history, 2e9 + BIN, 7)
    assert len(history.bins) == BINS


def test_a_line_is_broken_where_nothing_is_known() -> None:
    svg = str(lines([[1.0, 2.0, None, 4.0]], 4))
    assert svg.count("<path") == 1 and svg.count("M") == 2 and 'd="M0 ' in svg
    assert 'd=""' in lines([[None, None]], 120)


def test_the_log_is_followed_over_rotations_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    tail = LogTail(path)
    assert list(tail.lines()) == []
    path.write_text("one\nhal")
    assert list(tail.lines()) == ["one"]
    with path.open("a") as file:
        file.write("f\ntwo\n")
    path.rename(tmp_path / "access.log.1")
    path.write_text("three\n")
    assert list(tail.lines()) == ["half", "two", "three"]
    path.write_text("")
    path.write_text("4\n")
    assert list(tail.lines()) == ["4"]
    tail.close()


def test_a_backends_answers_are_those_of_the_last_minute(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    told = [(at, {"time": at, "backend": "m-1", "stream": True, "ttft_ms": at * 10, "completion_tokens": 60})
            for at in (1, 50, 60, 100)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for _, line in told))
    recent = Recent(path)
    recent.read()
    assert [request.at for request in recent.newest] == [100, 60, 50, 1]
    assert recent.answers(100, 60) == {"m-1": Answers(0.6, 1.0, 3.0)}
    assert recent.answers(1000, 60) == {}


@pytest.mark.parametrize("line", ["", "null", "[1]", "{}", '{"time": "x"}', "{" * 5000, '{"time": true}'])
def test_what_is_no_request_is_left_out(line: str) -> None:
    assert parse(line) is None or line == '{"time": true}'
