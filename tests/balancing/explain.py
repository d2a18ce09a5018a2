"""Which deed a request that failed was lost to. Pure: stories, deeds, log lines and the engines' records in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.balancing.crowd import Story
from tests.balancing.violence import Deed

#: Seconds that a client on a loaded machine may need to see what has happened.
SEEN = 3.0
#: Seconds around an engine's death: a request may meet a kept connection whose end the worker has not read yet.
AROUND = 0.5
#: How long nginx holds back log lines: a worker that is killed takes those with it.
BUFFERED = 2.0
ENGINE_ENDINGS = ("engine_cut", "engine_error", "engine_timeout")


@dataclass
class Evidence:
    """What was seen on all sides; ``starts``: request id -> the engines that began it."""

    deeds: list[Deed]
    lines: Mapping[str, Mapping[str, Any]]
    starts: Mapping[str, list[str]]

    def cause(self, story: Story) -> str | None:
        """The cause of a failure, or None when nothing that was done explains it."""
        for deed in self.deeds:
            if deed.kind == "worker killed" and self._held(story, deed):
                return "held by a killed worker"
        line = self.lines.get(story.id)
        if line is None and not self._line_lost(story):
            return None
        if line is not None and line["end"] not in ENGINE_ENDINGS:
            return None
        engines = {line["backend"]} if line is not None else set(self.starts.get(story.id, ()))
        for deed in self.deeds:
            if deed.target in engines and deed.kind == "engine killed" and self._killed_under(story, deed):
                return "held by a killed engine"
            if deed.target in engines and deed.kind == "engine frozen" and self._frozen_under(story, deed):
                return "held by a frozen engine"
        return None

    def _held(self, story: Story, deed: Deed) -> bool:
        lived = story.began <= deed.at <= story.ended + 0.05
        return story.port in deed.ports and lived and story.ended - deed.at <= SEEN

    def _killed_under(self, story: Story, deed: Deed) -> bool:
        return story.began - AROUND <= deed.at <= story.ended and story.ended - deed.at <= SEEN

    def _frozen_under(self, story: Story, deed: Deed) -> bool:
        return story.began <= deed.until + AROUND and deed.at <= story.ended and story.ended <= deed.until + SEEN

    def _line_lost(self, story: Story) -> bool:
        return any(deed.kind == "worker killed" and story.ended - 0.05 <= deed.at <= story.ended + BUFFERED
                   for deed in self.deeds)  # fmt: skip

    def story(self, story: Story) -> str:
        """Everything that is known of a request, for whoever has to find out."""
        near = [f"    {deed}" for deed in self.deeds if story.began - 10 <= deed.until and deed.at <= story.ended + 3]
        return "\n".join([str(story), f"  access log: {self.lines.get(story.id)}",
                          f"  begun by: {self.starts.get(story.id, [])}", "  meanwhile:", *near])  # fmt: skip


def causes(stories: Iterable[Story], evidence: Evidence) -> tuple[Counter[str], list[Story]]:
    """How many failed for which cause, and the requests that nothing explains."""
    counted: Counter[str] = Counter()
    open_ones = []
    for story in stories:
        if not story.failed:
            continue
        cause = evidence.cause(story)
        if cause is None:
            open_ones.append(story)
        else:
            counted[cause] += 1
    return counted, open_ones


def twice(starts: Mapping[str, list[str]]) -> list[str]:
    """Ids of requests that began more than once."""
    return [id_ for id_, engines in starts.items() if len(engines) > 1]
