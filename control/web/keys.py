"""API keys as the page shows them; who makes and changes them is an Operator's matter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from control.errors import SignalboxError
from control.fleet.load import LoadedFleet
from control.keys.effect import advice
from control.keys.listing import limits_text, state_of
from control.keys.store import locate, read_keys

KeyState = Literal["active", "rotated", "disabled", "expired"]


@dataclass(frozen=True)
class KeyRow:
    """One key. ``ends``: its last characters; ``expires`` in Unix seconds; no models: all."""

    name: str
    ends: str
    state: KeyState
    models: tuple[str, ...]
    priority: str
    weight: int
    expires: float | None
    limits: str


@dataclass(frozen=True)
class KeysAnswer:
    """All keys. ``advice``: what is missing before they are asked for; ``problem``: why they cannot be shown."""

    keys: tuple[KeyRow, ...]
    advice: str = ""
    problem: str = ""


class KeyBook:
    """Reads keys.yaml when it has changed."""

    def __init__(self, loaded: Callable[[], LoadedFleet]) -> None:
        self._loaded = loaded
        self._lock = threading.Lock()
        self._kept: tuple[object, KeysAnswer] | None = None

    def read(self, now: float) -> KeysAnswer:
        """The keys at the moment ``now`` (Unix seconds). A file that is wrong is told, not raised."""
        loaded = self._loaded()
        stamp = (id(loaded), _stamp(locate(loaded)), int(now // 60))  # a key expires without a change of the file
        with self._lock:
            if self._kept is None or self._kept[0] != stamp:
                self._kept = (stamp, _read(loaded, now))
            return self._kept[1]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(loaded: LoadedFleet, now: float) -> KeysAnswer:
    if not locate(loaded).exists():
        return KeysAnswer((), advice(loaded))
    try:
        keys = read_keys(loaded).keys
    except SignalboxError as error:
        return KeysAnswer((), problem=f"{error.message} {error.hint}".strip())
    rows = tuple(
        KeyRow(
            name=name,
            ends=key.ends or "",
            state=state_of(key, now),
            models=tuple(key.models or ()),
            priority=key.priority,
            weight=key.weight,
            expires=float(key.expires) if key.expires is not None else None,
            limits=limits_text(key),
        )
        for name, key in keys.items()
    )
    return KeysAnswer(rows, advice(loaded))
