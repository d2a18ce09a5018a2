"""Why an engine died: one sentence, the cure, and the log's decisive lines. Pure.

The texts that it knows are those of vLLM 0.32 and what it stands on; docs/engines.md lists them with their cures.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from re import Match, Pattern

from control.engines.args import EngineSpec
from control.engines.evidence import Finding
from control.engines.facts import Facts
from control.engines.phases import SERVING, STARTING
from control.fleet.units import Bytes

#: What a shell or a container says of a process that a signal ended: 128 and its number.
_BY_SIGNAL = 128


@dataclass(frozen=True)
class Diagnosis:
    """``sentence``: what happened. ``cure``: what to do. ``final``: trying again without a change fails again."""

    kind: str
    sentence: str
    cure: str
    lines: tuple[str, ...] = ()
    final: bool = False

    def text(self) -> str:
        """Sentence and cure in one line."""
        return f"{self.sentence} {self.cure}".strip()


@dataclass(frozen=True)
class Ending:
    """How a process ended. ``code`` as subprocess has it (negative: the signal); None when nobody learnt it."""

    code: int | None = None
    #: The container runtime says that the kernel killed it for memory.
    out_of_memory: bool = False
    #: It was ended by us, because it took too long: "was not ready after 600 s (...): ...".
    overdue: str = ""

    @classmethod
    def of_container(cls, code: int, out_of_memory: bool = False) -> Ending:
        """From a container's exit code, in which 137 stands for signal 9."""
        by_signal = _BY_SIGNAL < code < _BY_SIGNAL + signal.NSIG
        return cls(_BY_SIGNAL - code if by_signal else code, out_of_memory)

    def text(self) -> str:
        """The ending in words, for a sentence that begins with "The engine"."""
        if self.overdue:
            return self.overdue
        if self.code is None:
            return "ended"
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended by itself with exit code {self.code}"


@dataclass(frozen=True)
class Situation:
    """What is known of the engine that died."""

    spec: EngineSpec
    ending: Ending = Ending()
    phase: str = STARTING
    facts: Facts = field(default_factory=Facts)
    #: Memory of one of its GPUs in bytes, where it is known.
    gpu_memory: int | None = None
    #: Everything that the log gave as a reason, the first first.
    texts: Sequence[str] = field(default=())

    def key(self, name: str) -> str:
        """Where a field of the engine stands in fleet.yaml."""
        return f"models.{self.spec.model}.engine.{name}"

    def asked(self, name: str) -> object:
        """What fleet.yaml gives for a field of the engine; None without it."""
        return getattr(self.spec.engine, name, None)


#: Sentence and cure for a match; None when this is not the cause after all.
Explain = Callable[[Match[str], Situation], tuple[str, str] | None]


@dataclass(frozen=True)
class Cause:
    """One kind of failure, known by its text."""

    kind: str
    pattern: Pattern[str]
    explain: Explain
    final: bool = True


def diagnose(findings: Sequence[Finding], situation: Situation, causes: Sequence[Cause]) -> Diagnosis:
    """The first finding that a cause knows decides; then how the process ended; then the first finding as it is."""
    told = [finding for finding in findings if finding.text]
    situation = replace(situation, texts=tuple(finding.text for finding in told))
    if situation.ending.out_of_memory:
        return replace(_killed(situation), lines=_lines(told[:1]))
    for finding in told:
        for cause in causes:
            match = cause.pattern.search(finding.text)
            answer = cause.explain(match, situation) if match else None
            if answer is not None:
                return Diagnosis(cause.kind, *answer, _lines([finding]), cause.final)
    by_ending = _by_ending(situation)
    if by_ending is not None:
        return replace(by_ending, lines=_lines(told[:1]))
    ended = f"The engine {situation.ending.text()}"
    if not told:
        return Diagnosis("unknown", f"{ended}, and its log gives no reason.", "Look at the end of its log.")
    return Diagnosis("unknown", f"{ended}: {told[0].text}", "", _lines(told[:1]))


def _by_ending(situation: Situation) -> Diagnosis | None:
    ending = situation.ending
    if ending.overdue:
        cure = f"Look at the end of its log; if it only needs more time, raise {situation.key('start_timeout')}."
        if "/v1/models lists " in ending.overdue:
            cure = f"It serves another model than it was told: check {situation.key('command')}, or its image."
        return Diagnosis("overdue", f"The engine {ending.text()}.", cure)
    if ending.code == -signal.SIGKILL:
        return _killed(situation)
    if ending.code == -signal.SIGBUS:
        return Diagnosis(
            "shared_memory", "The engine was ended by SIGBUS: most likely its shared memory (/dev/shm) was full.",
            "Give it more: ipc: host or a larger shm_size for a container; on the machine itself, a larger /dev/shm.",
        )  # fmt: skip
    if ending.code in (126, 127):
        what = "could not be executed" if ending.code == 126 else "was not found"
        return Diagnosis(
            "executable", f"The engine's program {what} (exit code {ending.code}).",
            f"Check {situation.key('command')}, or the image's entrypoint.", final=True,
        )  # fmt: skip
    return None


def _killed(situation: Situation) -> Diagnosis:
    sure = situation.ending.out_of_memory
    sentence = "The engine was killed (signal 9); when nobody did that, there was no memory left."
    if sure:
        sentence = "The kernel killed the engine, because it used more memory than it may."
    kv = situation.asked("kv_cache_memory")
    smaller = f"lower {situation.key('kv_cache_memory')}" if kv else "take a smaller model or KV cache"
    when = "" if situation.phase == SERVING else f" It came as far as: {situation.phase}."
    limit = situation.asked("memory")
    more = "give it more memory"
    if isinstance(limit, Bytes):
        more = f"raise {situation.key('memory')} (now {limit.text()})"
    return Diagnosis("killed", sentence + when, f"{more[0].upper()}{more[1:]}, or {smaller}.")


def _lines(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(line for finding in findings for line in finding.lines)


def cut(text: str, most: int) -> str:
    """``text``, or its beginning when it is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
