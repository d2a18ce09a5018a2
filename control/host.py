"""Facts of this machine, by psutil: what the page shows, and who holds a port."""

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


def port_holder(port: int) -> str:
    """Say who listens on this TCP port, as ``name (pid 123)``; ``another process`` when the system does not tell.

    The command line is left out on purpose: it may carry somebody's secret.
    """
    try:
        listening = [c for c in psutil.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        listening = []
    for connection in listening:
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "another process"
