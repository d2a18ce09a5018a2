"""The first page: what is wrong, how much traffic there is and how fast it is served, the models, this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from control.web.formats import percent, rate, span, whole
from control.web.history import model_series
from control.web.plots import top
from control.web.texts import Words
from control.web.traffic import ALL
from control.web.view import SERVING, ModelView, Snapshot
from control.web.views.view import Figure, Macros, Parts

Format = Callable[[float | None], str]
#: Title, its lines (name of the text or the text itself, field of Traffic), how numbers are written.
_FIGURES: tuple[tuple[str, tuple[tuple[str, str], ...], Format], ...] = (
    ("requests_per_s", (("requests_per_s", "requests"),), rate),
    ("tokens_per_s", (("tokens_per_s", "tokens"),), rate),
    ("ttft", (("P50", "ttft_p50"), ("P99", "ttft_p99")), span),
    ("itl", (("P50", "itl_p50"), ("P99", "itl_p99")), span),
    ("waiting", (("waiting", "queue"),), whole),
    ("queue_wait", (("P50", "wait_p50"), ("P99", "wait_p99")), span),
    ("errors", (("errors", "failed"),), percent),
)


class Overview:
    """``/``."""

    name = place = "overview"
    key = ("overview",)

    def title(self, words: Words) -> str:
        """See View."""
        return words("nav_overview")

    def query(self) -> Mapping[str, str]:
        """See View."""
        return {}

    def context(self) -> Mapping[str, Any]:
        """See View."""
        return {}

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """See View."""
        ids = {backend.id for backend in snapshot.backends}
        parts: Parts = {
            "part-summary": shared.summary(snapshot, words),
            "part-troubles": macros.troubles(snapshot, ids, words),
            "part-leaving": shared.leaving(snapshot, words),
            "part-findings": macros.findings(snapshot, words),
            "part-traffic": macros.traffic(snapshot, figures(snapshot, words), words),
            "part-edge": macros.edge(snapshot, words),
            "part-machine": macros.machine(snapshot, words),
        }
        for index, model in enumerate(snapshot.models):
            traffic, pools = snapshot.traffic.get(model.name), _pools(snapshot, model)
            parts[f"model-{index}"] = macros.model(model, index, traffic, pools, words)
        return parts


def figures(snapshot: Snapshot, words: Words) -> list[Figure]:
    """The fleet's numbers over the last minute, with their last hour."""
    now, found = snapshot.traffic.get(ALL), []
    for title, lines, written in _FIGURES:
        series = [(_name(name, words), field, model_series(snapshot.bins, field)) for name, field in lines]
        shown = [(name, written(getattr(now, field) if now else None), points) for name, field, points in series]
        highest = top(points for _, _, points in shown)
        found.append((words(title), shown, written(highest) if highest else ""))
    return found


def _name(name: str, words: Words) -> str:
    return name if name.startswith("P") else words(name)


def _pools(snapshot: Snapshot, model: ModelView) -> list[tuple[str, int, int]]:
    """Name, ready backends and all backends of each pool; nothing for a model that has none."""
    found: dict[str, list[bool]] = {}
    for backend in snapshot.backends:
        if backend.model == model.name:
            found.setdefault(backend.pool, []).append(backend.state in SERVING)
    return [(name, sum(ready), len(ready)) for name, ready in found.items()] if any(found) else []
