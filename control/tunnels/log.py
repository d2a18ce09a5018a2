"""What ssh says, read from its log while it says it."""

from __future__ import annotations

import os
from pathlib import Path

#: A log beyond this many bytes moves to ssh.log.1: an engine that does not listen gives a line for each probe.
LIMIT = 256 * 1024
_TAIL = 16 * 1024
_LINES = 40


class SshLog:
    """Follows ssh.log from where this ssh's own lines begin."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._start = self._seen = start

    def news(self) -> list[str]:
        """Whole lines since the last call, the last 16 KB of them."""
        lines = self._read(self._seen)
        self._seen = self._size()
        return lines

    def lines(self) -> list[str]:
        """The last lines of this ssh."""
        return self._read(self._start)[-_LINES:]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _read(self, start: int) -> list[str]:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0 if size < start else max(start, size - _TAIL))  # smaller: it was cut
                return file.read(_TAIL).decode(errors="replace").replace("\r", "\n").splitlines()
        except OSError:
            return []
