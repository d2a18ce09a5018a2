"""How long steps tell what they do: one callable, so that a terminal, the status page and tests can all listen."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Protocol, TypeVar

_TICK_SECONDS = 0.5
_T = TypeVar("_T")


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
    return (line or "" for line in ticking(stream))


def ticking(items: Iterable[_T]) -> Iterator[_T | None]:
    """The items as they come, and None twice a second while none comes. What taking one raises is raised here."""
    waiting: queue.Queue[tuple[_T | None, BaseException | None] | None] = queue.Queue()

    def pump() -> None:
        try:
            for item in items:
                waiting.put((item, None))
        except Exception as error:
            waiting.put((None, error))
        waiting.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            found = waiting.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            yield None
            continue
        if found is None:
            return
        item, error = found
        if error is not None:
            raise error
        yield item
