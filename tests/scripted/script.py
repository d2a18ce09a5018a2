"""What a request is told to do: slow, broken, silent."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Script:
    """Behaviour of one request. Times are milliseconds; counts of events are events that carry a token."""

    tokens: int = 16  # tokens to generate, unless max_tokens is lower
    delay_ms: float = 0  # between two token events
    first_ms: float = 0  # between the headers and the first event
    headers_after_ms: float = 0  # before anything is sent
    status: int = 0  # answer with this status and vLLM's error body
    retry_after: int = 0  # with status: a Retry-After header
    hang: bool = False  # never answer (a stream gets its headers, as vLLM does)
    die: bool = False  # read the request, then close the connection without a word
    cut_after: int = -1  # close the connection after this many events, without the terminating chunk
    abort_after: int = -1  # the same, with a TCP reset
    told_to_stop_after: int = -1  # as a SIGTERMed vLLM: finish_reason "abort" after so many tokens, [DONE], 200
    error_event_after: int = -1  # vLLM's error event, then [DONE]
    empty_stream: bool = False  # 200, event-stream headers, no event at all
    comment_first: bool = False  # a ": keep-alive" comment at once, long before the first event
    comment_every: int = 0  # the same before every n-th event
    merge: int = 1  # events per write
    split: int = 0  # bytes per write, each its own HTTP chunk
    split_ms: float = 0  # between those writes
    raw: str = ""  # the whole stream, as it is; cut_after 0 closes the connection at its end
    split_at: list[int] = field(default_factory=list)  # raw: where one write ends and the next begins
    content_length: bool = False  # raw: says its length, as some servers do
    stamp: bool = False  # every text is the time of its sending (time.time(), seconds)
    pad: int = 0  # extra bytes in every text
    null_usage: bool = False  # "usage": null in every chunk that has no usage
    headers: dict[str, str] = field(default_factory=dict)  # response headers to add
    echo: bool = False  # answer with length and SHA-256 of the body, and the headers, as they came

    @classmethod
    def names(cls) -> set[str]:
        return {one.name for one in fields(cls)}

    def changed(self, values: Any) -> Script:
        """This script with ``values`` (a JSON object) laid over it. Raises ValueError for an unknown key."""
        if values is None:
            return self
        if not isinstance(values, dict):
            raise ValueError("scripted must be an object")
        unknown = set(values) - self.names()
        if unknown:
            raise ValueError(f"scripted has no {sorted(unknown)}; it has {sorted(self.names())}")
        return replace(self, **values)
