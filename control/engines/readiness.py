"""An engine's log, line by line: the phase that it is in, what it runs with, and why it died. Pure.

The log only tells people what happens meanwhile; whether an engine is ready is decided over HTTP (health.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from control.engines.causes import CAUSES
from control.engines.diagnosis import Diagnosis, Situation, diagnose
from control.engines.evidence import Evidence
from control.engines.facts import Facts, from_line
from control.engines.phases import LISTING, ORDER, Timeline

#: A log line's own words start after "(EngineCore pid=12) INFO 11-29 14:26:17 [core.py:133] ".
_PREFIX = re.compile(
    r"^(?:\([^()]*\bpid=\d+\) ?)*(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"(?:\[[^\]]*:\d+\] ?)?)?"
)
#: The engine's account of its configuration is one line of about 4,000 characters.
_LINE_LIMIT = 16_384
#: An error while it serves is one request's, unless the engine dies within this many seconds.
_FORGET_AFTER = 10.0


@dataclass
class StartupLog:
    """Reads an engine's log. ``timeline`` has its phases, ``facts`` what it said of itself."""

    timeline: Timeline = field(default_factory=Timeline)
    facts: Facts = field(default_factory=Facts)
    evidence: Evidence = field(default_factory=Evidence)
    _error_at: float | None = field(default=None, repr=False)

    @property
    def phase(self) -> str:
        """The phase that the engine is in."""
        return self.timeline.phase

    def feed(self, line: str, at: float = 0.0) -> None:
        """Take in one line, with or without its line end; ``at`` in Unix seconds."""
        line = line.rstrip("\r\n")[:_LINE_LIMIT]
        prefix = _PREFIX.match(line)
        assert prefix is not None  # it may be empty
        text = line[prefix.end() :]
        self.evidence.feed(text, prefix["level"] or "")
        self.timeline.feed(text, at)
        self.facts = from_line(self.facts, text)

    def forget_old_errors(self, now: float) -> None:
        """Errors that an engine which serves has outlived are not what it dies of later. ``now`` in seconds."""
        if not self.evidence:
            self._error_at = None
        elif self._error_at is None:
            self._error_at = now
        elif ORDER.index(self.phase) >= ORDER.index(LISTING) and now - self._error_at > _FORGET_AFTER:
            self.evidence.clear()
            self._error_at = None

    def refused(self, reason: str) -> None:
        """It was not even started; ``reason`` is what the container runtime says."""
        self.evidence.add(reason)

    def diagnosis(self, situation: Situation) -> Diagnosis:
        """Why the engine died; ``situation`` without what the log knows."""
        return diagnose(self.evidence.findings, situation, CAUSES)
