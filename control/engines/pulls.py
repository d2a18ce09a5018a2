"""How far a pull is, out of what Docker says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from control.engines.phases import LIMITS, PULLING

#: Seconds after which a pull that shows nothing new is given up.
SILENCE = float(LIMITS[PULLING])


class Pull:
    """Layers and their sizes, and when something was new last. ``now``: a clock in seconds that nobody sets."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._layers: dict[str, tuple[int, int]] = {}
        self._told: dict[str, tuple[str, int]] = {}
        self._news = now()

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return sum(done for done, _ in self._layers.values())

    @property
    def total(self) -> int:
        """Bytes of all layers whose size is known."""
        return sum(total for _, total in self._layers.values())

    def feed(self, line: Mapping[str, Any]) -> None:
        """One line of Docker's answer. One that repeats what was said before is no news."""
        layer, status, detail = str(line.get("id", "")), str(line.get("status", "")), line.get("progressDetail") or {}
        said = (status, int(detail.get("current") or 0))
        if self._told.get(layer) != said:
            self._told[layer], self._news = said, self._now()
        if status == "Downloading" and detail.get("total"):
            self._layers[layer] = (said[1], int(detail["total"]))
        elif status in ("Download complete", "Pull complete") and layer in self._layers:
            self._layers[layer] = (self._layers[layer][1],) * 2

    def silent_for(self) -> float:
        """Seconds since the last news."""
        return self._now() - self._news
