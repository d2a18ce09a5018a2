"""Figures from requests, and run.json: pure, checked against small cases worked out by hand."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from control.bench import results
from control.bench.figures import Measured, distribution, figures, keeps, quantile, span
from control.bench.records import Request, group_of
from control.bench.results import Slo
from control.errors import BenchRunError

EXAMPLE = Path(__file__).parent / "data" / "run.json"


def one(ttft: float = 0.2, tokens: int = 11, each: float = 0.05, started: float = 0.0, **more: object) -> Request:
    """A request whose tokens come evenly."""
    values = {"id": "r", "group": "short", "conversation": "short:1", "turn": 0, "due": started, "started": started}
    gaps = [each] * (tokens - 1)
    known = {"ttft": ttft, "itl": gaps, "e2e": ttft + sum(gaps), "prompt_tokens": 7, "output_tokens": tokens}
    return Request(**{**values, **known, **more})  # type: ignore[arg-type]


def test_tpot_is_of_the_tokens_after_the_first() -> None:
    assert one(ttft=0.2, tokens=11, each=0.05).tpot == pytest.approx(0.05)
    assert one(tokens=1).tpot is None
    merged = one(itl=[0.25, 0.25], output_tokens=11, e2e=0.7)  # several tokens an event: n is the engine's, not events
    assert merged.tpot == pytest.approx(0.05)


def test_quantiles_lie_between_two_values_as_numpy_has_them() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1, 2.5, 3.7, 4])


def test_a_failure_is_never_a_fast_success() -> None:
    whole = [one(started=float(i)) for i in range(9)]
    cut = one(ttft=0.001, tokens=2, started=9.0, failure="cut")
    found = figures([Measured([*whole, cut], span([*whole, cut]))], Slo(ttft=1.0))
    assert (found.sent, found.succeeded, found.failures) == (10, 9, {"cut": 1})
    assert found.ttft is not None and found.ttft.count == 9 and found.ttft.p50.value == pytest.approx(0.2)
    assert found.output_tokens == 9 * 11
    assert found.slo_share is not None and found.slo_share.value == pytest.approx(0.9)  # of all that were sent


def test_rates_are_per_second_of_the_whole_pass() -> None:
    ones = [one(started=float(i)) for i in range(10)]  # the last begins at 9 and takes 0.7
    found = figures([Measured(ones, span(ones))], Slo(ttft=0.1))
    assert found.requests_per_second is not None and found.requests_per_second.value == pytest.approx(10 / 9.7)
    assert found.output_tokens_per_second is not None
    assert found.output_tokens_per_second.value == pytest.approx(110 / 9.7)
    assert found.goodput is not None and found.goodput.value == 0


def test_goodput_needs_every_limit() -> None:
    request = one(ttft=0.2, each=0.05)
    assert keeps(request, Slo(ttft=0.2, tpot=0.051, e2e=0.71))
    assert not keeps(request, Slo(ttft=0.2, tpot=0.049))
    assert not keeps(request, Slo(ttft=0.19))
    assert keeps(one(tokens=1), Slo(tpot=0.001)), "one token has no TPOT to break"
    assert figures([Measured([request], 1.0)], Slo()).goodput is None


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """The median of a known distribution: 95 % intervals of 3 passes hold it about as often (binomial bounds)."""
    draw, inside = random.Random(4), 0
    for trial in range(60):
        passes = [[draw.lognormvariate(0, 0.5) for _ in range(40)] for _ in range(3)]
        found = distribution(passes, seed=trial)
        assert found is not None and found.p50.low is not None and found.p50.high is not None
        inside += found.p50.low <= 1.0 <= found.p50.high
    assert inside >= 51


def test_one_pass_has_no_interval() -> None:
    found = distribution([[1.0, 2.0, 3.0]])
    assert found is not None and found.p50.low is None and found.p50.each == [2.0]
    assert distribution([[], []]) is None


def test_passes_that_differ_show_it() -> None:
    found = distribution([[1.0] * 20, [2.0] * 20, [3.0] * 20])
    assert found is not None and found.p50.each == [1.0, 2.0, 3.0]
    assert (found.p50.low, found.p50.high) == (1.0, 3.0)


def test_gaps_between_tokens_are_drawn_by_request_and_exact_in_the_middle() -> None:
    ones = [one(each=0.01 * (1 + i % 3), started=float(i)) for i in range(30)]
    found = figures([Measured(ones, 30.0), Measured(ones, 30.0)], Slo()).itl
    assert found is not None and found.count == 600
    assert found.p50.value == pytest.approx(0.02)
    assert found.p50.low is not None and found.p50.high is not None
    assert 0.0098 <= found.p50.low <= 0.0202 and 0.0198 <= found.p50.high <= 0.0303


def test_a_request_survives_its_file() -> None:
    request = one(failure="http", status=503, error="busy")
    assert Request.from_json(request.to_json()) == request
    with pytest.raises(BenchRunError, match="a line that is none"):
        Request.from_json('{"id": 1}')
    assert group_of("long:0001") == "long"


def test_the_example_of_a_run_can_be_read_and_says_what_it_said(tmp_path: Path) -> None:
    run = results.load(EXAMPLE.parent)
    assert json.loads(run.to_json()) == json.loads(EXAMPLE.read_text())
    assert [variant.name for variant in run.variants] == ["default", "tuned", "tuned+edge"]
    assert {one_pass.variant for one_pass in run.passes} == {variant.name for variant in run.variants}


def test_files_that_are_no_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(BenchRunError, match="cannot be read"):
        results.load(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "run.json")
    text = EXAMPLE.read_text()
    (tmp_path / "run.json").write_text(text[: len(text) // 2])
    with pytest.raises(BenchRunError, match=r"no run that this version can read"):
        results.load(tmp_path)
    (tmp_path / "run.json").write_text(text.replace('"schema":1', '"schema":9'))
    with pytest.raises(BenchRunError, match="schema 9"):
        results.load(tmp_path)
