"""What a look at something found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """``subject``: what was looked at. ``command``: what to run next; always there unless all is well."""

    level: Level
    subject: str
    text: str
    command: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") == bool(self.command):
            raise ValueError(f"{self.subject}: a finding ends in a command, unless all is well")


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding("ok", subject, text)


def warning(subject: str, text: str, command: str) -> Finding:
    """It works, and may not for long, or not safely."""
    return Finding("warning", subject, text, command)


def problem(subject: str, text: str, command: str) -> Finding:
    """It does not work."""
    return Finding("problem", subject, text, command)
