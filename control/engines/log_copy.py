"""A container's output, copied to the engine's log file while it starts: there it is read like any other engine's."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from control.engines.docker import DockerHost
from control.engines.log_reader import LogReader
from control.engines.processes import LOG_LIMIT, bound
from control.errors import EngineError

log = logging.getLogger(__name__)


class LogCopy:
    """Copies until the container ends, the file is full or ``close``. ``reader`` follows the copy."""

    def __init__(self, host: DockerHost, container: str, folder: Path, since: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._host, self._container, self._since = host, container, since
        self._file = folder / "engine.log"
        bound(self._file)
        start = self._file.stat().st_size if self._file.exists() else 0
        self.reader = LogReader(self._file, start)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"log {container[:12]}", daemon=True)
        self._thread.start()

    def finish(self, seconds: float = 2.0) -> None:
        """The container has ended: wait for its last lines."""
        self._thread.join(seconds)
        self.reader.read()

    def close(self) -> None:
        """Stop copying at the next line."""
        self._closing = True

    def _run(self) -> None:
        with contextlib.suppress(EngineError), self._file.open("ab") as file:
            for piece in self._host.logs(self._container, follow=True, since=self._since):
                file.write(piece)
                file.flush()
                if self._closing or file.tell() > LOG_LIMIT:
                    return
