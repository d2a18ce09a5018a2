"""One start of an engine, from its first log line until it generates: how far it is, and whether it takes too long.

The same for a process and a container; only where the log comes from differs. ``startup.json`` in the engine's folder
keeps what was learnt, for a control plane that adopts the engine later.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from control.engines import health
from control.engines.args import EngineSpec
from control.engines.facts import Facts, alarms, from_metrics, from_models
from control.engines.first_token import FirstToken
from control.engines.phases import FIRST_TOKEN, LISTING, SERVING, Span, Timeline
from control.engines.readiness import StartupLog

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """What a start that is over has told. ``life`` names the engine's process or container."""

    life: str
    phases: tuple[Span, ...]
    facts: Facts

    def save(self, folder: Path) -> None:
        """Write ``startup.json``, whole or not at all. Where that fails, a later control plane knows less: no more."""
        temporary = folder / "startup.json.new"
        try:
            temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
            temporary.replace(folder / "startup.json")
        except OSError as error:
            log.warning("%s could not be written: %s", folder / "startup.json", error.strerror)

    @classmethod
    def load(cls, folder: Path, life: str) -> Kept | None:
        """What is known of this very life; None when nothing is, or nothing that can be read."""
        try:
            content = json.loads((folder / "startup.json").read_text())
            if content["life"] != life:
                return None
            spans = tuple(Span(str(span["phase"]), float(span["seconds"])) for span in content["phases"])
            return cls(life, spans, Facts.kept(content["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Watch:
    """Watches one start. ``look`` says what is missing until the engine is ready."""

    def __init__(self, spec: EngineSpec, startup: StartupLog, *, adopted: bool) -> None:
        """``adopted``: it ran before we came. It may be busy: it is asked for no token, nor ended for want of one."""
        self._spec = spec
        self._startup = startup
        self._token = None if adopted else FirstToken(spec)
        self.facts = Facts()
        self.ready = False
        #: Whether the phases were seen as they came; those of an adopted engine are read in one go, so without times.
        self.timed = not adopted

    @property
    def timeline(self) -> Timeline:
        """The phases of this start."""
        return self._startup.timeline

    @property
    def phases(self) -> tuple[Span, ...]:
        """The phases that are over, where their times are known."""
        return tuple(self.timeline.spans) if self.timed else ()

    def alarms(self, facts: Facts) -> tuple[str, ...]:
        """Where what runs is not what was asked."""
        return alarms(self._spec, facts)

    def look(self, now: float) -> str:
        """What is missing until the engine is ready; empty when it is. ``now`` in Unix seconds."""
        missing = health.unready(self._spec)
        if not missing or missing.startswith("/v1/models"):
            self.timeline.enter(LISTING, now)
        if not missing and self._token is not None:
            self.timeline.enter(FIRST_TOKEN, now)
            missing = self._token.look()
        if not missing:
            self.timeline.enter(SERVING, now)
            self.facts = learn(self._spec, self._startup.facts)
            self.ready = True
        return missing

    def late(self, now: float, deadline: float) -> str:
        """What took too long, in words; empty while nothing did. ``deadline``: for the whole, in Unix seconds."""
        timeout = int(self._spec.engine.start_timeout) / 1000
        if now > deadline:
            return f"was not ready after {timeout:g} s ({self.timeline.where})"
        return self.timeline.overdue(now, timeout)

    def close(self) -> None:
        """Take back a question that is still open."""
        if self._token is not None:
            self._token.close()


def learn(spec: EngineSpec, told: Facts) -> Facts:
    """What the engine says of itself over HTTP, and what its log has ``told``."""
    return told.joined(from_models(health.listed(spec)).joined(from_metrics(health.metrics(spec))))
