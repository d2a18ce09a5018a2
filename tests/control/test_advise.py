"""Findings: the rules, one by one."""

from __future__ import annotations

from control.tuning.advise import Finding, failed, worst_first
from control.tuning.rules_static import RULES, StaticFacts
from control.tuning.settings import Settings


def test_a_step_that_is_too_small() -> None:
    (found,) = RULES.findings("m", StaticFacts(Settings(max_num_batched_tokens=64, max_num_seqs=128)))
    assert (found.id, found.severity, found.subject) == ("step_below_sequences", "error", "m")
    assert "(64)" in found.text and "max_num_seqs: 64" in found.cure
    assert not RULES.findings("m", StaticFacts(Settings(max_num_batched_tokens=128, max_num_seqs=128)))


def test_order_and_exit_code() -> None:
    info, warning, error = (Finding(name, name, "m", "", "", "") for name in ("info", "warning", "error"))
    assert worst_first([info, warning, error]) == [error, warning, info]
    assert failed([warning, error]) and not failed([info, warning]) and failed([info, warning], strict=True)
    assert not failed([info], strict=True)
