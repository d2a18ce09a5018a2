"""Finished requests, out of the edge's access log: the newest to look at, and what each backend did lately.

The log has no prompt and no answer; neither has the page.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from control.web.traffic import middle

#: Bytes read in one turn, and looked back at when the page starts. Under more traffic lines are skipped.
MOST_BYTES = 1024 * 1024
#: Requests shown, and remembered for the figures of a backend.
SHOWN, REMEMBERED = 200, 20_000
MAX_TEXT = 128


@dataclass(frozen=True)
class Finished:
    """One request that has ended. ``at`` in Unix seconds, times in milliseconds; None where it did not come so far."""

    at: float
    id: str
    key: str
    model: str
    backend: str
    path: str
    status: int
    end: str
    error: str
    stream: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    queue_ms: float | None
    connect_ms: float | None
    ttft_ms: float | None
    total_ms: float | None


@dataclass(frozen=True)
class Answers:
    """What one backend answered in a span: TTFT of streams in seconds, tokens per second where they are counted."""

    ttft_p50: float | None
    ttft_p99: float | None
    tokens: float


@dataclass(frozen=True)
class Used:
    """What the requests of one key took in the last hour, as far as they are remembered."""

    requests: int
    tokens: int


def parse(line: str) -> Finished | None:
    """One line of the access log; None for what is none."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or not isinstance(told.get("time"), int | float):
        return None
    return Finished(
        at=float(told["time"]),
        id=_text(told.get("id")),
        key=_text(told.get("key")),
        model=_text(told.get("model")),
        backend=_text(told.get("backend")),
        path=_text(told.get("path")),
        status=_count(told.get("status")) or 0,
        end=_text(told.get("end")),
        error=_text(told.get("error")),
        stream=told.get("stream") is True,
        prompt_tokens=_count(told.get("prompt_tokens")),
        completion_tokens=_count(told.get("completion_tokens")),
        queue_ms=_number(told.get("queue_ms")),
        connect_ms=_number(told.get("connect_ms")),
        ttft_ms=_number(told.get("ttft_ms")),
        total_ms=_number(told.get("total_ms")),
    )


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if good else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


class LogTail:
    """New whole lines of a file that grows and is rotated. A file that is not there has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """What came since the last call."""
        if self._file is None:
            self._open(back=MOST_BYTES)
        if self._file is None:
            return
        yield from self._read()
        try:
            moved = not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except OSError:
            moved = True
        if moved or self._file.tell() > os.fstat(self._file.fileno()).st_size:
            self.close()
            self._open(back=MOST_BYTES)
            yield from self._read()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _open(self, back: int) -> None:
        try:
            self._file = self._path.open("rb")
        except OSError:
            return
        size = os.fstat(self._file.fileno()).st_size
        if size > back:
            self._file.seek(size - back)
            self._file.readline()  # the rest of a line

    def _read(self) -> Iterator[str]:
        if self._file is None:
            return
        size = os.fstat(self._file.fileno()).st_size
        if size - self._file.tell() > MOST_BYTES:
            self._file.seek(size - MOST_BYTES)
            self._file.readline()
            self._rest = b""
        *whole, self._rest = (self._rest + self._file.read(MOST_BYTES)).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


class Recent:
    """The newest finished requests, and figures of each backend. The poller owns it."""

    def __init__(self, path: Path | None) -> None:
        self._tail = LogTail(path) if path is not None else None
        self._shown: deque[Finished] = deque(maxlen=SHOWN)
        self._all: deque[Finished] = deque(maxlen=REMEMBERED)

    def read(self) -> None:
        """Take what the log has got."""
        for line in self._tail.lines() if self._tail else ():
            request = parse(line)
            if request is not None:
                self._shown.append(request)
                if request.backend:
                    self._all.append(request)

    @property
    def newest(self) -> tuple[Finished, ...]:
        """The newest first."""
        return tuple(reversed(self._shown))

    def answers(self, now: float, seconds: float) -> Mapping[str, Answers]:
        """What each backend answered in the last ``seconds``."""
        ttft: dict[str, list[float]] = defaultdict(list)
        tokens: dict[str, float] = defaultdict(float)
        for request in reversed(self._all):
            if request.at < now - seconds:
                break
            tokens[request.backend] += request.completion_tokens or 0
            if request.stream and request.ttft_ms is not None:
                ttft[request.backend].append(request.ttft_ms / 1000)
        return {
            name: Answers(middle(ttft[name], 0.5), middle(ttft[name], 0.99), count / seconds)
            for name, count in tokens.items()
        }

    def used(self, now: float, seconds: float = 3600.0) -> Mapping[str, Used]:
        """What each key took in the last ``seconds``: requests that an engine got, and prompt and answer tokens."""
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for request in reversed(self._all):
            if request.at < now - seconds:
                break
            if request.key:
                found[request.key][0] += 1
                found[request.key][1] += (request.prompt_tokens or 0) + (request.completion_tokens or 0)
        return {name: Used(*counts) for name, counts in found.items()}
