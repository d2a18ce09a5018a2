"""When an engine that died is started again, and when not any more. The same for processes and containers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """When to look and when to try again; all in seconds."""

    poll: float = 0.3
    #: Pauses before the restarts after deaths in a row; the last one repeats.
    pauses: tuple[float, ...] = (1, 2, 4, 8, 15, 30)
    #: A death counts as quick when the engine was ready for less than this.
    quick: float = 60
    #: So many quick deaths in a row end the trying.
    give_up_after: int = 5
    #: Between two looks at something that a person has to change: a taken port, a missing folder.
    retry: float = 5
    #: Between two questions to the edge what still runs on an engine that is to go.
    drain: float = 0.5


@dataclass
class Deaths:
    """Counts the quick deaths of one engine in a row."""

    policy: Policy
    count: int = 0

    def add(self, ready_for: float) -> None:
        """It died after it was ready for so many seconds."""
        self.count = 1 if ready_for >= self.policy.quick else self.count + 1

    @property
    def too_many(self) -> bool:
        """Whether it is not started again before a person has looked."""
        return self.count >= self.policy.give_up_after

    @property
    def pause(self) -> float:
        """Seconds until the next try."""
        return self.policy.pauses[min(self.count, len(self.policy.pauses)) - 1]
