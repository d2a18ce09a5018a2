"""What takes longer than a request of the page: commands about containers, each in a process of its own."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from control.errors import ControlError

#: So many are remembered; so much of each one's output is shown.
KEPT, OUTPUT = 20, 4000


@dataclass(frozen=True)
class Job:
    """One command. ``backend``: which it is about; ``began`` and ``ended`` in Unix seconds."""

    backend: str
    what: str
    state: Literal["running", "done", "failed"]
    began: float
    ended: float | None = None
    output: str = ""


class Jobs:
    """The commands that run, one at a time for each backend, and the last that ran."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[Job] = []

    def all(self) -> tuple[Job, ...]:
        """The newest first."""
        with self._lock:
            return tuple(reversed(self._jobs))

    def start(self, backend: str, what: str, command: Sequence[str], done: Callable[[Job], None]) -> None:
        """Run ``command``; ``done`` gets the finished job. Raises ControlError while another one is at this backend."""
        job = Job(backend, what, "running", time.time())
        with self._lock:
            if any(one.backend == backend and one.state == "running" for one in self._jobs):
                raise ControlError(f"something is already being done with {backend}", "Wait until it has ended.")
            self._jobs = [*self._jobs[-KEPT + 1 :], job]
        threading.Thread(target=self._run, args=(job, list(command), done), name=f"job {backend}", daemon=True).start()

    def _run(self, job: Job, command: list[str], done: Callable[[Job], None]) -> None:
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            output, good = ran.stdout.decode(errors="replace"), ran.returncode == 0
        except OSError as error:
            output, good = str(error), False
        ended = replace(job, state="done" if good else "failed", ended=time.time(), output=output[-OUTPUT:])
        with self._lock:
            self._jobs = [ended if one is job else one for one in self._jobs]
        done(ended)
