"""What an engine's log gives as reasons of its death: each error line once, with the lines that belong to it. Pure.

vLLM's last lines only say that one of its processes failed; the cause is the first error above them. It is printed by
each process that hears of it, so the same line comes several times.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

#: An exception's own line ("ValueError: To serve at least ..."), argparse's refusal, or what a shell says of a death.
_ERROR = re.compile(
    r"^(?:[\w.]+(?:Error|Exception|Exit|Enabled|NotFound)(?:: .*)?|vllm(?: \w+)?: error: .*"
    r"|Killed|Bus error.*|Segmentation fault.*|terminate called .*|exec .*: .*|.*: executable file not found.*)$"
)
#: Lines that are no exception, but name the cause of one that says nothing.
_HINT = re.compile(
    r"CUDA initialization: |died unexpectedly \(exit code: -\d+\)|NCCL WARN .*shared memory"
    r"|Failed to load model - not enough GPU memory|Available KV cache memory: -|Failed core proc\(s\): \{'"
)
#: pydantic's heading; the reason stands in the lines below it ("  Value error, ... [type=...]").
_PYDANTIC = re.compile(r"ValidationError: \d+ validation errors? for \w+$")
_PYDANTIC_END = re.compile(r" \[type=[\w.]+, .*$")
#: These say only that something failed further up.
_HOLLOW = ("Engine core initialization failed. See root cause above. Failed core proc(s): {}", "KeyboardInterrupt",
           "SystemExit", "EngineDeadError", "WorkerProc initialization failed due to an exception",
           "CancelledError", "EngineCore encountered an issue")  # fmt: skip
#: After an error line: these begin something else.
_NEXT = re.compile(
    r"^(?:$|Traceback|The above exception|During handling|\s*File \"|(?:INFO|WARNING)\b|nanobind|Process |Worker proc "
    r"|\s*For further information visit )"
)

LINE_LIMIT = 600
#: So many errors are kept, and so many lines of each.
MOST_ERRORS, MOST_LINES = 24, 5


@dataclass
class Finding:
    """One error: the line that says it, whole in ``text`` with what it continues in; ``lines`` with what was above."""

    text: str
    lines: list[str]


@dataclass
class Evidence:
    """Collects errors from log lines (without their prefixes), the first ones first."""

    findings: list[Finding] = field(default_factory=list)
    _above: deque[str] = field(default_factory=lambda: deque(maxlen=3), repr=False)
    _open: Finding | None = field(default=None, repr=False)
    _level: str = field(default="", repr=False)
    _pydantic: bool = field(default=False, repr=False)

    def feed(self, text: str, level: str = "") -> None:
        """Take in one line without its prefix; ``level`` is the prefix's, such as ``ERROR``, if it had one."""
        text = text[:LINE_LIMIT].rstrip()
        # Lines of several processes are mixed: only one of the same level can belong to the error above it.
        if self._open is not None and level == self._level and self._continues(self._open, text):
            return
        self._open, self._level = None, level
        text = re.sub(r"^\[rank\d+\]: ", "", text)
        if _PYDANTIC.search(text):
            self._begin("", [text])
            self._pydantic = self._open is not None
        elif (_ERROR.match(text) or _HINT.search(text)) and not any(hollow in text for hollow in _HOLLOW):
            frame = [line for line in self._above if line.lstrip().startswith("File ")][-1:]
            self._begin(text, [*frame, text])
        self._above.append(text)

    def add(self, text: str) -> None:
        """Take in a reason that was told otherwise, such as the container runtime's error."""
        lines = [line.strip()[:LINE_LIMIT] for line in text.strip().splitlines()]
        self.findings.insert(0, Finding(" ".join(lines), lines[:MOST_LINES]))

    def clear(self) -> None:
        """Forget all: the engine served on, so it is not what it will die of."""
        self.findings.clear()
        self._open = None

    def __bool__(self) -> bool:
        return any(finding.text for finding in self.findings)

    @property
    def first(self) -> str:
        """The first error's line; empty without any."""
        return next((finding.text for finding in self.findings if finding.text), "")

    def _begin(self, text: str, lines: list[str]) -> None:
        if len(self.findings) >= MOST_ERRORS or any(text and other.text.startswith(text) for other in self.findings):
            return
        self._open = Finding(text, lines)
        self.findings.append(self._open)

    def _continues(self, finding: Finding, text: str) -> bool:
        """Whether the line belongs to the error above it; takes it in when it does."""
        if self._pydantic and not _NEXT.match(text):
            self._pydantic = not _PYDANTIC_END.search(text) and len(finding.lines) < MOST_LINES
            text = _PYDANTIC_END.sub("", text)
            reason = text.strip().removeprefix("Value error, ").removeprefix("Assertion failed, ")
            if not self._pydantic:
                self._open = None
        elif _NEXT.match(text) or _ERROR.match(text) or len(finding.lines) >= MOST_LINES:
            return False
        else:
            reason = text.strip()
        finding.text = f"{finding.text} {reason}".strip()[:LINE_LIMIT]
        finding.lines.append(text)
        return True
