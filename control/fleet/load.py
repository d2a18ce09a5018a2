"""From fleet.yaml to a checked ``Fleet``, or to everything that is wrong with it at once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from control.errors import FleetError, Problem
from control.fleet.checks import check
from control.fleet.messages import Finding, translate
from control.fleet.schema import Fleet
from control.fleet.source import KeyPath, Source, dotted, holds, line_of, parse, read


@dataclass(frozen=True)
class LoadedFleet:
    """A fleet that passed every check. ``path`` and ``folder`` are absolute; its relative paths start at ``folder``."""

    fleet: Fleet
    path: Path
    folder: Path
    lines: Mapping[KeyPath, int]
    #: What should be known, although the fleet can be used.
    warnings: tuple[Problem, ...] = ()

    def line(self, *path: str | int) -> int:
        """The line (from 1) of a key, or of the nearest one above it that is written in the file."""
        return line_of(self.lines, path)

    def file(self, written: str) -> Path:
        """The absolute path of a file that fleet.yaml names."""
        return self.folder / written


def load(path: Path, edge_only: bool = False) -> LoadedFleet:
    """Read and check ``path``. Raises ``FleetError`` with all problems, in the order of the file, and nothing else.

    ``edge_only``: the file may be that of a machine which takes its models from others (``signalbox edge``).
    """
    absolute = path.absolute()
    source = parse(read(path), path)
    fleet, findings = _validate(source, absolute.parent)
    readable = [finding for finding in findings if finding.path not in source.unread]
    problems = source.problems + [_problem(finding, source, path) for finding in readable if not finding.warning]
    if problems or fleet is None:
        raise FleetError(sorted(problems, key=lambda problem: problem.line))
    if not fleet.models and not edge_only:
        message = "there are none: this is the file of a machine with an edge only."
        raise FleetError([Problem(path, 1, "models", message, "`signalbox edge` runs it; or add the models.")])
    warnings = tuple(_problem(finding, source, path) for finding in readable if finding.warning)
    return LoadedFleet(fleet, absolute, absolute.parent, MappingProxyType(source.lines), warnings)


def _problem(finding: Finding, source: Source, path: Path) -> Problem:
    line = line_of(source.lines, finding.path)
    return Problem(path, line, dotted(finding.path), finding.message, finding.suggestion)


def _validate(source: Source, folder: Path) -> tuple[Fleet | None, list[Finding]]:
    """The fleet, or what is wrong: with the types, and across the fields that are right."""
    try:
        fleet = Fleet.model_validate(source.data)
    except ValidationError as error:
        findings = translate(error.errors(include_url=False), source.data)
    else:
        return fleet, check(fleet, folder)
    rest, removed = _without_errors(source.data)
    if rest is not None:
        across = check(rest, folder)
        findings += [finding for finding in across if not _shaken(finding, removed, source.lines)]
    return None, findings


def _without_errors(data: dict[str, object]) -> tuple[Fleet | None, list[KeyPath]]:
    """What is left of the fleet when all that does not fit its type is taken out, and what was taken out.

    Taking out can make another error (a required key is gone): then what holds it goes too. None when nothing is left.
    """
    data = copy.deepcopy(data)
    removed: list[KeyPath] = []
    for _ in range(8):
        try:
            return Fleet.model_validate(data), removed
        except ValidationError as error:
            bad = {_removable(finding.path, data) for finding in translate(error.errors(include_url=False), data)}
        if () in bad:
            break
        for path in bad:
            _remove(data, path)
        removed += bad
    return None, removed


def _removable(path: KeyPath, data: object) -> KeyPath:
    """The mapping entry to take out for an error at ``path``. List items stay: their numbers must not shift."""
    place: Any = data
    keep = 0
    for index, part in enumerate(path):
        if not holds(place, part):  # a missing key: what lacks it goes
            return _removable(path[:index], data)
        if isinstance(place, dict):
            keep = index + 1
        place = place[part]
    return path[:keep]


def _remove(data: dict[str, object], path: KeyPath) -> None:
    place: Any = data
    for part in path[:-1]:
        if not holds(place, part):  # gone already, with what held it
            return
        place = place[part]
    place.pop(path[-1], None)


def _shaken(finding: Finding, removed: Iterable[KeyPath], lines: Mapping[KeyPath, int]) -> bool:
    """Whether a finding rests on something that was taken out, or on a default that a misspelt key may have meant."""
    for place in (finding.path, *finding.about):
        for gone in removed:
            short = min(len(place), len(gone))
            if place[:short] == gone[:short] or (place not in lines and place[:-1] == gone[:-1]):
                return True
    return False
