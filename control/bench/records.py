"""What the load generator wrote down of each request, as one ``Request`` each. Pure.

AIPerf's raw export has every event of every stream with the time at which it was read. Its own figures are not used:
they count a stream that was cut after finish_reason, or that the engine aborted, as a success.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from control.bench.results import FailureKind
from control.errors import BenchRunError

#: Members of a delta that hold what the model wrote. The role chunk has an empty ``content``.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_ERROR_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Request:
    """One request and how it went. Durations are seconds from its start.

    ``due`` and ``started`` are Unix seconds: when it should have been sent, and when it was. ``ttft``: until the first
    event with text, reasoning or a tool call. ``e2e``: until the last event with a choice, or until it failed.
    ``itl``: between events with tokens; two that were read at once have 0 between them. ``output_tokens`` is the
    engine's own count (usage). ``failure`` is None for a whole answer alone.
    """

    id: str
    group: str
    conversation: str
    turn: int
    due: float
    started: float
    e2e: float
    ttft: float | None = None
    itl: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    failure: FailureKind | None = None
    status: int | None = None
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first: (E2E - TTFT) / (n - 1), n from usage; None with fewer than two."""
        if self.ttft is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    def to_json(self) -> str:
        """One line of a requests file."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, "", [])}
        values["itl"] = [round(gap, 6) for gap in self.itl]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Request:
        """Raises BenchRunError for a line that ``to_json`` did not write."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise BenchRunError(f"A requests file has a line that is none: {line[:80]!r}.", "Measure again.") from error


def as_scheduled(requests: Sequence[Request], schedule: Mapping[str, float]) -> list[Request]:
    """The requests with ``due`` as their schedule says, the earliest one having been in time.

    Otherwise a sender that issues its own requests late would count as one that is never late.
    """
    if not schedule or not requests:
        return list(requests)
    zero = min(one.due - schedule[one.conversation] for one in requests)
    return [replace(one, due=zero + schedule[one.conversation]) for one in requests]


def group_of(conversation: str) -> str:
    """``short`` of the conversation ``short:0012``: datasets name their conversations so."""
    return conversation.rpartition(":")[0] or conversation


def read(lines: Iterable[str], phase: str = "profiling") -> Iterator[Request]:
    """The requests of AIPerf's ``profile_export_raw.jsonl`` that belong to ``phase`` (``warmup`` is the other one)."""
    for line in lines:
        record = json.loads(line)
        if record["metadata"]["benchmark_phase"] == phase:
            yield request(record)


def request(record: dict[str, Any]) -> Request:
    """One record of the raw export as a Request."""
    about, begin = record["metadata"], record["start_perf_ns"]
    stream = _Stream()
    for answer in record.get("responses") or ():
        stream.event((answer["perf_ns"] - begin) / 1e9, _data(answer))
    error, status = record.get("error"), record.get("status")
    failure = _failure(stream, error, status)
    told = (error or {}).get("message") or stream.error
    usage = stream.usage
    ended = (about["request_end_ns"] - about["request_start_ns"]) / 1e9
    return Request(
        id=about["x_request_id"],
        group=group_of(about["conversation_id"]),
        conversation=about["conversation_id"],
        turn=about["turn_index"],
        due=about["credit_issued_ns"] / 1e9,
        started=about["request_start_ns"] / 1e9,
        e2e=stream.last if failure is None else ended,
        ttft=stream.tokens[0] if stream.tokens else None,
        itl=[later - earlier for earlier, later in zip(stream.tokens, stream.tokens[1:], strict=False)],
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        failure=failure,
        status=status,
        error=str(told)[:_ERROR_LENGTH] if failure else "",
    )


def _data(answer: dict[str, Any]) -> list[str]:
    """The ``data`` of one event; an answer that is no stream has its whole text."""
    if "packets" in answer:
        return [packet["value"] for packet in answer["packets"] if packet["name"] == "data" and packet["value"]]
    return [answer["text"]] if answer.get("text") else []


class _Stream:
    """What the events of one stream add up to."""

    def __init__(self) -> None:
        self.tokens: list[float] = []  # times of events with tokens
        self.last = 0.0  # time of the last event with a choice
        self.reasons: set[str] = set()
        self.usage: dict[str, int] = {}
        self.error = ""
        self.done = False

    def event(self, at: float, data: list[str]) -> None:
        for text in data:
            if text.strip() == "[DONE]":
                self.done = True
                continue
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if not isinstance(value, dict):
                continue
            if value.get("error"):
                self.error = self.error or json.dumps(value["error"])
            if isinstance(value.get("usage"), dict):  # with "choices": [] at the end, or in every chunk
                self.usage = value["usage"]
            for choice in value.get("choices") or ():
                self._choice(at, choice)

    def _choice(self, at: float, choice: dict[str, Any]) -> None:
        self.last = at
        if choice.get("finish_reason"):
            self.reasons.add(choice["finish_reason"])
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in _TEXTS) or delta.get("tool_calls"):
            self.tokens.append(at)


def _failure(stream: _Stream, error: dict[str, Any] | None, status: int | None) -> FailureKind | None:
    """Why this is no whole answer; None when it is one."""
    kinds = set((error or {}).get("cause_chain") or ()) | {(error or {}).get("type")}
    if status is not None and not 200 <= status < 300:
        return "http"
    if kinds & {"TimeoutError", "RequestSendTimeout", "ServerTimeoutError", "SocketTimeoutError"}:
        return "timeout"
    if stream.error or "SSEResponseError" in kinds:
        return "error_event"
    if "abort" in stream.reasons:
        return "aborted"
    if status is None:
        return "connect" if error else "other"
    if error and "InvalidInferenceResultError" not in kinds:
        return "cut" if "ClientPayloadError" in kinds or stream.tokens else "connect"
    if not stream.tokens:
        return "empty"
    if not stream.reasons or not stream.done:
        return "cut"
    return None if stream.usage else "no_usage"
