"""The edge's log files: what error.log said since a moment, and rotation by size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

_SEVERE = re.compile(r"\[(error|crit|alert|emerg)\]|init_by_lua error")
#: nginx tries five times to get a port, so a failed bind() is not the end yet; "still could not bind()" is.
_FATAL = re.compile(r"\[emerg\](?!.* bind\(\) to )|init_by_lua error")
#: Where Lua looked for a module in vain: twenty lines that hide the one above them.
_SEARCHED = re.compile(r"\s+no (file|field) ")
#: What is read back of error.log, at most: a log that grows by more than this in a second helps nobody.
_READ_BYTES = 256 * 1024


class ErrorLog:
    """error.log from the moment of construction on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        status = path.stat() if path.exists() else None
        self._file = status.st_ino if status else 0
        self._start = status.st_size if status else 0

    def new_lines(self) -> list[str]:
        """Lines written since construction (the last 256 KiB of them)."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                rotated = end < self._start or os.fstat(file.fileno()).st_ino != self._file
                start = 0 if rotated else self._start
                file.seek(max(start, end - _READ_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def severe(self) -> list[str]:
        """New lines of level error and above, each with the lines that follow it (Lua's stack traces)."""
        lines: list[str] = []
        keep = False
        for line in self.new_lines():
            if re.match(r"\d{4}/\d\d/\d\d ", line):
                keep = _SEVERE.search(line) is not None
            if (keep or _SEVERE.search(line)) and not _SEARCHED.match(line):
                lines.append(line)
        return lines

    def fatal(self) -> bool:
        """Whether nginx wrote that it gave up a start or a reload."""
        return any(_FATAL.search(line) for line in self.new_lines())


def rotate(folder: Path, rotate_at: int, keep: int, reopen: Callable[[], None]) -> list[str]:
    """Rotate access.log and error.log of ``folder`` that have reached ``rotate_at`` bytes; returns their names.

    ``access.log`` becomes ``access.log.1`` and so on up to ``keep``; the oldest goes. ``reopen`` then tells nginx to
    open new files (``EdgeProcess.reopen_logs``). Until it does, nginx writes on to the renamed file: no line is lost.
    """
    rotated = []
    for name in ("access.log", "error.log"):
        path = folder / name
        if not path.is_file() or path.stat().st_size < rotate_at:
            continue
        for older in folder.glob(f"{name}.*"):
            if older.suffix[1:].isdigit() and int(older.suffix[1:]) >= keep:
                older.unlink()
        for number in range(keep - 1, 0, -1):
            older = folder / f"{name}.{number}"
            if older.exists():
                older.replace(folder / f"{name}.{number + 1}")
        path.replace(folder / f"{name}.1")
        rotated.append(name)
    if rotated:
        reopen()
    return rotated
