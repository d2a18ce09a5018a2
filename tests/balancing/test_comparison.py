"""The comparisons with other routers at a scale that fits into the suite: the edge alone, against scripted engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from control.bench.edge.peers import SGLANG_ROUTER, VLLM_ROUTER
from tests.balancing import comparison, hits, sharing, speed
from tests.balancing.routers import OURS, Router
from tests.balancing.vllm_engines import MODEL
from tests.support.engine import ScriptedEngine


@pytest.fixture
def pair() -> Iterator[list[ScriptedEngine]]:
    """Two engines under the name of the real ones, slow enough that requests meet."""
    with ExitStack() as running:
        engines = [ScriptedEngine(MODEL) for _ in range(2)]
        for engine in engines:
            running.enter_context(engine)
            engine.configure(first_ms=60, delay_ms=2)
        yield engines


@pytest.mark.slow
def test_a_slow_engine_gets_less() -> None:
    """Round robin sends it a quarter, more than it can do: its queue is what p99 shows."""
    turns = Router(OURS, "round_robin")
    with speed.four_engines() as urls:
        found = speed.repeat(urls, 120, [speed.LIMITED, speed.LEAST_LOADED, turns])
    for load in ("closed loop", "open loop"):
        p99 = {title: values[f"{load}, p99, s"] for title, values in found.items()}
        assert p99[speed.LEAST_LOADED.title] < 0.9 * p99[turns.title]
        assert p99[speed.LIMITED.title] < 0.9 * p99[turns.title]


@pytest.mark.slow
def test_conversations_are_counted_by_the_engines(pair: list[ScriptedEngine]) -> None:
    urls = [engine.url for engine in pair]
    alone = hits.measure(hits.ALONE, urls, "alone")
    assert (alone.rate, alone.share) == (0, 1)
    assert pair[1].started() == 0 and pair[0].started() == hits.USERS * hits.TURNS
    ours = hits.measure(hits.PREFIX, urls, "ours")
    assert ours.share <= 0.7
    assert sum(engine.started() for engine in pair) == 2 * hits.USERS * hits.TURNS
    assert 0.06 < ours.p50 <= ours.p99


@pytest.mark.slow
def test_a_common_beginning_uses_both_engines(pair: list[ScriptedEngine]) -> None:
    found = sharing.repeat([engine.url for engine in pair], rounds=1)
    assert {title: len(seconds) for title, seconds in found.items()} == {
        arm.title: sharing.REQUESTS for arm in sharing.ARMS
    }
    assert min(seconds for one in found.values() for seconds in one) > 0.06
    assert min(engine.started() for engine in pair) > sharing.REQUESTS / 2


def test_ratios_are_taken_within_a_repeat() -> None:
    repeats = [{"ours": {"p99": 2.0}, "theirs": {"p99": 4.0}}, {"ours": {"p99": 30.0}, "theirs": {"p99": 40.0}}]
    assert comparison.ratios(repeats, "p99", "ours", "theirs") == [0.5, 0.75]


@pytest.mark.parametrize(("ours", "kept"), [((0.8, 0.5), True), ((0.7, 0.5), False), ((0.8, 0.61), False)])
def test_each_bound_of_the_hits_decides(ours: tuple[float, float], kept: bool) -> None:
    others = {arm.title: hits.Hits(0.8, 0.5, 1, 2) for arm in hits.ARMS}
    rows = hits.rows([{**others, hits.PREFIX.title: hits.Hits(*ours, 1, 2)}] * 3)
    assert all(one["kept"] for one in rows) == kept


def test_each_peer_and_load_is_a_bound_of_its_own() -> None:
    measures = [f"{load}, {name}, s" for load in ("closed loop", "open loop") for name in ("p50", "p99")]
    even = {arm.title: dict.fromkeys(measures, 1.0) for arm in speed.ARMS}
    assert all(one["kept"] for one in speed.rows([even]))
    for peer in speed.PEERS:
        worse = {**even, peer.title: {**even[peer.title], "open loop, p99, s": 0.9}}
        assert [one["kept"] for one in speed.rows([worse])].count(False) == 1


def test_every_peer_is_pinned() -> None:
    for peer in (VLLM_ROUTER, SGLANG_ROUTER):
        assert peer.version()
        assert "--hash=sha256:" in peer.lock.read_text()
