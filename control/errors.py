"""The exceptions that Signalbox raises on purpose. Each message says what happened; ``hint`` says what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class SignalboxError(Exception):
    """Base of every expected failure: the CLI prints ``message`` and ``hint`` and exits with ``exit_code``."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


@dataclass(frozen=True)
class Problem:
    """One thing wrong in fleet.yaml or keys.yaml.

    ``line`` and ``column`` count from 1 (column 0: the whole line is meant).

    ``key`` is a dotted path such as ``models.a.backends[0].url``; empty for the whole file.
    """

    file: Path
    line: int
    key: str
    message: str
    suggestion: str = ""
    column: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"
        where = f"{place}: {self.key}: " if self.key else f"{place}: "
        return where + self.message + (f" {self.suggestion}" if self.suggestion else "")


class FleetError(SignalboxError):
    """fleet.yaml, or its keys.yaml, cannot be used. ``problems`` holds all that is wrong, in the order of the file."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class KeysError(SignalboxError):
    """An API key could not be made or changed."""


class RenderError(SignalboxError):
    """The edge's configuration could not be rendered from a valid fleet."""


class EdgeError(SignalboxError):
    """The edge could not be found, tested, started, stopped or reloaded."""


class EngineError(SignalboxError):
    """An engine could not be installed, started or stopped."""


class InstallError(SignalboxError):
    """Something that this machine lacks could not be installed; ``hint`` names the exact command."""


class ControlError(SignalboxError):
    """The control plane could not start: another one runs, or its address cannot be used."""


class SharingError(SignalboxError):
    """The fleet could not be given to other machines, or taken from them, through Redis."""


class TuningError(SignalboxError):
    """The memory of a model cannot be calculated: no config.json, or one of an unknown kind."""


class BenchRunError(SignalboxError):
    """A measurement could not be made, read or compared."""
