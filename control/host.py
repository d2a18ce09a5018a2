"""Facts of this machine, by psutil, as the page shows them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

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
    )


def pid_namespace() -> str:
    """Names the set of processes in which ours has its number: a container has one of its own. Empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
