"""What nvidia-smi in an engine's own container says of its GPUs, read as it comes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from control.engines.docker import DockerHost
from control.engines.gpus import QUERY, Gpu, from_nvidia_smi
from control.engines.samples import FRESH, INTERVAL
from control.errors import EngineError

log = logging.getLogger(__name__)

#: nvidia-smi is started anew so often (seconds): one whose reader was killed is soon gone.
LIFE = 300
#: Seconds until a container is asked again whose image has no nvidia-smi, or that did not answer.
ABSENT, AWAY = 600.0, 30.0


class GpuFeed:
    """One program in the container that repeats itself: a process every five minutes, not one for each look."""

    def __init__(self, host: DockerHost, container: str) -> None:
        self._host, self._container = host, container
        self._rows: dict[int, tuple[float, Gpu]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gpus {container[:12]}", daemon=True)
        self._thread.start()

    def gpus(self) -> list[Gpu]:
        """The GPUs as they were a moment ago; empty when nothing is known of them."""
        oldest = time.monotonic() - FRESH
        return [gpu for seen, gpu in list(self._rows.values()) if seen >= oldest]

    def close(self) -> None:
        """Read no more. Returns at once."""
        self._closing.set()

    def _run(self) -> None:
        command = ("timeout", str(LIFE), *QUERY, "-l", str(round(INTERVAL)))
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                with contextlib.closing(self._host.run_inside(self._container, command)) as lines:
                    for line in lines:
                        if self._closing.is_set():
                            return
                        if gpu := from_nvidia_smi(line):
                            self._rows[gpu.index] = (time.monotonic(), gpu)
                told = any(seen >= began for seen, _ in list(self._rows.values()))
                pause = 0.5 if told else ABSENT
            except EngineError as error:
                log.debug("No nvidia-smi in the container %s: %s", self._container[:12], error)
                pause = AWAY
            except Exception:
                log.exception("The GPUs of the container %s cannot be read.", self._container[:12])
                pause = ABSENT
            self._closing.wait(pause)
