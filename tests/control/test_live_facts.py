"""Samples of /metrics, windows between them, and what the live rules say of them.

That real engines bring each of these about, and that a healthy one brings about none, is in tests/tuning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as Written

from control.tuning.histogram import Histogram, joined
from control.tuning.live_facts import Asked, EngineFacts, Gauges, ModelFacts, Slo, engine_facts, model_facts
from control.tuning.rules_live import ENGINE_RULES
from control.tuning.rules_slo import MODEL_RULES
from control.tuning.samples import BackendSample, EdgeSample, EngineSample, ModelSample, edge_sample, engine_sample

BOUNDS = (0.01, 0.1, 0.5, 1.0, 5.0)


def histogram(*values: float, bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    counts = [0.0] * (len(bounds) + 1)
    for value in values:
        counts[next((place for place, bound in enumerate(bounds) if value <= bound), len(bounds))] += 1
    return Histogram(bounds, tuple(counts), sum(values))


# Histograms.

SEVERAL = st.lists(st.floats(0.001, 5), min_size=1, max_size=200)


@given(SEVERAL, st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    found = histogram(*values).quantile(share)
    ordered = sorted(values)
    true = ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
    edges = (0.0, *BOUNDS)
    place = next(place for place in range(len(BOUNDS)) if true <= edges[place + 1])
    assert found is not None and edges[place] - 1e-9 <= found <= edges[place + 1] + 1e-9


@given(SEVERAL, st.sampled_from(BOUNDS))
def test_what_exceeds_a_bound_is_counted_exactly(values: list[float], bound: float) -> None:
    whole = histogram(*values)
    above = [value for value in values if value > bound]
    assert whole.above(bound) == pytest.approx(len(above))
    assert 0 <= whole.sum_above(bound) <= sum(values) + 1e-9
    widest = max(high - low for low, high in zip((0.0, *BOUNDS), BOUNDS, strict=False))
    assert abs(whole.sum_above(bound) - sum(above)) <= widest / 2 * len(above) + 1e-6


@given(SEVERAL, SEVERAL)
def test_a_later_state_minus_an_earlier_one(first: list[float], second: list[float]) -> None:
    old, new = histogram(*first), histogram(*first, *second)
    came = new.minus(old)
    assert came is not None
    assert came.counts == histogram(*second).counts and came.total == pytest.approx(sum(second))
    assert old.minus(new) is None, "counts that fall are those of another engine"
    assert joined([old, None, came]) == old.plus(came)


def test_other_bounds_are_not_compared() -> None:
    assert histogram(1).minus(histogram(1, bounds=(1.0,))) is None
    with pytest.raises(ValueError, match="bounds"):
        histogram(1).plus(histogram(1, bounds=(1.0,)))
    assert Histogram(BOUNDS, (0.0,) * 6, 0.0).quantile(0.5) is None
    assert histogram(10, 20).quantile(0.5) == 5.0, "beyond the last bound that bound is given"
    assert histogram(10, 20).above(5.0) == 2 and histogram(10).above(7.0) == 1


# Samples.


def exposition(engine: str = "0", caching: str = "True", **old_names: str) -> str:
    """vLLM's text, written by the library that vLLM writes it with."""
    registry = CollectorRegistry()

    def name(new: str) -> str:
        return old_names.get(new, new)

    labels = {"engine": engine, "model_name": 'a "model" {0}'}
    for gauge, value in (("num_requests_running", 3), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.5)):
        Gauge(f"vllm:{name(gauge)}", "", labels, registry=registry).labels(**labels).set(value)
    for counter, value in (("num_preemptions", 1), ("prefix_cache_queries", 100), ("prefix_cache_hits", 40),
                           ("prompt_tokens", 100), ("generation_tokens", 7)):  # fmt: skip
        Counter(f"vllm:{name(counter)}", "", labels, registry=registry).labels(**labels).inc(value)
    for times in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds",
                  "request_prefill_time_seconds", "request_decode_time_seconds"):  # fmt: skip
        written = Written(f"vllm:{name(times)}", "", labels, registry=registry, buckets=BOUNDS).labels(**labels)
        for value in (0.02, 0.3, 7):
            written.observe(value)
    info = {"num_gpu_blocks": "10", "block_size": "16", "enable_prefix_caching": caching, "engine": engine}
    Gauge("vllm:cache_config_info", "", info, registry=registry).labels(**info).set(1)
    return generate_latest(registry).decode()


