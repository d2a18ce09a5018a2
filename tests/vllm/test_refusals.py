"""Settings that Signalbox calls impossible are those with which vLLM does not start, and for the same reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from control.vllm.refusals import REFUSALS
from tests.tuning.verdicts import cases, disagreements, ours
from tests.vllm.conftest import SETTINGS


@pytest.mark.slow
def test_vllm_has_the_same_verdict_on_random_settings(beside_vllm: dict[str, list[Any]]) -> None:
    answers, asked = beside_vllm["settings"], cases(SETTINGS)
    assert list(disagreements(asked, answers)) == []
    assert 0.2 < sum(answer["said"] is not None for answer in answers) / len(answers) < 0.8
    seen = Counter(reason for case in asked for reason in ours(case))
    assert [refusal.id for refusal in REFUSALS if not seen[refusal.id]] == []
