"""Two variants beside each other, of one run or of two: what differs, and what this says nothing about. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from control.bench.report.quantities import QUANTITIES, Quantity, scale, shown
from control.bench.results import Estimate, Figures, Run, Variant
from control.errors import BenchRunError

#: ``same``: the intervals overlap, so that chance alone may have made the difference. ``unknown``: there are none.
Verdict = Literal["better", "worse", "same", "unknown"]


@dataclass(frozen=True)
class Side:
    """One variant of one run."""

    run: Run
    variant: Variant

    @property
    def label(self) -> str:
        return f"{self.run.id}:{self.variant.name}"


@dataclass(frozen=True)
class Difference:
    """One figure on both sides; ``group`` is empty for all requests together.

    ``change`` is the share by which the second value is greater (negative: less); ``least`` and ``most`` are its ends
    when both intervals are taken at their far ends. None where the first value is 0, or an interval is missing.
    """

    quantity: Quantity
    group: str
    before: Estimate
    after: Estimate
    change: float | None
    least: float | None
    most: float | None
    verdict: Verdict

    @property
    def title(self) -> str:
        """``short: TTFT P99``."""
        return f"{self.group}: {self.quantity.title}" if self.group else self.quantity.title

    def values(self) -> tuple[str, str]:
        """Both values with their unit."""
        by = scale(self.quantity.kind, (self.before.value, self.after.value))
        return shown(self.before.value, by), shown(self.after.value, by)


@dataclass(frozen=True)
class Comparison:
    """All figures of two variants. ``warnings``: what else was different than what was meant to be."""

    before: Side
    after: Side
    differences: list[Difference]
    warnings: list[str]


def difference(quantity: Quantity, before: Estimate, after: Estimate, group: str = "") -> Difference:
    """What became of one figure. A difference is told only where the intervals do not overlap."""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Difference(quantity, group, before, after, _change(before.value, after.value), None, None, "unknown")
    verdict: Verdict = "same"
    if after.high < before.low:
        verdict = "better" if quantity.less_is_better else "worse"
    elif after.low > before.high:
        verdict = "worse" if quantity.less_is_better else "better"
    least, most = _change(before.high, after.low), _change(before.low, after.high)
    return Difference(quantity, group, before, after, _change(before.value, after.value), least, most, verdict)


def compare(before: Side, after: Side) -> Comparison:
    """Both sides figure by figure. Raises BenchRunError for what cannot be compared."""
    problems = list(_refusals(before, after))
    if problems:
        raise BenchRunError(
            f"{before.label} and {after.label} cannot be compared: {'; '.join(problems)}.",
            "Measure both with the same workload and scale.",
        )
    warnings = [*_of_runs(before.run, after.run), *_of_variants(before.variant, after.variant)]
    if before.run.id != after.run.id:
        warnings += _between_runs(before, after)
    return Comparison(before, after, list(_differences(before, after)), warnings)


def _differences(before: Side, after: Side) -> Iterator[Difference]:
    one, other = before.variant, after.variant
    pairs: list[tuple[str, Figures | None, Figures | None]] = [("", one.figures, other.figures)]
    if len(one.groups) > 1:
        pairs += [(name, figures, other.groups.get(name)) for name, figures in one.groups.items()]
    same_slo = before.run.slo == after.run.slo
    for group, old, new in pairs:
        for quantity in QUANTITIES:
            if old is None or new is None or (quantity.key in ("goodput", "slo_share") and not same_slo):
                continue
            first, second = quantity.of(old), quantity.of(new)
            if first is not None and second is not None:
                yield difference(quantity, first, second, group)


def _refusals(before: Side, after: Side) -> Iterator[str]:
    one, other = before.run, after.run
    for side in (before, after):
        if side.variant.figures is None:
            yield f"nothing was measured of {side.label}"
    if one.id == other.id:
        return
    mine, yours = one.workload, other.workload
    if mine.name != yours.name:
        yield f"the workloads are {mine.name} and {yours.name}"
    elif mine.scale != yours.scale:
        yield f"the scales are {mine.scale} and {yours.scale}"
    elif (mine.parameters, mine.requests, mine.groups) != (yours.parameters, yours.requests, yours.groups):
        keys = sorted(key for key in {*mine.parameters, *yours.parameters}
                      if mine.parameters.get(key) != yours.parameters.get(key))  # fmt: skip
        yield f"the workload file was changed in between ({', '.join(keys) or 'requests, groups'})"
    if one.scripted != other.scripted:
        yield "the engines of one were scripted"


def _of_runs(one: Run, other: Run) -> Iterator[str]:
    for run in (one,) if one.id == other.id else (one, other):
        if run.state != "complete":
            yield f"{run.id} is not complete ({run.state})."
        late = sum(bool(each.client and each.client.overloaded) for each in run.passes)
        if late:
            yield f"{run.id}: the load generator did not keep up in {late} of {len(run.passes)} passes."


def _of_variants(one: Variant, other: Variant) -> Iterator[str]:
    failed, failed_then = _failed(one), _failed(other)
    if abs(failed - failed_then) > 0.01:
        yield (
            f"{failed:.1%} and {failed_then:.1%} of the requests failed: the figures are of whole answers, so the side "
            "that failed more had less to do."
        )
    if one.model != other.model:
        yield f"The models are {one.model} and {other.model}."
    if one.engines != other.engines:
        yield f"The engines are {one.engines} and {other.engines}."


def _between_runs(before: Side, after: Side) -> Iterator[str]:
    one, other = before.run, after.run
    yield "Two runs: what the machine did otherwise at those times is in the difference."
    if one.seed != other.seed:
        yield f"The seeds are {one.seed} and {other.seed}: other lengths and another order. --seed pins them."
    if one.repeats != other.repeats:
        yield f"The repeats are {one.repeats} and {other.repeats}."
    facts = [(run.machine.cpu, run.machine.cores, tuple(run.machine.gpus)) for run in (one, other)]
    if facts[0] != facts[1]:
        yield "The machines are different ones."
    versions = (before.variant.engine_version, after.variant.engine_version)
    if versions[0] != versions[1]:
        yield f"The engines' versions are {versions[0] or 'unknown'} and {versions[1] or 'unknown'}."
    if one.slo != other.slo:
        yield "The SLOs differ, so goodput is not compared."
    rates = (one.workload.capacity, other.workload.capacity)
    if rates[0] != rates[1] and all(rates):
        yield f"Requests arrived for a capacity of {rates[0]:.2f} and {rates[1]:.2f} requests/s."


def _failed(variant: Variant) -> float:
    figures = variant.figures
    return 1 - figures.succeeded / figures.sent if figures is not None and figures.sent else 0.0


def _change(old: float, new: float) -> float | None:
    return new / old - 1 if old > 0 else None


def pairs(run: Run) -> list[Comparison]:
    """What a report compares: each variant with the first one, and the edge with the same engines without it.

    What holds for the whole run is no warning of theirs: the report begins with it.
    """
    sides = [Side(run, variant) for variant in run.variants if variant.figures is not None]
    by_name = {side.variant.name: side for side in sides[1:]}
    chosen = [(sides[0], side) for side in sides[1:]]
    chosen += [(side, by_name[f"{name}+edge"]) for name, side in by_name.items() if f"{name}+edge" in by_name]
    return [Comparison(one, other, list(_differences(one, other)), list(_of_variants(one.variant, other.variant)))
            for one, other in chosen]  # fmt: skip
