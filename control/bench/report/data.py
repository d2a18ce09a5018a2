"""A report as JSON: what was compared, figure by figure, for other programs. Pure."""

from __future__ import annotations

import json
from typing import Any

from control.bench.report.compare import Comparison, Difference, Side, pairs
from control.bench.report.findings import facts, findings, headline, hit_rate, troubles
from control.bench.report.quantities import QUANTITIES
from control.bench.results import Figures, Run, Variant

#: Raised when a reader of older files would misread a newer one.
SCHEMA = 1


def report(run: Run) -> dict[str, Any]:
    """The whole report. Times are seconds, shares 0 to 1, ``change`` a share too (-0.25: a quarter less)."""
    return {
        "schema": SCHEMA,
        "run": run.id,
        "state": run.state,
        "workload": {"name": run.workload.name, "scale": run.workload.scale},
        "troubles": troubles(run),
        "variants": [_variant(one) for one in run.variants],
        "comparisons": [comparison(one) for one in pairs(run)],
        "facts": [found.text for found in facts(run)],
    }


def comparison(one: Comparison) -> dict[str, Any]:
    """Two variants beside each other."""
    return {
        "before": _side(one.before),
        "after": _side(one.after),
        "warnings": one.warnings,
        "headline": headline(one),
        "findings": [{"verdict": found.tone, "text": found.text} for found in findings(one)],
        "differences": [_difference(each) for each in one.differences],
    }


def write(content: object) -> str:
    """As it stands in a file."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _side(side: Side) -> dict[str, str]:
    return {"run": side.run.id, "variant": side.variant.name}


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "figure": one.quantity.key, "group": one.group or None, "verdict": one.verdict,
        "before": one.before.model_dump(), "after": one.after.model_dump(),
        "change": one.change, "least": one.least, "most": one.most,
    }  # fmt: skip


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name, "path": variant.path, "settings": variant.settings, "prefix_hit_rate": hit_rate(variant),
        "figures": _figures(variant.figures), "groups": {name: _figures(one) for name, one in variant.groups.items()},
    }  # fmt: skip


def _figures(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    estimates = {one.key: found.model_dump() for one in QUANTITIES if (found := one.of(figures)) is not None}
    return {"sent": figures.sent, "succeeded": figures.succeeded, "failures": figures.failures, **estimates}
