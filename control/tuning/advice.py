"""All findings about a fleet, gathered: settings, files, cards, and what the last starts have told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from control.edge.site import state_paths
from control.engines.facts import Facts
from control.errors import TuningError
from control.fleet.host_checks import gpu_shares
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.tuning.advise import Finding, worst_first
from control.tuning.cards import Card
from control.tuning.catalogue import static_findings
from control.tuning.live_facts import ModelFacts
from control.tuning.observe import Observer, judged
from control.tuning.rules_log import RULES as LOG_RULES
from control.tuning.rules_log import StartFacts
from control.tuning.rules_memory import GPU_RULES, GpuFacts
from control.tuning.sources import Wanted, of_fleet, on_cards, own_cards
from control.tuning.static_facts import UNKNOWN, Expected, StaticFacts

Starts = Mapping[str, Facts]


@dataclass(frozen=True)
class Advice:
    """``findings``, the worst first; ``unseen``: model → why its memory was not looked at.

    ``observed``: model → what running engines did; ``silent``: backend ("" is the edge) → why it told nothing.
    """

    findings: tuple[Finding, ...]
    unseen: Mapping[str, str]
    observed: Mapping[str, ModelFacts] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Looked:
    """One model that was looked at: on each card, and its backends."""

    facts: tuple[StaticFacts, ...]
    backends: tuple[ResolvedBackend, ...]
    missing: str


def of_fleet_and_starts(
    loaded: LoadedFleet, starts: Starts, names: Sequence[str] = (), expected: Expected = UNKNOWN,
    cards: Sequence[Card] = (),
) -> Advice:  # fmt: skip
    """What is to be known of the models that Signalbox starts (``names``: of these, or of those with these backends).

    ``starts``: backend → what its engine runs with. ``cards``: instead of those of the model's hosts.
    """
    found: list[Finding] = []
    unseen = {}
    meant = {backend.model for backend in resolve_backends(loaded) if backend.id in names}.union(names)
    for name, model in loaded.fleet.models.items():
        if model.engine is None or model.engine.command is not None or (names and name not in meant):
            continue
        looked = _look(loaded, name, expected, cards)
        found += _of_cards(name, looked.facts)
        for backend in looked.backends:
            if backend.id in starts:
                start = StartFacts(starts[backend.id], _card_of(backend, looked.facts))
                found += LOG_RULES.findings(backend.id, start)
        if looked.missing:
            unseen[name] = looked.missing
    if not names:
        found += _gpus(loaded)
    return Advice(tuple(worst_first(found)), unseen)


def with_running(advice: Advice, observer: Observer) -> Advice:
    """``advice`` and what the observer has seen of engines that answered."""
    observed = {name: facts for name, facts in observer.facts() if facts.engines}
    found = worst_first([*advice.findings, *judged(observed.items())])
    return replace(advice, findings=tuple(found), observed=observed, silent=dict(observer.silent))


def last_starts(loaded: LoadedFleet) -> dict[str, Facts]:
    """What the last start of each engine has told, by the state folder."""
    found = {}
    for backend in resolve_backends(loaded):
        try:
            kept = json.loads((state_paths(loaded).engine(backend.id) / "startup.json").read_text())
            found[backend.id] = Facts.kept(kept["facts"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _look(loaded: LoadedFleet, name: str, expected: Expected, cards: Sequence[Card]) -> _Looked:
    wanted = of_fleet(loaded, name)
    backends = tuple(one for one in resolve_backends(loaded) if one.model == name and one.ours)
    known = list(cards) or own_cards(loaded, name)
    missing = wanted.missing
    if wanted.model is not None and not known:
        missing = "fleet.yaml does not say what memory its GPUs have (hosts: gpu_memory), and no --card is given."
    facts, problem = _facts(wanted, known, expected)
    return _Looked(tuple(facts), backends, missing or problem)


def _facts(wanted: Wanted, cards: Sequence[Card], expected: Expected) -> tuple[list[StaticFacts], str]:
    """On each card; without one what can be said all the same, and why it is not more."""
    try:
        return on_cards(wanted, cards or [None], expected), ""
    except TuningError as error:
        return on_cards(wanted, [None], expected), error.message


def _of_cards(name: str, on_each: Sequence[StaticFacts]) -> list[Finding]:
    """What is true of all cards once; what is true of some of them with their names."""
    found: dict[Finding, list[str]] = {}
    for facts in on_each:
        for finding in static_findings(name, facts):
            found.setdefault(finding, []).append(facts.budget.card.name if facts.budget is not None else "")
    return [
        finding if len(cards) == len(on_each) else replace(finding, subject=f"{name} on {', '.join(cards)}")
        for finding, cards in found.items()
    ]


def _card_of(backend: ResolvedBackend, facts: Sequence[StaticFacts]) -> StaticFacts:
    """The facts on the card of this backend's host."""
    mine = (one for one in facts if one.budget is not None and one.budget.card.name == backend.machine)
    return next(mine, facts[0])


def _gpus(loaded: LoadedFleet) -> list[Finding]:
    found = []
    ids = {(one.model, index): one.id for one, index in _numbered(loaded)}
    for (host, gpu), engines in gpu_shares(loaded.fleet).items():
        shares = {ids[model, index]: share for model, index, share in engines}
        found += GPU_RULES.findings(f"{host}, GPU {gpu}", GpuFacts(shares))
    return found


def _numbered(loaded: LoadedFleet) -> list[tuple[ResolvedBackend, int]]:
    """Backends with their place among those of their model."""
    seen: dict[str, int] = {}
    numbered = []
    for backend in resolve_backends(loaded):
        place = seen[backend.model] = seen.get(backend.model, -1) + 1
        numbered.append((backend, place))
    return numbered
