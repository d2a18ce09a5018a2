"""What vLLM's log says about its start: the phase it is in, facts worth showing, and why it failed. Pure.

The log only tells people what happens meanwhile; whether an engine is ready is decided over HTTP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: A log line's own words start after "(EngineCore pid=12) INFO 11-29 14:26:17 [core.py:133] ".
_PREFIX = re.compile(
    r"^(?:\([^()]*\bpid=\d+\) ?)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"(?:\[[^\]]*:\d+\] ?)?)?"
)
_KV_CACHE = re.compile(
    r"KV cache size: (?P<tokens>[\d,]+) tokens, "
    r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<requests>[\d.]+)x"
)
_SHARDS = re.compile(r"Loading safetensors checkpoint shards:\s+(?P<percent>\d+)% Completed")

STARTING, LOADING, COMPILING = "starting", "loading weights", "compiling"
SIZING, WARMING, SERVING, FAILED = "sizing KV cache", "warming up", "serving", "failed"

#: The first mark found in a line says which phase begins with it.
_MARKS: tuple[tuple[str, str], ...] = (
    ("Application startup complete", SERVING),
    ("init engine (profile, create kv cache, warmup model) took", WARMING),
    ("Starting vLLM server on", WARMING),
    ("Capturing CUDA graphs", WARMING),
    ("Capturing cudagraphs", WARMING),
    ("Graph capturing finished", WARMING),
    ("KV cache size:", SIZING),
    ("Available KV cache memory:", SIZING),
    ("GiB for KV cache on node", SIZING),
    ("for vLLM's torch.compile", COMPILING),
    ("Dynamo bytecode transform", COMPILING),
    ("Compiling a graph for", COMPILING),
    ("torch.compile takes", COMPILING),
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
_ORDER = (STARTING, LOADING, COMPILING, SIZING, WARMING, SERVING)

#: An exception's own line ("ValueError: To serve at least ...") or argparse's refusal ("vllm: error: ...").
_ERROR = re.compile(r"^(?:[\w.]+(?:Error|Exception)(?:: .*)?|vllm(?: \w+)?: error: .*|Killed)$")
#: pydantic's heading; the reason stands in the next line ("  Value error, ... [type=...]").
_PYDANTIC = re.compile(r"ValidationError: \d+ validation errors? for \w+$")
_PYDANTIC_REASON = re.compile(r"^\s+(?:Value error, )?(?P<reason>.+?) \[type=[\w.]+, .*$")
#: These say only that something failed further up.
_HOLLOW = ("Engine core initialization failed", "See root cause above", "KeyboardInterrupt", "SystemExit")

_LINE_LIMIT = 600


@dataclass(frozen=True)
class KvCache:
    """What vLLM printed about its KV cache: tokens it holds, and how many requests of ``length`` tokens fit at once."""

    tokens: int
    length: int
    requests: float


@dataclass
class StartupLog:
    """Reads vLLM's log line by line. ``phase`` never goes back; ``error`` is the line that decided a failure."""

    phase: str = STARTING
    #: Within the phase, such as "50 % of the shards"; may be empty.
    detail: str = ""
    kv_cache: KvCache | None = None
    error: str = ""
    _in_pydantic: bool = field(default=False, repr=False)

    def feed(self, line: str) -> None:
        """Take in one line, with or without its line end."""
        text = _PREFIX.sub("", line.rstrip("\r\n")[: 4 * _LINE_LIMIT])
        self._notice_failure(text)
        if match := _KV_CACHE.search(text):
            self.kv_cache = KvCache(
                int(match["tokens"].replace(",", "")), int(match["length"].replace(",", "")), float(match["requests"])
            )
        for mark, phase in _MARKS:
            if mark in text:
                self._enter(phase)
                break
        if self.phase == STARTING:
            self.detail = next((detail for mark, detail in _STARTING_DETAILS if mark in text), self.detail)
        if self.phase == LOADING and (match := _SHARDS.search(text)):
            self.detail = f"{match['percent']} % of the shards"

    def failed(self) -> str:
        """The engine died: enter the phase ``failed`` and return its decisive line (empty when the log has none)."""
        self.phase = FAILED
        self.detail = self.error
        return self.error

    def _enter(self, phase: str) -> None:
        if self.phase != FAILED and _ORDER.index(phase) > _ORDER.index(self.phase):
            self.phase = phase
            self.detail = ""

    def _notice_failure(self, text: str) -> None:
        """Keep the first real reason: later exceptions are consequences of it."""
        if self._in_pydantic:
            if match := _PYDANTIC_REASON.match(text):
                self.error = match["reason"][:_LINE_LIMIT]
                self._in_pydantic = False
            return
        if self.error or any(hollow in text for hollow in _HOLLOW):
            return
        if _PYDANTIC.search(text):
            self._in_pydantic = True
        elif _ERROR.match(text):
            self.error = text[:_LINE_LIMIT]
