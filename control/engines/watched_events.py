"""Docker's events of one host: who ended a container, itself or somebody through Docker?"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from docker.types.daemon import CancellableStream

from control.engines.docker import DockerHost
from control.engines.plan import Found
from control.errors import EngineError
from control.paths import StatePaths

log = logging.getLogger(__name__)

#: Signals that mean an end; others (HUP, USR1 ...) only tell the engine something.
_ENDING = {"2", "3", "9", "15"}
#: Seconds to read what happened before we listened.
REPLAY = 1.0
#: Seconds without events after which containers are judged without them.
DEAF = 30.0
#: A stop that was seen so shortly before the connection ended was the Docker Engine's own end.
OWN_END = 20.0


class Kills:
    """Remembers whose containers were stopped through Docker. ``wake`` is called when anything happens."""

    def __init__(self, host: DockerHost, wake: Callable[[], None]) -> None:
        self._host, self._wake = host, wake
        self._lock = threading.Lock()
        #: Container → the host's time of a signal that ends it.
        self._killed: dict[str, float] = {}
        self._since: float | None = None
        self._listening_from = 0.0
        self._deaf_from = time.monotonic()
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._stream: CancellableStream[dict[str, Any]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"events {host.name}", daemon=True)

    def start(self) -> None:
        """Begin to listen, once ``seen`` has said from when on."""
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._closing.set()
        self._ready.set()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(Exception):  # not every kind of connection can be cut so
                stream.close()

    def seen(self, ours: Iterable[Found]) -> None:
        """These containers are there: what happened since they were started matters."""
        if not self._ready.is_set():
            ended = [found.started for found in ours if not found.alive and found.started]
            self._since = min(ended, default=None)
            self._ready.set()

    @property
    def unsure(self) -> bool:
        """Whether it is too early to say who ended a container."""
        if self._listening_from:
            return time.monotonic() - self._listening_from < REPLAY
        return time.monotonic() - self._deaf_from < DEAF

    def by_hand(self, found: Found, backend: str, paths: StatePaths) -> bool:
        """Whether somebody stopped this container through Docker since it was started; remembered on disk."""
        mark = paths.engine(backend) / "by_hand.json"
        this = {"container": found.id, "started": found.started}
        with contextlib.suppress(OSError, ValueError):
            if json.loads(mark.read_text()) == this:
                return True
        with self._lock:
            stopped = self._killed.get(found.id, 0.0) >= found.started
        if stopped:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_text(json.dumps(this) + "\n")
        return stopped

    def _run(self) -> None:
        self._ready.wait()
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._stream = self._host.events(self._since)
                self._listening_from = time.monotonic()
                with self._host.told():
                    for event in self._stream:
                        if self._closing.is_set():
                            return
                        self._take(event)
            except EngineError as error:
                log.debug("No events of %s: %s", self._host.name, error)
            self._forget_own_end()
            self._wake()
            self._closing.wait(max(0.0, 1.0 - (time.monotonic() - began)))

    def _take(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor") or {}
        container, attributes = str(actor.get("ID", "")), actor.get("Attributes") or {}
        seconds = self._since = int(event.get("timeNano", 0)) / 1e9
        with self._lock:
            if event.get("Action") == "kill" and str(attributes.get("signal")) in _ENDING:
                self._killed[container] = seconds
            elif event.get("Action") == "start" or event.get("Action") == "destroy":
                self._killed.pop(container, None)
        self._wake()

    def _forget_own_end(self) -> None:
        """The connection ended: the last stops were the Docker Engine's own, when it was told to end."""
        if self._listening_from:
            self._listening_from, self._deaf_from = 0.0, time.monotonic()
        if self._since is None:
            return
        self._since -= OWN_END  # a Docker Engine that did not end tells them again
        with self._lock:
            self._killed = {name: at for name, at in self._killed.items() if at < self._since}
