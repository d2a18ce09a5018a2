"""How long steps tell what they do: one callable, so that a terminal, the status page and tests can all listen."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import IO, Protocol

_TICK_SECONDS = 0.5


class Progress(Protocol):
    """Called whenever there is news. A new ``title`` begins a step; ``fraction`` (0 to 1) is None when unknown."""

    def __call__(self, title: str, detail: str = "", fraction: float | None = None) -> None: ...


def silent(title: str, detail: str = "", fraction: float | None = None) -> None:
    """Listen to nothing."""


def size_text(count: float) -> str:
    """``count`` bytes for people, in powers of 1000 as download sizes are: ``526 MB``, ``2.7 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def seconds_text(seconds: float) -> str:
    """``75`` becomes ``1 min 15 s``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def lines(stream: IO[str] | None) -> Iterator[str]:
    """The stream's lines as they come, and an empty text twice a second while none comes."""
    assert stream is not None
    waiting: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        for line in stream:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            line = waiting.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            yield ""
            continue
        if line is None:
            return
        yield line
