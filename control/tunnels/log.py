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
        """Whole lines since the last call, at most 16 KB of them: the last."""
        begin, text = self._read(self._seen)
        whole = text.rpartition(b"\n")[0]
        self._seen = begin + len(whole) + 1 if whole else begin
        return _lines(whole)

    def lines(self) -> list[str]:
        """The last lines of this ssh."""
        return _lines(self._read(self._start)[1])[-_LINES:]

    def _read(self, start: int) -> tuple[int, bytes]:
        """Where what is given begins, and the end of the file; all of it when it is shorter than ``start``."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = file.seek(max(0 if size < start else start, size - _TAIL))  # shorter: it was cut
                return begin, file.read(_TAIL)
        except OSError:
            return start, b""


def _lines(text: bytes) -> list[str]:
    return text.decode(errors="replace").replace("\r", "\n").splitlines()