def test_a_sample_of_an_engine() -> None:
    sample = engine_sample(exposition(), 5.0)
    assert (sample.running, sample.waiting, sample.kv_usage) == (3, 2, 0.5)
    assert (sample.preemptions, sample.prefix_queries, sample.prefix_hits) == (1, 100, 40)
    assert sample.ttft == sample.queue == sample.itl == histogram(0.02, 0.3, 7)
    assert (sample.kv_tokens, sample.prefix_caching) == (160, True)
    assert sample.prompts is None, "what is not there is unknown"


def test_older_names_count_where_the_new_ones_are_missing() -> None:
    text = exposition(kv_cache_usage_perc="gpu_cache_usage_perc", prefix_cache_hits="gpu_prefix_cache_hits",
                      inter_token_latency_seconds="time_per_output_token_seconds")  # fmt: skip
    assert engine_sample(text, 0) == engine_sample(exposition(), 0)


def test_engines_of_one_server_are_added_up() -> None:
    both = engine_sample(exposition() + exposition("1", caching="False"), 0)
    assert (both.running, both.kv_usage, both.kv_tokens) == (6, 0.5, 320)
    assert both.ttft == histogram(0.02, 0.3, 7, 0.02, 0.3, 7)


@pytest.mark.parametrize("text", ["", "<html>no metrics</html>", "vllm:num_requests_running nonsense", "vllm:num_r{"])
def test_other_text_is_no_measurement(text: str) -> None:
    try:
        assert engine_sample(text, 0).running is None
    except ValueError as error:
        assert "Prometheus" in str(error)


@given(st.text(max_size=300))
def test_any_text_is_a_sample_or_a_value_error(text: str) -> None:
    for read in (engine_sample, edge_sample):
        for piece in (text, f"vllm:num_requests_running{text}", f"signalbox_ttft_seconds_bucket{{{text}"):
            try:
                read(piece, 0)
            except ValueError:
                continue


def test_a_sample_of_an_edge() -> None:
    text = """
signalbox_in_flight{model="m",backend="m-1"} 3
signalbox_backend_limit{model="m",backend="m-1"} 18
signalbox_prefix_prompt_bytes_total{model="m",backend="m-1"} 1000
signalbox_prefix_known_bytes_total{model="m",backend="m-1"} 400
signalbox_prefix_shared_bytes_total{model="m",backend="m-1"} 600
signalbox_queue_length{model="m",priority="high"} 1
signalbox_queue_length{model="m",priority="normal"} 4
signalbox_ttft_seconds_bucket{model="m",le="0.5"} 2
signalbox_ttft_seconds_bucket{model="m",le="+Inf"} 3
signalbox_ttft_seconds_sum{model="m"} 2.5
signalbox_ttft_seconds_count{model="m"} 3
"""
    sample = edge_sample(text, 1.0)
    assert sample.backends == {"m-1": BackendSample(3, 18, 1000, 400, 600)}
    assert sample.models == {"m": ModelSample(5, None, Histogram((0.5,), (2, 1), 2.5), None)}


# Windows.

FIRST = EngineSample(
    10.0, 1.8e9, 1, 0, 0.1, preemptions=5, prefix_queries=1000, prefix_hits=100, prompt_tokens=1000,
    generation_tokens=500, ttft=histogram(), itl=histogram(), queue=histogram(), prefill=histogram(),
    decode=histogram(), prompts=histogram(bounds=(512.0, 4096.0)), kv_tokens=4096, prefix_caching=True,
)  # fmt: skip


def later(**changes: Any) -> EngineSample:
    return replace(FIRST, at=40.0, **changes)


def facts(**changes: Any) -> EngineFacts:
    found = engine_facts([FIRST, later()])
    assert found is not None
    return replace(found, **changes)


def test_a_window_counts_what_came_in_it() -> None:
    found = engine_facts([FIRST, later(preemptions=7, prefix_queries=1200, prefix_hits=250, ttft=histogram(0.3))])
    assert found is not None
    assert (found.seconds, found.preemptions, found.hit_share) == (30.0, 2, 0.75)
    assert found.ttft is not None and found.ttft.count == 1
    assert engine_facts([FIRST]) is None
    assert engine_facts([FIRST, later(prompt_tokens=3)]) is None, "a counter fell: another process"
    assert engine_facts([FIRST, later(started=1.9e9)]) is None, "and so it is with another start"


def test_gauges_between_the_ends_are_what_counts() -> None:
    looks = [Gauges(2, 0, 0.5, 3), Gauges(4, 0, 0.9, 3), Gauges(None, None, None, 9)]
    found = engine_facts([FIRST, later()], looks)
    assert found is not None
    assert (found.mean("running"), found.peak("kv_usage"), found.peak("in_flight")) == (3, 0.9, 9)
    assert found.tokens_each == pytest.approx(4096 * 1.4 / 6)


