"""A process under measurement: started on one core, with the CPU time and the memory of its whole tree."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from control.errors import SignalboxError

#: How long a proxy may take to answer its first request, seconds. vllm-router imports much Python first.
START_SECONDS = 60.0


class BenchError(SignalboxError):
    """A measurement could not be made, or is not valid: nothing of it may be reported."""


@dataclass(frozen=True)
class Cores:
    """Numbers of the two cores: ``proxy`` for what is measured, ``load`` for the load generator and the fake engine."""

    proxy: int
    load: int


def two_cores() -> Cores:
    """The first two cores that this process may run on.

    Raises BenchError when there is only one: the load would then be measured with the proxy.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise BenchError(
            f"The bench needs two CPU cores and this process may use {len(allowed)}.",
            "Run it on a machine with two cores, or allow a second one (taskset, cpuset).",
        )
    return Cores(proxy=allowed[0], load=allowed[1])


class Tree:
    """One running process and its children."""

    def __init__(self, name: str, pid: int, port: int) -> None:
        self.name = name
        self.port = port
        self._root = psutil.Process(pid)

    def _members(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess as error:
            raise BenchError(f"{self.name} has ended while it was measured.", "Look at its log.") from error

    def cpu_seconds(self) -> float:
        """User and system time of all processes of the tree since each began."""
        total = 0.0
        for process in self._members():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def resident_bytes(self) -> int:
        """Resident memory of all processes of the tree; pages that they share count once for each."""
        total = 0
        for process in self._members():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_answer(
    name: str, port: int, path: str, alive: subprocess.Popen[bytes] | None, log: Path, seconds: float = START_SECONDS
) -> None:
    """Return once ``GET path`` answers 200.

    Raises BenchError when the process ends first or ``seconds`` pass.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if alive is not None and alive.poll() is not None:
            break
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    raise BenchError(f"{name} did not come up: GET {path} on port {port} never answered 200.\n{tail}", f"Read {log}.")


@contextlib.contextmanager
def pinned(
    name: str,
    command: Sequence[str],
    *,
    core: int | None,
    port: int,
    path: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = START_SECONDS,
) -> Iterator[Tree]:
    """Run ``command`` until the block ends; yields once ``GET path`` on ``port`` answers 200.

    It runs on one core, or wherever it likes when that is None. Raises BenchError when it does not start
    within ``seconds``.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*(() if core is None else ("taskset", "-c", str(core))), *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **(environment or {})},
        )
    try:
        wait_for_answer(name, port, path, process, log, seconds)
        yield Tree(name, process.pid, port)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
