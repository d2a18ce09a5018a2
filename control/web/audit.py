"""The audit log: who did what on the page, when, and what came of it. One JSON object per line, bounded."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

log = logging.getLogger(__name__)

LIMIT, KEEP = 4 * 1024 * 1024, 4
#: Names of requests come from clients.
MAX_TEXT = 500


class Audit:
    """Appends to ``path``; None keeps nothing (a page in a test)."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._handler: RotatingFileHandler | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _Raising(path, maxBytes=LIMIT, backupCount=KEEP, encoding="utf-8")

    def note(self, who: str, client: str, what: str, target: str = "", result: str = "ok") -> None:
        """One line: ``who`` at the address ``client`` did ``what`` to ``target``. A full disk is told in the log."""
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "who": who[:MAX_TEXT], "from": client,
                 "what": what, "target": target[:MAX_TEXT], "result": result[:MAX_TEXT]}  # fmt: skip
        text = json.dumps(entry, ensure_ascii=False)
        if self._handler is None:
            return
        with self._lock:
            try:
                self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))
            except OSError as error:
                log.error("The audit log cannot be written (%s): %s", error, text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Raising(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_private)

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that is lost must be told in the control plane's log, not on a terminal that nobody has."""
        error = sys.exc_info()[1]
        raise error if isinstance(error, OSError) else OSError(str(error))
