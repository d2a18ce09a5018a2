"""Findings on a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from control.tuning import live_report
from control.tuning.advice import Advice
from control.tuning.advise import Finding, Severity

#: What a finding is marked with.
MARKS: Mapping[Severity, str] = {"error": "[red]✗[/]", "warning": "[yellow]![/]", "info": "[green]·[/]"}


def as_data(advice: Advice) -> dict[str, Any]:
    """For ``--json``."""
    found = {"findings": [found.as_data() for found in advice.findings], "unseen": dict(advice.unseen)}
    if not advice.observed and not advice.silent:
        return found
    observed = {name: live_report.as_data(facts) for name, facts in advice.observed.items()}
    return {**found, "observed": observed, "silent": dict(advice.silent)}


def show(advice: Advice, console: Console) -> None:
    """Print the findings, what was not looked at, and how many there are."""
    for name, facts in advice.observed.items():
        console.print(f"[bold]{escape(name)}[/]: {escape(live_report.summary(facts))}", soft_wrap=True)
    show_findings(advice.findings, console)
    for name, why in advice.silent.items():
        console.print(f"[dim]{escape(name or 'the edge')} told nothing: {escape(why)}[/]", soft_wrap=True)
    for name, why in advice.unseen.items():
        alone = f"With its config.json alone: signalbox plan {name} --config FILE"
        console.print(f"[dim]{escape(f'{name}: its memory was not looked at. {why} {alone}')}[/]", soft_wrap=True)
    errors, warnings, infos = (
        sum(found.severity == severity for found in advice.findings) for severity in ("error", "warning", "info")
    )
    console.print(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}, {infos} to know.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show_findings(findings: Iterable[Finding], console: Console) -> None:
    """Two lines each: what it is, and what to do."""
    for found in findings:
        head = f"{MARKS[found.severity]} [bold]{escape(found.subject)}[/] {found.id}: "
        console.print(f"{head}{escape(found.text)}", soft_wrap=True)
        console.print(f"    → {escape(found.cure)}", soft_wrap=True)
