"""Requests that run now, as the edge lists them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: So many are shown, the oldest first.
MOST = 200
MAX_TEXT = 128


@dataclass(frozen=True)
class RunningRequest:
    """One request. ``age`` in seconds; ``chunks``: reads of its stream so far, a read may carry several tokens."""

    id: str
    key: str
    model: str
    backend: str
    state: str
    age: float
    chunks: int


@dataclass(frozen=True)
class Running:
    """The oldest ``requests`` of ``total``; ``silent``: workers that did not answer in time."""

    requests: tuple[RunningRequest, ...]
    total: int
    silent: int


def running_of(told: Mapping[str, Any]) -> Running:
    """The edge's ``GET /requests``; what is no request there is left out."""
    rows = told.get("requests")
    rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    found = tuple(
        RunningRequest(
            id=_text(row.get("id")),
            key=_text(row.get("key")),
            model=_text(row.get("model")),
            backend=_text(row.get("backend")),
            state=_text(row.get("state")),
            age=float(_number(row.get("age"))),
            chunks=int(_number(row.get("chunks"))),
        )
        for row in rows[:MOST]
    )
    silent = told.get("silent_workers")
    return Running(found, int(_number(told.get("total"))), len(silent) if isinstance(silent, list) else 0)


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return value if good else 0
