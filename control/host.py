"""Facts of this machine, by psutil, as the page shows them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class HostFacts:
    """This machine at one moment. Memory in bytes; ``cpu_percent`` is the mean of all CPUs since the call before."""

    name: str
    cpus: int
    cpu_percent: float
    load_1m: float
    memory_total: int
    memory_used: int
    #: TCP sockets in use; None where the system does not say.
    sockets: int | None = None


@dataclass(frozen=True)
class ProcessFacts:
    """One process. ``cpu_percent`` of one CPU since the look before; ``memory`` in bytes (RSS)."""

    cpu_percent: float
    memory: int


class Processes:
    """Looks at the same processes again and again. From one thread only."""

    def __init__(self, name: str) -> None:
        """``name``: what they are called; a number that means another process here (a container's) is left out."""
        self._name = name
        self._known: dict[int, psutil.Process] = {}

    def read(self, pids: Iterable[int]) -> dict[int, ProcessFacts]:
        """Those of ``pids`` that can be seen."""
        known, self._known = self._known, {}
        found = {}
        for pid in pids:
            try:
                process = known.get(pid) or psutil.Process(pid)
                if process.name() != self._name:
                    continue
                found[pid] = ProcessFacts(process.cpu_percent(interval=None), process.memory_info().rss)
                self._known[pid] = process
            except (psutil.Error, ValueError):
                continue
        return found


def read_host() -> HostFacts:
    """Read the facts now. Call it from one thread only: psutil measures CPU use between two calls."""
    memory = psutil.virtual_memory()
    return HostFacts(
        name=socket.gethostname(),
        cpus=psutil.cpu_count() or 1,
        cpu_percent=float(psutil.cpu_percent(interval=None)),
        load_1m=os.getloadavg()[0],
        memory_total=int(memory.total),
        memory_used=int(memory.total - memory.available),
        sockets=_sockets(),
    )


def _sockets() -> int | None:
    """Linux counts them; a list of all would cost time for each of many thousands."""
    found = []
    for name in ("sockstat", "sockstat6"):
        try:
            text = (Path("/proc/net") / name).read_text()
        except OSError:
            continue
        found += [int(count) for count in re.findall(r"^TCP6?: inuse (\d+)", text, re.M)]
    return sum(found) if found else None


def memory_total() -> int:
    """Bytes of this machine's memory; from any thread."""
    return int(psutil.virtual_memory().total)


def pid_namespace() -> str:
    """Names the set of processes in which ours has its number: a container has one of its own. Empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
