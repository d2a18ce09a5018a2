"""The phases of an engine's start: which line of its log begins one, how long each took and may take. Pure.

A phase goes on until the next one begins. The log tells most of them; pulling and creating (containers), and the last
two (what the engine answers over HTTP), are told by whoever does these. Times are Unix seconds, as the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PULLING, CREATED, STARTING, LOADING = "pulling", "created", "starting", "loading weights"
COMPILING, SIZING, WARMING = "compiling", "sizing KV cache", "warming up"
LISTING, FIRST_TOKEN = "listing models", "first token"
#: Not a phase of the start: its end.
SERVING = "serving"

ORDER = (PULLING, CREATED, STARTING, LOADING, COMPILING, SIZING, WARMING, LISTING, FIRST_TOKEN, SERVING)

#: How long (seconds) a phase may show nothing new while engine.start_timeout is ``USUAL_START`` or less. Between two
#: signs of progress, not in all: weights may come from a slow disk for an hour when their shards are counted.
LIMITS: Mapping[str, float] = {
    PULLING: 900, STARTING: 300, LOADING: 600, COMPILING: 600,
    SIZING: 300, WARMING: 600, LISTING: 60, FIRST_TOKEN: 120,
}  # fmt: skip
#: Seconds. Whoever allows the whole more than this has a slow machine or a large model: each phase gets more as well.
USUAL_START = 600.0

#: The first mark found in a line says which phase begins with it.
_MARKS: tuple[tuple[str, str], ...] = (
    ("Application startup complete", LISTING),
    ("init engine (profile, create kv cache, warmup model) took", WARMING),
    ("Starting vLLM server on", WARMING),
    ("Capturing CUDA graphs", WARMING),
    ("Capturing cudagraphs", WARMING),
    ("Graph capturing finished", WARMING),
    ("KV cache size:", SIZING),
    ("Available KV cache memory:", SIZING),
    ("GiB for KV cache on node", SIZING),
    ("for vLLM's torch.compile", COMPILING),
    ("Starting torch.compile", COMPILING),
    ("Dynamo bytecode transform", COMPILING),
    ("Compiling a graph for", COMPILING),
    ("torch.compile takes", COMPILING),
    ("Warming up model for the compilation", COMPILING),
    ("Starting to load model", LOADING),
    ("Loading safetensors checkpoint shards", LOADING),
    ("Loading weights took", LOADING),
)
#: The first phase takes longest; these lines say how far it is.
_STARTING_DETAILS: tuple[tuple[str, str], ...] = (
    ("non-default args:", "reading the model's configuration"),
    ("Initializing a V1 LLM engine", "starting the engine process"),
    ("distributed_init_method=", "starting the workers"),
)
_PERCENT = re.compile(r"(?:Loading (?:\w+ )?(?P<shards>checkpoint shards)|Capturing \w+ (?P<graphs>graphs)\b.*?):"
                      r"\s+(?P<percent>\d+)%")  # fmt: skip


@dataclass(frozen=True)
class Span:
    """One phase that is over, and how long it took."""

    phase: str
    seconds: float


def times(spans: Iterable[Span]) -> str:
    """Phases and how long they took, in words: ``starting 8.1 s, loading weights 0.6 s``."""
    return ", ".join(f"{span.phase} {span.seconds:.1f} s" for span in spans)


def stretched(start_timeout: float) -> float:
    """How many times their usual length the phases may take, when the whole start may take so many seconds."""
    return max(1.0, start_timeout / USUAL_START)


@dataclass
class Timeline:
    """The phases of one start. ``phase`` never goes back; ``detail`` says how far it is and may be empty."""

    began: float = 0.0
    phase: str = STARTING
    detail: str = ""
    spans: list[Span] = field(default_factory=list)
    #: When this phase began, and when it last showed something new.
    since: float = 0.0
    _news: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self.since = self._news = self.since or self.began

    @classmethod
    def finished(cls, began: float, spans: Iterable[Span]) -> Timeline:
        """The timeline of a start that is over, as it was kept."""
        spans = list(spans)
        return cls(began, SERVING, "", spans, began + sum(span.seconds for span in spans))

    def feed(self, text: str, at: float) -> None:
        """Take in a log line without its prefix."""
        for mark, phase in _MARKS:
            if mark in text:
                self.enter(phase, at)
                break
        if self.phase == STARTING:
            self.tell(next((detail for mark, detail in _STARTING_DETAILS if mark in text), self.detail), at)
        elif match := _PERCENT.search(text):
            if self.phase == LOADING and match["shards"]:
                self.tell(f"{match['percent']} % of the shards", at)
            elif self.phase == WARMING and match["graphs"]:
                self.tell(f"{match['percent']} % of the graphs", at)

    def enter(self, phase: str, at: float) -> None:
        """Begin ``phase``, unless it is reached already."""
        if ORDER.index(phase) <= ORDER.index(self.phase):
            return
        self.spans.append(Span(self.phase, max(0.0, at - self.since)))
        self.phase, self.detail = phase, ""
        self.since = self._news = at

    def tell(self, detail: str, at: float) -> None:
        """How far the phase is; something new sets its clock back."""
        if detail != self.detail:
            self.detail, self._news = detail, at

    def overdue(self, now: float, start_timeout: float) -> str:
        """That the phase shows nothing new for longer than it may, in words; empty while it does.

        ``start_timeout`` (seconds, for the whole) stretches the limits of the phases when it is longer than usual.
        """
        limit = LIMITS.get(self.phase)
        if limit is None:
            return ""
        limit *= stretched(start_timeout)
        if now - self._news <= limit:
            return ""
        return f"showed nothing new for {limit:g} s ({self.where})"

    @property
    def where(self) -> str:
        """The phase and how far it is, in words."""
        return f"{self.phase}, {self.detail}" if self.detail else self.phase
