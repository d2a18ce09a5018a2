"""What engines and edge counted: pure."""

from __future__ import annotations

import json

import pytest

from control.bench.counters import added, edge_counters, engine_counters, log_lines
from control.bench.results import EngineCounters, Histogram
from control.tuning.histogram import Histogram as Counted
from control.tuning.samples import EngineSample
from tests.bench.prove import misplaced
from tests.bench.test_bench_figures import one

BEFORE = EngineSample(0.0, prefix_hits=10, prefix_queries=100, preemptions=0, prompt_tokens=100, generation_tokens=50,
                      ttft=Counted((0.1, 1.0), (3, 1, 0), 0.9), iterations=Counted((8.0,), (5, 5), 90.0),
                      kv_tokens=4096)  # fmt: skip
AFTER = EngineSample(9.0, prefix_hits=40, prefix_queries=200, preemptions=2, prompt_tokens=200, generation_tokens=80,
                     ttft=Counted((0.1, 1.0), (5, 4, 1), 4.9), iterations=Counted((8.0,), (9, 9), 180.0),
                     kv_tokens=4096)  # fmt: skip


def test_counters_are_what_came_between_two_looks() -> None:
    found = engine_counters([BEFORE], [AFTER])
    assert (found.prefix_hits, found.prefix_queries, found.preemptions) == (30, 100, 2)
    assert (found.iterations, found.iteration_tokens, found.kv_cache_tokens) == (8, 90, 4096)
    assert found.ttft == Histogram(buckets=[(0.1, 2), (1.0, 5), (None, 6)], sum=4.0, count=6)
    assert found.itl is None, "what the engine does not tell is not zero"


def test_engines_are_added_up_and_none_that_is_silent_is_passed_over() -> None:
    assert engine_counters([BEFORE, BEFORE], [AFTER, AFTER]).prompt_tokens == 200
    assert engine_counters([BEFORE, None], [AFTER, AFTER]).prompt_tokens is None
    restarted = engine_counters([AFTER], [BEFORE])
    assert restarted.prompt_tokens is None and restarted.ttft is None, "an engine that was started anew meanwhile"


def test_passes_are_added_up() -> None:
    once = engine_counters([BEFORE], [AFTER])
    twice = added([once, once])
    assert twice.prefix_hits == 60 and twice.kv_cache_tokens == 4096
    assert twice.ttft is not None and twice.ttft.buckets[-1] == (None, 12) and twice.ttft.sum == 8.0
    assert added([once, EngineCounters()]).prefix_hits is None


def test_the_edges_log_is_joined_by_request_id() -> None:
    text = "\n".join([
        json.dumps({"id": "a", "queue_ms": 120, "ttft_ms": 195, "backend": "m-1"}),
        json.dumps({"id": "b", "queue_ms": None, "ttft_ms": 150, "backend": "m-2"}),
        json.dumps({"id": "other", "queue_ms": 5, "ttft_ms": 1, "backend": "m-1"}),
        '{"id": "cut',
    ])  # fmt: skip
    requests = [one(id="a"), one(id="b"), one(id="lost")]  # each has a TTFT of 200 ms
    found = edge_counters(requests, log_lines(text))
    assert (found.joined, found.queued, found.by_backend) == (2, 1, {"m-1": 1, "m-2": 1})
    assert found.queue_wait is not None and found.queue_wait.mean.value == pytest.approx(0.06)
    assert found.ttft_agreeing == pytest.approx(0.5), "5 ms apart agree, 50 ms do not"


def test_a_histogram_that_differs_by_one_is_noticed() -> None:
    requests = [one(ttft=value) for value in (0.05, 0.2, 0.2, 3.0)]
    right = Histogram(buckets=[(0.1, 1), (1.0, 3), (None, 4)], sum=3.45, count=4)
    assert misplaced(requests, right, opening=0) == 0
    wrong = Histogram(buckets=[(0.1, 2), (1.0, 3), (None, 4)], sum=3.45, count=4)
    assert misplaced(requests, wrong, opening=0) == 1
    near = [one(ttft=value) for value in (0.103, 0.2, 0.2, 3.0)]
    assert misplaced(near, right, opening=0) == 0, "3 ms above a bound may be below it in the engine"
