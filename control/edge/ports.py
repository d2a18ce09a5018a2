"""Is an address free to listen on, and if not, who has it?"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterable

import psutil

from control.errors import EdgeError
from control.fleet.address import overlap


def split(address: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[V6]:PORT`` as host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on, below the range from which outgoing connections take theirs."""
    for _ in range(200):
        port = random.randrange(12_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise EdgeError("no free port was found on 127.0.0.1", "Are thousands of programs listening here?")


def require_free(addresses: Iterable[str]) -> None:
    """Raise EdgeError, naming who has it, when nginx could not listen on one of ``addresses``."""
    for address in addresses:
        host, port = split(address)
        try:
            family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except socket.gaierror as error:
            raise _problem(address, port, error) from error
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as nginx does: TIME_WAIT is no obstacle
            try:
                listener.bind(target)
                listener.listen(1)
            except OSError as error:
                raise _problem(address, port, error) from error


def require_movable(old: Iterable[str], new: Iterable[str], key: str) -> None:
    """Raise EdgeError when an edge that listens on ``old`` cannot come to listen on one of ``new`` by a reload.

    nginx opens new sockets before it closes old ones, and 0.0.0.0:P cannot be bound while 127.0.0.1:P is.
    """
    taken = [(address, *split(address)) for address in old]
    for address in new:
        host, port = split(address)
        for before, its_host, its_port in taken:
            if port == its_port and overlap(host, its_host):
                raise EdgeError(
                    f"{key} moves from {before} to {address} on the same port; nginx cannot do that while it runs",
                    "Stop the edge and start it again: `make stop` and `make run` (or `signalbox stop` and "
                    "`signalbox start`).",
                )


def _problem(address: str, port: int, error: OSError) -> EdgeError:
    if error.errno == errno.EADDRINUSE:
        return EdgeError(
            f"{address} is in use by {holder(port)}",
            "Stop that program, or give another port in fleet.yaml (edge.listen, edge.admin).",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return EdgeError(
            f"this user may not listen on {address}",
            "Use a port from 1024 on in fleet.yaml, or start the edge with sudo.",
        )
    return EdgeError(f"{address} cannot be listened on: {error.strerror}", "Correct it in fleet.yaml.")


def holder(port: int) -> str:
    """The process that listens on TCP ``port``, in words. Other users' processes are only visible to root."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        connections = []
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.pid is None or tuple(connection.laddr)[1:2] != (port,):
            continue
        try:
            process = psutil.Process(connection.pid)
            name = process.name()  # never its arguments: they may hold a key, and this text reaches logs and the page
        except psutil.Error:
            continue
        return f"process {connection.pid} ({name})"
    return "another program"
