"""All rules in one catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from control.tuning import rules_live, rules_log, rules_memory, rules_slo, rules_static
from control.tuning.advise import Finding, Rule, Rules, worst_first
from control.tuning.static_facts import StaticFacts

#: The rooms, in the order of docs/tuning.md.
ROOMS: tuple[Rules[Any], ...] = (
    rules_static.RULES, rules_memory.RULES, rules_memory.GPU_RULES, rules_log.RULES,
    rules_live.ENGINE_RULES, rules_slo.MODEL_RULES,
)  # fmt: skip


def catalogue() -> Iterator[Rule[Any]]:
    """Every rule there is."""
    for room in ROOMS:
        yield from room


def static_findings(subject: str, facts: StaticFacts) -> list[Finding]:
    """What all rules say of one engine before it starts, the worst first."""
    found = [*rules_static.RULES.findings(subject, facts), *rules_memory.RULES.findings(subject, facts)]
    return worst_first(found)
