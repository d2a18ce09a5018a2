"""Findings about an engine, and the rules that make them. Pure.

A rule looks at typed facts and says what it found, with the numbers put in, and the cure. Each kind of facts has a
room of rules of its own, such as ``rules_static.py`` (settings, before a start).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

#: ``error``: the engine does not start, or cannot do what is asked. ``warning``: it starts and disappoints.
#: ``info``: a consequence that is good to know.
Severity = Literal["error", "warning", "info"]
#: Where a rule's facts come from.
Kind = Literal["static", "log", "live"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

F = TypeVar("F")


@dataclass(frozen=True)
class Finding:
    """One thing found. ``subject``: the model, engine or host that it is about.

    ``text``: what it is and what follows, with numbers. ``cure``: what to write in fleet.yaml, or to do.
    ``source``: where the rule comes from: vLLM's code, its log, or a measurement of this repository.
    """

    id: str
    severity: Severity
    subject: str
    text: str
    cure: str
    source: str

    def as_data(self) -> dict[str, Any]:
        """The finding for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Says:
    """What a rule says of the facts that it looked at."""

    text: str
    cure: str


@dataclass(frozen=True)
class Rule(Generic[F]):
    """One rule. ``when``: the condition in words, for the docs; ``check``: facts to what is to be said of them."""

    id: str
    kind: Kind
    severity: Severity
    when: str
    source: str
    check: Callable[[F], Iterable[Says]]

    def findings(self, subject: str, facts: F) -> list[Finding]:
        """What this rule finds."""
        return [
            Finding(self.id, self.severity, subject, said.text, said.cure, self.source) for said in self.check(facts)
        ]


class Rules(Generic[F]):
    """A room of rules on one type of facts, in the order in which they were written."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._all: list[Rule[F]] = []

    def __iter__(self) -> Iterator[Rule[F]]:
        return iter(self._all)

    def add(self, rule: Rule[F]) -> None:
        """One more, made by somebody else."""
        self._all.append(rule)

    def rule(
        self, severity: Severity, when: str, source: str
    ) -> Callable[[Callable[[F], Iterable[Says]]], Callable[[F], Iterable[Says]]]:
        """Decorator: the function is a rule, and its name is the id of what it finds."""

        def written(check: Callable[[F], Iterable[Says]]) -> Callable[[F], Iterable[Says]]:
            self.add(Rule(check.__name__, self.kind, severity, when, source, check))
            return check

        return written

    def findings(self, subject: str, facts: F) -> list[Finding]:
        """What all rules find, in their order."""
        return [found for rule in self._all for found in rule.findings(subject, facts)]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, warnings, infos; in each the order in which they came."""
    return sorted(findings, key=lambda found: SEVERITIES.index(found.severity))


def failed(findings: Sequence[Finding], strict: bool = False) -> bool:
    """Whether a check in CI fails: on an error; with ``strict`` on a warning too."""
    limit = SEVERITIES.index("warning" if strict else "error")
    return any(SEVERITIES.index(found.severity) <= limit for found in findings)
