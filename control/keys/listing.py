"""The keys as `signalbox keys list` shows them (pure)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from control.keys.schema import Key

_HEAD = ("name", "ends", "state", "models", "priority", "weight", "expires", "limits")


def lines(keys: Mapping[str, Key], now: float | None = None) -> list[str]:
    """A heading and one line per key, in columns. ``now``: Unix seconds, by default those of the clock."""
    moment = time.time() if now is None else now
    rows = [_HEAD, *(_row(name, key, moment) for name, key in keys.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(name: str, key: Key, now: float) -> tuple[str, ...]:
    return (
        name,
        f"...{key.ends}" if key.ends else "",
        _state(key, now),
        ",".join(key.models) if key.models else "all",
        key.priority,
        str(key.weight),
        key.expires.text() if key.expires else "never",
        limits_text(key),
    )


def _state(key: Key, now: float) -> str:
    state = state_of(key, now)
    if state == "rotated" and key.previous is not None:
        return f"active (old one until {key.previous.until.text()})"
    return state


def state_of(key: Key, now: float) -> Literal["active", "rotated", "disabled", "expired"]:
    """Whether a key lets in at the moment ``now`` (Unix seconds); ``rotated``: so does the secret before."""
    if not key.enabled:
        return "disabled"
    if key.expires is not None and now >= key.expires:
        return "expired"
    return "rotated" if key.previous is not None and now < key.previous.until else "active"


def limits_text(key: Key) -> str:
    """``requests_per_minute=60 big.concurrent=2``."""
    content = key.limits.model_dump(exclude_none=True)
    models = content.pop("models")
    words = [f"{kind}={count}" for kind, count in content.items()]
    words += [f"{model}.{kind}={count}" for model, budget in models.items() for kind, count in budget.items()]
    return " ".join(words) or "none"