def test_ttft_falls_into_its_parts() -> None:
    engine = facts(ttft=histogram(1.0, 1.0), queue=histogram(0.2, 0.2), prefill=histogram(0.7, 0.7))
    edge = [EdgeSample(0.0), EdgeSample(30.0, models={"m": ModelSample(0, histogram(0.5, 0.5), histogram(2.0, 2.0))})]
    parts = model_facts("m", {"m-1": engine}, (edge[0], edge[1])).parts
    assert parts is not None
    assert (parts.edge_wait, parts.engine_queue, parts.prefill) == pytest.approx((0.5, 0.2, 0.7))
    assert (parts.engine_rest, parts.network, parts.whole) == pytest.approx((0.1, 0.5, 2.0))
    assert parts.largest == "prefill"
    others = replace(engine, ttft=histogram(*[1.0] * 9))
    parts = model_facts("m", {"m-1": others}, (edge[0], edge[1])).parts
    assert parts is not None and parts.network == 0, "others' requests at the engine: what lies between is unknown"
    crowd = replace(engine, ttft=histogram(*[4.0] * 30), gauges=(Gauges(4, 3, 0.1),))  # only the first two have ended
    parts = model_facts("m", {"m-1": crowd}, None).parts
    assert parts is not None and parts.engine_queue == pytest.approx(3 * 30 / 30), "by Little's law"
    ended_before = replace(engine, ttft=histogram(0.3, 0.3))  # queue and prefill are of longer requests
    parts = model_facts("m", {"m-1": ended_before}, None).parts
    assert parts is not None and parts.whole == pytest.approx(0.3) and parts.prefill > parts.engine_queue


# Rules. Each text is checked for the numbers that it must carry.


def said(found: EngineFacts | ModelFacts) -> dict[str, str]:
    rules: Any = ENGINE_RULES if isinstance(found, EngineFacts) else MODEL_RULES
    return {one.id: f"{one.text} {one.cure}" for one in rules.findings("it", found)}


def test_an_idle_engine_and_one_that_tells_nothing_are_no_findings() -> None:
    assert said(facts()) == {} == said(EngineFacts(30.0)) == said(ModelFacts(30.0, {"m-1": facts()}))
    promised = ModelFacts(30.0, {"m-1": EngineFacts(30.0)}, slo=Slo(0.1, 0.1))
    assert said(promised) == {}


def test_preemptions_say_how_many_would_fit() -> None:
    busy = facts(preemptions=12.0, gauges=(Gauges(8, 3, 0.97),) * 3)
    text = said(busy)["preemptions"]
    assert "12 times in 30.0 s" in text and "97%" in text and "max_num_seqs: 7" in text
    assert "kv_cache_nearly_full" not in said(busy)
    assert "97%" in said(replace(busy, preemptions=0.0))["kv_cache_nearly_full"]


def test_a_queue_inside_the_engine_says_why() -> None:
    looks = (Gauges(4, 9, 0.3, 13),) * 3
    assert "limit: 6" in said(facts(gauges=looks))["queue_in_the_engine"]
    assert "It is 64." in said(facts(gauges=looks, limit=64))["queue_in_the_engine"]
    past = said(facts(gauges=(Gauges(4, 9, 0.3, 2),) * 3))["queue_in_the_engine"]
    assert "the edge had sent 2" in past and "limit" in past
    assert "KV cache" in said(facts(gauges=(Gauges(4, 9, 0.95, 13),) * 3))["queue_in_the_engine"]
    assert said(facts(gauges=(Gauges(4, 2, 0.3, 6),) * 3)) == {}, "two more than run are meant to be there"


def test_steps_that_hold_answers_up_get_a_size_that_would_not() -> None:
    gaps = histogram(*[0.02] * 500, *[2.0] * 20, bounds=(0.025, 0.2, 1.0, 2.0, 4.0))
    prompts = histogram(3000, bounds=(512.0, 1024.0, 4096.0))
    busy = facts(itl=gaps, prompts=prompts, prompt_tokens=3000.0, generation_tokens=520.0,
                 asked=Asked(8, 2048, None, None, True))  # fmt: skip
    text = said(busy)["itl_spikes"]
    assert "20 of 520 gaps" in text and "max_num_batched_tokens: 128" in text and "it is 2,048" in text
    assert "one piece" in said(replace(busy, asked=Asked(chunked_prefill=False)))["itl_spikes"]
    assert said(replace(busy, prompts=histogram(100, bounds=(512.0, 1024.0)))) == {}, "no long prompt was read"
    starved = replace(busy, itl=histogram(*[0.9] * 60), prompt_tokens=30_000.0, generation_tokens=60.0)
    assert list(said(starved)) == ["decode_starved"] and "100%" in said(starved)["decode_starved"]


