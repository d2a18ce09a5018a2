"""Which runs and variants a person means by ``RUN`` and ``RUN:VARIANT``."""

from __future__ import annotations

from pathlib import Path

from control.bench import results, store
from control.bench.report.compare import Side
from control.bench.results import Run
from control.errors import BenchRunError


def sides(runs: Path, first: str, second: str) -> list[tuple[Side, Side]]:
    """The pairs that ``first`` and ``second`` name. Raises BenchRunError.

    ``RUN:VARIANT`` is one variant, ``:VARIANT`` one of the last run. Two runs without variants are compared variant by
    variant, as far as both have them; one variant and a whole run: with the variant of the same name there.
    """
    (one, mine), (other, yours) = _named(runs, first), _named(runs, second)
    if mine or yours:
        return [(_side(one, mine or yours), _side(other, yours or mine))]
    if one.id == other.id:
        raise BenchRunError(
            f"{first} and {second} are the same run.", f"Name variants: {one.id}:{one.variants[0].name}."
            if one.variants else "Name two runs."
        )  # fmt: skip
    names = {variant.name for variant in other.variants}
    shared = [variant.name for variant in one.variants if variant.name in names]
    if not shared:
        raise BenchRunError(
            f"{one.id} and {other.id} have no variant in common ({_listed(one)}; {_listed(other)}).",
            "Name one of each: RUN:VARIANT.",
        )
    return [(_side(one, name), _side(other, name)) for name in shared]


def _named(runs: Path, text: str) -> tuple[Run, str]:
    name, _, variant = text.partition(":")
    return results.load(store.find(runs, name or "last")), variant


def _side(run: Run, name: str) -> Side:
    for variant in run.variants:
        if variant.name == name:
            return Side(run, variant)
    raise BenchRunError(f"{run.id} has no variant {name!r}.", f"It has {_listed(run)}.")


def _listed(run: Run) -> str:
    return ", ".join(variant.name for variant in run.variants) or "none"
