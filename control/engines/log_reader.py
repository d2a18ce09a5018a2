"""Follows an engine's log file while the engine writes it."""

from __future__ import annotations

import time
from pathlib import Path

from control.engines.phases import Timeline
from control.engines.readiness import StartupLog


class LogReader:
    """Follows engine.log from where this engine's own lines begin."""

    def __init__(self, path: Path, start: int, began: float | None = None) -> None:
        """``start``: the byte where they begin; ``began``: when this start did, in Unix seconds (None: now)."""
        self._path = path
        self._position = start
        self._rest = b""
        self.startup = StartupLog(Timeline(time.time() if began is None else began))

    def read(self) -> None:
        """Take in what is new, at most 1 MB at a time. A log that was cut is read from its new beginning."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._position:
                    self._position, self._rest = 0, b""
                file.seek(self._position)
                new = file.read(1024**2)
        except OSError:
            return
        self._position += len(new)
        *lines, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-65_536:]
        now = time.time()
        for line in lines:
            self.startup.feed(line.decode(errors="replace"), now)
        self.startup.forget_old_errors(time.monotonic())
