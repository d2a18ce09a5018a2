"""What routers do side by side: repeats as figures of a row, and as the tables of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tests.support.net import REPOSITORY
from tests.support.proof import between_marks

DOCUMENT = REPOSITORY / "docs" / "performance.md"
#: One repeat: by arm, the value of each measure.
Repeat = Mapping[str, Mapping[str, float]]


def facts(title: str, repeats: Sequence[Repeat]) -> dict[str, Any]:
    """For the row that stands for a comparison: by arm and measure, the value of every repeat."""
    arms = {
        arm: {measure: [round(repeat[arm][measure], 4) for repeat in repeats] for measure in values}
        for arm, values in repeats[0].items()
    }
    return {"title": title, "arms": arms}


def ratios(repeats: Sequence[Repeat], measure: str, ours: str, theirs: str) -> list[float]:
    """Ours to theirs, within each repeat: a machine that is slow in one repeat is slow for both."""
    return [repeat[ours][measure] / repeat[theirs][measure] for repeat in repeats]


def of_runs(count: int) -> str:
    """How a figure came about, in words."""
    return f"median of {count} runs" if count > 1 else "one run"


def _cell(values: Sequence[float]) -> str:
    middle, least, most = (f"{value:.3f}" for value in (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def _table(compared: Mapping[str, Any]) -> list[str]:
    arms: Mapping[str, Mapping[str, Sequence[float]]] = compared["arms"]
    measures = list(next(iter(arms.values())))
    return [
        f"**{compared['title']}**",
        "",
        f"|   | {' | '.join(arms)} |",
        "|---|" + "---:|" * len(arms),
        *(f"| {measure} | {' | '.join(_cell(values[measure]) for values in arms.values())} |" for measure in measures),
    ]


def filled(text: str, result: dict[str, Any]) -> str:
    """The document with the tables of all comparisons in ``result``: the median of the repeats, least to greatest."""
    lines: list[str] = []
    for row in result["rows"]:
        if "arms" in row.get("facts", {}):
            lines += [*([""] if lines else []), *_table(row["facts"])]
    return between_marks(text, "prove-balancing", "\n".join(lines))
