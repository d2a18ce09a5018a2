"""The table of backends, filtered and sorted by its address: it works without JavaScript, and the stream keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from control.web.texts import Words
from control.web.view import STATES, BackendView, Snapshot
from control.web.views.view import Macros, Parts, by_words

#: Column → what it is sorted by. States are sorted as they stand in STATES: the good ones, then the bad ones.
_SORT: Mapping[str, Callable[[BackendView], Any]] = {
    "id": lambda one: one.id,
    "model": lambda one: (one.model, one.pool),
    "state": lambda one: (STATES.index(one.state), one.since or 0.0),
    "in_flight": lambda one: one.in_flight,
    "kv": lambda one: one.kv_usage,
    "ttft": lambda one: one.answers.ttft_p50 if one.answers else None,
    "tokens": lambda one: one.answers.tokens if one.answers else None,
}
_COLUMNS = (("id", "backend", False), ("model", "model", False), ("state", "state", False),
            ("in_flight", "in_flight", True), ("kv", "engine_load", True), ("ttft", "ttft", True),
            ("tokens", "tokens_per_s", True), ("", "engine", False), ("", "actions", False))  # fmt: skip
MAX_SEARCH = 100


@dataclass(frozen=True)
class Backends:
    """``/backends``: those whose names have ``text`` and whose state is ``state``; ``sort``: a column, or -column."""

    text: str = ""
    state: str = ""
    sort: str = ""

    name = place = "backends"

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> Backends:
        """From the arguments of an address; what is unknown there is left out."""
        state, sort = arguments.get("state", ""), arguments.get("sort", "")
        return cls(
            arguments.get("q", "")[:MAX_SEARCH],
            state if state in STATES else "",
            sort if sort.removeprefix("-") in _SORT else "",
        )

    @property
    def key(self) -> tuple[str, ...]:
        """See View."""
        return (self.name, self.text, self.state, self.sort)

    @property
    def filtered(self) -> bool:
        """Whether some backends may be left out."""
        return bool(self.text or self.state)

    def title(self, words: Words) -> str:
        """See View."""
        return words("backends")

    def query(self) -> Mapping[str, str]:
        """See View."""
        told = {"q": self.text, "state": self.state, "sort": self.sort}
        return {name: value for name, value in told.items() if value}

    def context(self) -> Mapping[str, Any]:
        """See View."""
        return {"states": STATES}

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """See View."""
        parts: Parts = {
            "part-summary": shared.summary(snapshot, words),
            "part-leaving": shared.leaving(snapshot, words),
        }
        for backend in self.chosen(snapshot):
            parts[f"backend-{backend.id}"] = macros.backend(backend, snapshot, words)
        return parts

    def chosen(self, snapshot: Snapshot) -> list[BackendView]:
        """The backends to show, in order; a value that is not known comes last either way."""
        found = [one for one in snapshot.backends if self._wanted(one)]
        column = self.sort.removeprefix("-")
        if column:
            known = [one for one in found if _SORT[column](one) is not None]
            known.sort(key=_SORT[column], reverse=self.sort.startswith("-"))
            found = known + [one for one in found if _SORT[column](one) is None]
        return found

    def columns(self, words: Words) -> list[tuple[str, str, bool]]:
        """Column that can be sorted by (or nothing), its title, whether it has numbers."""
        return [(column, words(text), number) for column, text, number in _COLUMNS]

    def direction(self, column: str) -> str:
        """As ``aria-sort`` has it."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")

    def sorted_by(self, column: str) -> str:
        """The address of the same table sorted by this column; of one that is already, the other way round."""
        other = f"-{column}" if self.sort == column else column
        return "?" + urlencode(replace(self, sort=other).query())

    def _wanted(self, one: BackendView) -> bool:
        if self.state and one.state != self.state:
            return False
        return by_words(self.text, (one.id, one.model, one.address, one.pool, one.machine, one.reason))
