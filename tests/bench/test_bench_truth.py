"""The real AIPerf against a scripted engine that is slow, broken or strange: what was measured is what happened.

One pass of the load generator sends everything; each test looks at its own requests.
"""

from __future__ import annotations

import statistics

import pytest

from control.bench.figures import Measured, figures, span
from control.bench.results import Slo
from tests.bench.truth import SCRIPTS, Truth, deviations, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return measure(tmp_path_factory.mktemp("truth") / "pass")


def test_everything_that_was_sent_is_there_once(truth: Truth) -> None:
    wanted = sum(count for count, _ in SCRIPTS.values()) + 4
    assert len(truth.requests) == wanted == len({one.id for one in truth.requests})


@pytest.mark.parametrize("name", ["plain", "comments", "null-usage"])
def test_ttft_and_tpot_are_the_engines(truth: Truth, name: str) -> None:
    off_first, off_each = deviations(truth, name)
    assert abs(statistics.median(off_first)) < 0.02 and abs(statistics.median(off_each)) < 0.02


def test_events_that_come_together_spread_their_time(truth: Truth) -> None:
    """The first four events come when the third token is there: 300 ms, and two gaps of 40 ms."""
    off = []
    for one in truth.group("merged"):
        assert one.ttft is not None
        off.append(one.ttft / (truth.stamps[one.id][2] - one.started) - 1)
        assert one.itl.count(0.0) >= 8, "what was read at once has no time between"
    assert abs(statistics.median(off)) < 0.02


def test_several_tokens_in_one_event_are_counted_by_usage(truth: Truth) -> None:
    found = [one.tpot for one in truth.group("several") if one.tpot is not None]
    assert len(found) == 4
    assert statistics.median(found) == pytest.approx(4 * 0.100 / 19, rel=0.03)


@pytest.mark.parametrize("name", ["http", "connect", "cut", "reset", "aborted", "error_event", "empty", "timeout"])
def test_what_failed_is_a_failure_of_its_kind(truth: Truth, name: str) -> None:
    found = truth.group(name)
    assert found and {one.failure for one in found} == {"cut" if name == "reset" else name}


def test_failures_are_in_no_figure_but_their_own(truth: Truth) -> None:
    found = figures([Measured(truth.requests, span(truth.requests))], Slo(ttft=1.0))
    assert found.succeeded == 36 and found.sent - found.succeeded == sum(found.failures.values()) == 15
    assert found.ttft is not None and found.ttft.count == 36
    assert found.slo_share is not None and found.slo_share.value == pytest.approx(36 / 51)
