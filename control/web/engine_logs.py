"""The end of an engine's log: of files, also of the one before the last cut; of containers, asked of Docker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from control.errors import SignalboxError

#: Bytes that are read of the file and of the one before it; lines that are shown; characters of each.
MOST_BYTES, MOST_LINES, MAX_LINE = 2 * 1024 * 1024, 1000, 2000
#: Seconds that a container's output is kept: asking for it costs a connection.
KEPT = 5.0

Container = Callable[[str, int], bytes | None]


@dataclass(frozen=True)
class LogEnd:
    """The last ``lines`` that have what was looked for. ``live``: it can be looked at every second."""

    lines: tuple[str, ...]
    live: bool
    problem: str = ""


class EngineLogs:
    """Reads logs of engines. ``container`` gives a container's output, None for an engine whose log is a file."""

    def __init__(self, folder: Callable[[str], Path], container: Container) -> None:
        self._folder = folder
        self._container = container
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, bytes | None, str]] = {}

    def end(self, backend: str, lines: int = 200, search: str = "", ask: bool = True) -> LogEnd:
        """The end of the log, only lines with ``search`` (in any case of letters) when it is given.

        Without ``ask`` nobody is asked for a container's output: what was seen last is given.
        """
        kept = self._of_container(backend, ask)
        if kept is None or kept[1] is None:
            problem = kept[2] if kept else ""
            folder = self._folder(backend)
            data = _tail(folder / "engine.log.1", MOST_BYTES) + _tail(folder / "engine.log", MOST_BYTES)
            return LogEnd(_last(data, lines, search), not problem, problem)
        return LogEnd(_last(kept[1], lines, search), False, kept[2])

    def _of_container(self, backend: str, ask: bool) -> tuple[float, bytes | None, str] | None:
        with self._lock:
            kept = self._kept.get(backend)
        if not ask or (kept is not None and time.monotonic() - kept[0] < KEPT):
            return kept
        try:
            fresh = (time.monotonic(), self._container(backend, MOST_LINES), "")
        except SignalboxError as error:
            fresh = (time.monotonic(), None, f"{error.message} {error.hint}".strip())
        with self._lock:
            if len(self._kept) > 200:
                self._kept.clear()
            self._kept[backend] = fresh
        return fresh


def _tail(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of a file; nothing of one that is not there."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError:
        return b""


def _last(data: bytes, lines: int, search: str) -> tuple[str, ...]:
    wanted = search.lower()
    count = max(1, min(lines, MOST_LINES))
    found: list[str] = []
    for line in reversed(data.decode(errors="replace").splitlines()):
        if not wanted or wanted in line.lower():
            found.append(line[:MAX_LINE])
            if len(found) >= count:
                break
    return tuple(reversed(found))
