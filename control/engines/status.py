"""What a supervisor says of an engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.phases import Span

State = Literal["installing", "starting", "ready", "failed", "stopped"]


@dataclass(frozen=True)
class EngineStatus:
    """What one engine does. ``since``: Unix seconds of the last change of ``state``; ``phase``, ``detail``: words."""

    id: str
    model: str
    state: State
    phase: str
    detail: str
    since: float
    pid: int | None
    port: int
    restarts: int
    #: The phases of this start that are over, and when (Unix seconds) the present one began.
    phases: tuple[Span, ...] = ()
    phase_since: float | None = None
    #: What it runs with, once it is ready; and where that is not what fleet.yaml asks for.
    facts: Facts | None = None
    alarms: tuple[str, ...] = ()
    #: Why it died last, until it is ready again.
    failure: Diagnosis | None = None
