"""Every proof of ``make prove-front-desk`` at a scale that fits into the suite."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.front_desk import kill, limits, order, overload, redis_cost, shares
from tests.front_desk.where import a_redis
from tests.support.client import percentile
from tests.support.engine import ScriptedEngine
from tests.support.proof import Row
from tests.support.redis import needs_redis

pytestmark = pytest.mark.slow


def kept(rows: list[Row]) -> None:
    assert [one for one in rows if not one["kept"]] == []


def test_order() -> None:
    """How fast and how dear it is depends on the machine, which the suite shares."""
    rows = order.rows(order.SMALL, order.measure(order.SMALL))
    kept([one for one in rows if one["unit"] in ("unanswered", "places")])


def test_shares() -> None:
    kept(shares.proof(seconds=5))


def test_limits() -> None:
    kept(limits.proof(limits.SMALL))


@needs_redis
def test_order_in_redis() -> None:
    """Two edges with one line between them; a single one asks Redis less.

    A worker that the machine stalls for 40 ms puts some twenty clients out of turn, so nine of ten must be in order.
    """
    with a_redis() as where:
        scale = replace(order.SMALL, where=where, edges=2)
        outcome = order.measure(scale)
    kept([one for one in order.rows(scale, outcome) if one["unit"] == "unanswered" or "at most" in one["promise"]])
    assert percentile(outcome.displaced, 0.9) <= 10


@needs_redis
def test_shares_in_redis() -> None:
    with a_redis() as where:
        kept(shares.proof(5, where))


@needs_redis
def test_limits_in_redis() -> None:
    with a_redis() as where:
        kept(limits.proof(replace(limits.SMALL, where=where)))


def test_a_killed_worker() -> None:
    kept(kill.proof(times=1))


@needs_redis
def test_what_redis_costs() -> None:
    """How late the latest are depends on the machine, which the suite shares; half of them are not."""
    rows = redis_cost.rows(redis_cost.measure(*redis_cost.SMALL))
    kept([one for one in rows if one["promise"].endswith("median")])


def test_overload() -> None:
    """With scripted engines: where requests wait. How many are good depends on the machine, which the suite shares."""
    with ExitStack() as running:
        engines = [running.enter_context(ScriptedEngine("alpha", max_running=overload.SMALL.sequences)) for _ in "12"]
        for engine in engines:
            engine.configure(tokens=100_000, delay_ms=10)
        _, on, off = overload.measure([engine.url for engine in engines], overload.SMALL)
    assert on.waiting <= 2 < off.waiting
    assert any(one.status == 429 for one in on.asked) and not any(one.status == 429 for one in off.asked)
    assert 0 < on.good(overload.SMALL.slo) <= len(on.asked)