def test_beginnings_that_the_engine_lost_or_never_kept() -> None:
    edge = BackendSample(0, None, 100_000, 80_000, 80_000)
    lost = facts(edge=edge, prefix_queries=10_000.0, prefix_hits=500.0)
    text = said(lost)["prefix_cache_misses"]
    assert "80%" in text and "5%" in text and "4,096 tokens" in text
    assert "prefix_caching: true" in said(replace(lost, prefix_caching=False))["prefix_cache_misses"]
    assert said(replace(lost, prefix_hits=7000.0)) == {}
    elsewhere = replace(lost, edge=BackendSample(0, None, 100_000, 0, 60_000), prefix_hits=0.0)
    assert "60%" in said(ModelFacts(30.0, {"a": elsewhere, "b": facts()}))["prefix_sent_elsewhere"]
    assert said(ModelFacts(30.0, {"a": elsewhere})) == {}, "with one engine there is no elsewhere"
    salted = replace(lost, edge=BackendSample(0, None, 100_000, 0, 0, 90_000), prefix_hits=0.0)
    assert "90% of the prompts' bytes" in said(ModelFacts(30.0, {"a": salted, "b": facts()}))["salts_keep_apart"]


SLOW = facts(ttft=histogram(*[1.0] * 20), queue=histogram(*[0.1] * 20), prefill=histogram(*[0.8] * 20),
             prompt_tokens=40_000.0, prefix_queries=40_000.0, prefix_hits=0.0)  # fmt: skip


def model(engine: EngineFacts = SLOW, waited: float = 0.0, seen: float = 1.0, **changes: Any) -> ModelFacts:
    found = ModelFacts(30.0, {"m-1": engine}, histogram(*[waited] * 20), histogram(*[seen] * 20), slo=Slo(0.5))
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (model(), "Prefill is work"),
        (model(waited=4.0, seen=5.0), "Another engine"),
        (model(replace(SLOW, limit=18, gauges=(Gauges(16, 0, 0.1),)), waited=4.0, seen=5.0), "larger max_num_seqs"),
        (model(replace(SLOW, prefill=histogram(*[0.1] * 20), queue=histogram(*[0.8] * 20))), "smaller limit"),
        (model(replace(SLOW, prefill=histogram(*[0.1] * 20))), "API server"),
        (model(seen=4.0), "way to the engines"),
    ],
)
def test_a_promise_of_ttft_that_is_not_kept_says_by_which_part(found: ModelFacts, words: str) -> None:
    text = said(found)["slo_ttft_missed"]
    assert "100% of 20 first tokens" in text and words in text
    assert "slo_ttft_missed" not in said(replace(found, slo=Slo(100.0)))


def test_slow_first_tokens_without_a_promise() -> None:
    slow = model(waited=4.0, seen=5.0, slo=Slo())
    assert "4.0 s waiting in the edge" in said(slow)["slow_first_token"]
    assert said(model(slo=Slo())) == {}
    assert "3.0 s passed between" in said(model(seen=4.0))["far_engine"]


def test_hits_that_do_not_help() -> None:
    hitting = replace(SLOW, prefix_hits=36_000.0)
    assert "90% of the prompts' tokens" in said(model(hitting, waited=4.0, seen=5.0))["hits_without_gain"]
    assert "200 tokens of a prompt" in said(model(hitting))["hits_without_gain"]
    assert "hits_without_gain" not in said(model(hitting, slo=Slo(2.0)))


def test_a_promise_of_itl_that_is_not_kept_says_by_what() -> None:
    some = histogram(*[0.02] * 80, *[0.9] * 20)
    late = model(replace(SLOW, itl=some), itl=some, slo=Slo(None, 0.1))
    assert "20% of 100 gaps" in said(late)["slo_itl_missed"] and "itl_spikes" in said(late)["slo_itl_missed"]
    engine = replace(SLOW, itl=some, preemptions=3.0)
    assert "3 preemptions" in said(replace(late, engines={"m-1": engine}))["slo_itl_missed"]
    quick = replace(SLOW, itl=histogram(*[0.02] * 100))
    assert "on the way" in said(replace(late, engines={"m-1": quick}))["slo_itl_missed"]
    all_late = histogram(*[0.9] * 100)
    every = model(replace(SLOW, itl=all_late, gauges=(Gauges(64, 0, 0.2),)), itl=all_late, slo=Slo(None, 0.1))
    assert "64 sequences" in said(every)["slo_itl_missed"]
    assert "slo_itl_missed" not in said(replace(late, slo=Slo(None, 1.0)))
