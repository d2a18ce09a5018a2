"""One backend: its state and why, its last hour, how its engine started and with what, the end of its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control.engines.origins import running_value
from control.web.engine_logs import EngineLogs
from control.web.formats import NONE, percent, rate, span, whole
from control.web.history import backend_series
from control.web.plots import top
from control.web.texts import Words
from control.web.view import BackendView, Snapshot
from control.web.views.view import Figure, Macros, Parts

Format = Callable[[float | None], str]
#: Title, its lines (name, room and field of a BackendPoint), how numbers are written.
_FIGURES: tuple[tuple[str, tuple[tuple[str, str, str], ...], Format], ...] = (
    ("requests_per_s", (("requests_per_s", "share", "requests"),), rate),
    ("tokens_per_s", (("tokens_per_s", "answers", "tokens"),), rate),
    ("ttft", (("P50", "answers", "ttft_p50"), ("P99", "answers", "ttft_p99")), span),
    ("in_flight", (("in_flight", "gauges", "in_flight"),), whole),
    ("engine_load", (("runs", "gauges", "running"), ("waits", "gauges", "waiting")), whole),
    ("kv_usage", (("kv_usage", "gauges", "kv_usage"),), percent),
    ("prefix_hits", (("prefix_hits", "share", "prefix_hits"),), percent),
)
#: Lines of the log on the page.
LINES = 200
MAX_SEARCH = 100


@dataclass(frozen=True)
class Backend:
    """``/backends/ID``. ``find``: only lines of the log that have it. ``fresh``: may ask Docker for the log."""

    id: str
    logs: EngineLogs = field(compare=False)
    find: str = ""
    fresh: bool = field(default=False, compare=False)

    name, place = "backend", "backends"

    @classmethod
    def of(cls, id_: str, logs: EngineLogs, arguments: Mapping[str, str], fresh: bool) -> Backend:
        """From the arguments of an address."""
        return cls(id_, logs, arguments.get("find", "")[:MAX_SEARCH], fresh)

    @property
    def key(self) -> tuple[str, ...]:
        """See View."""
        return (self.name, self.id, self.find)

    def title(self, words: Words) -> str:
        """See View."""
        return self.id

    def query(self) -> Mapping[str, str]:
        """See View."""
        return {"id": self.id, **({"find": self.find} if self.find else {})}

    def context(self) -> Mapping[str, Any]:
        """See View."""
        return {}

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """See View. A backend that has just left has a summary only."""
        parts: Parts = {"part-summary": shared.summary(snapshot, words)}
        one = snapshot.backend(self.id)
        if one is None:
            empty = BackendView(self.id, "", "", "", "unknown", "not_in_fleet", "", None, None, None, (), False, None)
            return parts | self._known(empty, snapshot, words, macros)
        parts |= self._known(one, snapshot, words, macros)
        if one.ours:
            end = self.logs.end(one.id, LINES, self.find, ask=self.fresh)
            parts["part-log"] = macros.log(end, self.find, words)
        return parts

    def _known(self, one: BackendView, snapshot: Snapshot, words: Words, macros: Macros) -> Parts:
        facts = one.engine.facts if one.engine else None
        settings = [(row, running_value(row.name, facts)) for row in one.settings]
        return {
            "part-head": macros.head(one, snapshot, words),
            "part-actions": macros.actions(one, words),
            "part-plots": macros.plots(figures(one, snapshot, words), words),
            "part-start": macros.start(one, words),
            "part-settings": macros.settings(settings, words),
        }


def figures(one: BackendView, snapshot: Snapshot, words: Words) -> list[Figure]:
    """This backend's numbers, with their last hour; those that nobody knew in it are left out."""
    found: list[Figure] = []
    for title, lines, written in _FIGURES:
        shown = [
            (
                name if name.startswith("P") else words(name),
                written(_now(one, room, field_)),
                backend_series(snapshot.bins, room, field_, one.id),
            )
            for name, room, field_ in lines
        ]
        highest = top(points for _, _, points in shown)
        found.append((words(title), shown, written(highest) if highest else ""))
    if one.use is not None:
        now = one.use.now.words() if one.use.now is not None else NONE
        twice = [value for value in one.use.hour for _ in range(2)]  # minutes, as bins of half a minute
        found.append((words(f"use_{one.use.field}"), [("", now, twice)], _percent(top([twice]))))
    return found


def _percent(value: float) -> str:
    return f"{value:.0f} %" if value else ""


def _now(one: BackendView, room: str, field_: str) -> float | None:
    holder = one if room == "gauges" else getattr(one, room)
    return None if holder is None else getattr(holder, field_)
