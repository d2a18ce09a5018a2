"""Promises that are measured at length: their rows, the figures on disk, the table in a document.

A ``Chapter`` is one ``make prove-...``: its proofs by name, and the JSON and the table that they fill. A proof returns
rows; a run of some proofs keeps the rows of the others.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.edge.binary import find_engine
from tests.support.net import REPOSITORY

Row = dict[str, Any]
Proof = Callable[[], list[Row]]
FIGURES = REPOSITORY / "docs" / "figures"
DOCUMENT = REPOSITORY / "docs" / "reliability.md"


def row(
    promise: str, measured: float, bound: float, unit: str, detail: str, at_least: bool = False, **facts: Any
) -> Row:
    """One promise: kept when ``measured`` is at most ``bound``, or at least it.

    ``facts`` go to the JSON alone.
    """
    kept = measured >= bound if at_least else measured <= bound
    content = {"promise": promise, "measured": round(measured, 3), "bound": bound, "unit": unit, "detail": detail,
               "kept": kept}  # fmt: skip
    return {**content, **({"at_least": True} if at_least else {}), **({"facts": facts} if facts else {})}


@dataclass(frozen=True)
class Chapter:
    """The proofs of ``make prove-NAME``, in the order in which they run and stand in the table."""

    name: str
    proofs: Mapping[str, Proof]
    document: Path = DOCUMENT
    #: Further documents that hold figures of this chapter, each with what lays them into its text.
    also: Mapping[Path, Callable[[str, dict[str, Any]], str]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The figures on disk."""
        return FIGURES / f"{self.name}.json"

    def figures(self) -> dict[str, Any]:
        """What the last runs measured; nothing at all before the first one."""
        if not self.path.exists():
            return {"rows": [], "runs": {}}
        loaded: dict[str, Any] = json.loads(self.path.read_text())
        return loaded

    def filled(self, text: str, result: dict[str, Any]) -> str:
        """The document's text with this chapter's table replaced."""
        return between_marks(text, f"prove-{self.name}", markdown(result))

    def documents(self, result: dict[str, Any]) -> dict[Path, str]:
        """All documents that hold figures of this chapter, as they read with ``result``."""
        fills = {self.document: self.filled, **self.also}
        return {path: fill(path.read_text(), result) for path, fill in fills.items()}

    def measure(self, names: list[str]) -> dict[str, Any]:
        """Run these proofs, print their rows, and lay them over the figures that there are."""
        measured: list[Row] = []
        runs: dict[str, Any] = {}
        for name in names:
            began = time.monotonic()
            rows = [{"proof": name, **one} for one in self.proofs[name]()]
            for one in rows:
                print(f"{'kept' if one['kept'] else 'NOT KEPT'}: {one['promise']}: {one['measured']:g} {one['unit']} "
                      f"(bound: {bound_of(one)}; {one['detail']})", flush=True)  # fmt: skip
            measured += rows
            runs[name] = {"date": time.strftime("%Y-%m-%d"), "commit": commit(),
                          "seconds": round(time.monotonic() - began)}  # fmt: skip
        return self.merged(measured, runs)

    def merged(self, rows: list[Row], runs: dict[str, Any]) -> dict[str, Any]:
        """The figures on disk with these proofs' rows in place of their earlier ones."""
        old = self.figures()
        kept = [one for one in old["rows"] if one["proof"] not in runs and one["proof"] in self.proofs]
        order = list(self.proofs)
        both = {**old["runs"], **runs}
        return {
            "rows": sorted(kept + rows, key=lambda one: order.index(one["proof"])),
            "runs": {name: both[name] for name in order if name in both},
            "versions": {"nginx": find_engine().title, "python": platform.python_version()},
            "machine": {"system": platform.platform(terse=True), "processors": os.cpu_count()},
        }

    def main(self, names: list[str] | None = None) -> int:
        """Measure ``names`` (by default those of the command line, else all), write figures and table.

        The exit status is 1 when a promise was not kept; the figures are written all the same.
        """
        wanted = sys.argv[1:] if names is None else names
        if unknown := sorted(set(wanted) - set(self.proofs)):
            print(f"There is no proof {', '.join(unknown)}; there are {', '.join(self.proofs)}.", file=sys.stderr)
            return 2
        chosen = [name for name in self.proofs if name in wanted or not wanted]
        result = self.measure(chosen)
        self.path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        for path, text in self.documents(result).items():
            path.write_text(text)
        return 0 if all(one["kept"] for one in result["rows"] if one["proof"] in chosen) else 1


def between_marks(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the marks of this name."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, rest = text.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


def commit() -> str:
    """What is checked out."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


def bound_of(one: Row) -> str:
    return f"{'≥ ' if one.get('at_least') else ''}{one['bound']:g}"


def _measured_when(result: dict[str, Any]) -> str:
    """When which proofs were measured; without their names when all were at one commit."""
    by_run: dict[str, list[str]] = {}
    for name, run in result["runs"].items():
        by_run.setdefault(f"on {run['date']} at commit {run['commit'][:12]}", []).append(name)
    if len(by_run) == 1:
        return " " + next(iter(by_run))
    return ": " + "; ".join(f"{', '.join(names)} {when}" for when, names in by_run.items())


def markdown(result: dict[str, Any]) -> str:
    """The table of the document."""
    lines = [
        f"Measured with {result['versions']['nginx']} on {result['machine']['processors']} cores"
        f"{_measured_when(result)}.",
        "",
        "| promise | measured | bound | how | |",
        "|---|---:|---:|---|---|",
    ]
    for one in result["rows"]:
        lines.append(
            f"| {one['promise']} | {one['measured']:g} {one['unit']} | {bound_of(one)} | {one['detail']} | "
            f"{'kept' if one['kept'] else '**not kept**'} |"
        )
    return "\n".join(lines)
