"""How long steps tell what they do: one callable, so that a terminal, the status page and tests can all listen."""

from __future__ import annotations

from typing import Protocol


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
