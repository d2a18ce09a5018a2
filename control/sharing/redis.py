"""Calls of Redis by the control plane, as rare as a change of the fleet: one connection each time, RESP2.

The edge's own client is lua/edge/redis.lua. These few commands need no library.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from control.errors import SharingError
from control.fleet.shared_state import SharedState

#: Seconds for each step, at least: a person or a loop waits here, no request.
PATIENCE = 2.0
#: No reply that we ask for is larger: whoever sends more is no Redis.
MAX_BYTES, MAX_ITEMS, MAX_LINE = 64 * 1024**2, 1000, 64 * 1024

Reply = str | int | None | list["Reply"]


class Connection:
    """One connection, greeted: ``call`` sends a command and waits for its reply."""

    def __init__(self, link: socket.socket, answers: BinaryIO) -> None:
        self._link = link
        self._answers = answers

    def call(self, *words: str | int) -> Reply:
        """The reply to one command. Raises SharingError when Redis refuses it, OSError when the connection fails."""
        parts = [str(word).encode() for word in words]
        self._link.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        return self._read()

    def _read(self) -> Reply:
        line = self._answers.readline(MAX_LINE)
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection was closed" if not line else "this is not Redis' protocol")
        kind, rest = line[:1], line[1:-2].decode(errors="replace")
        if kind == b"-":
            raise SharingError(f"Redis refuses: {rest}")
        if kind == b"+":
            return rest
        if kind in b":$*" and rest.lstrip("-").isdigit():
            number = int(rest)
            if kind == b":":
                return number
            if number < 0:
                return None
            if kind == b"$" and number <= MAX_BYTES:
                return self._bulk(number)
            if kind == b"*" and number <= MAX_ITEMS:
                return [self._read() for _ in range(number)]
        raise ConnectionError("this is not Redis' protocol")

    def _bulk(self, size: int) -> str:
        data = self._answers.read(size + 2)
        if len(data) < size + 2:
            raise ConnectionError("the connection was closed")
        return data[:-2].decode(errors="replace")


@contextlib.contextmanager
def connected(state: SharedState) -> Iterator[Connection]:
    """A connection to the Redis (the sentinels' master) of a fleet, with its password and database.

    Raises SharingError, also for an OSError inside the block: with why, and what to do.
    """
    address = f"{state.host}:{state.port}"
    try:
        if state.sentinels:
            address = f"the sentinels of {state.master}"
            host, port = _master(state)
            address = f"{host}:{port}"
        else:
            host, port = state.host, state.port
        with _open(host, port, state) as (link, answers):
            connection = Connection(link, answers)
            _greet(connection, state)
            yield connection
    except ssl.SSLError as error:
        raise SharingError(f"Redis at {address}: TLS: {error.reason or error}", "Does its certificate fit?") from error
    except OSError as error:
        what = "time-out" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise SharingError(
            f"Redis at {address} does not answer: {what}", "Is edge.state right, and does it run?"
        ) from error


def _greet(connection: Connection, state: SharedState) -> None:
    password = _password(state.password_file)
    if password is not None:
        try:
            connection.call("AUTH", *([state.user] if state.user else []), password)
        except SharingError as error:
            hint = f"The password is read from {state.password_file}."
            raise SharingError(f"{error.message} (AUTH)", hint) from error
    if state.database:
        connection.call("SELECT", state.database)


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text().split("\n", 1)[0].strip()
    except OSError as error:
        raise SharingError(
            f"{file}, the password of Redis, cannot be read: {error.strerror}", "Check the path and its permissions."
        ) from error


@contextlib.contextmanager
def _open(host: str, port: int, state: SharedState, *, plain: bool = False) -> Iterator[tuple[socket.socket, BinaryIO]]:
    patience = max(PATIENCE, state.timeout / 1000)
    with socket.create_connection((host, port), timeout=patience) as bare, contextlib.ExitStack() as stack:
        link: socket.socket = bare
        if state.tls and not plain:
            # The name that fleet.yaml gives, also where a sentinel has given an address.
            link = stack.enter_context(ssl.create_default_context().wrap_socket(bare, server_hostname=state.host))
        yield link, stack.enter_context(link.makefile("rb"))


def _master(state: SharedState) -> tuple[str, int]:
    """Where the master is, as the first sentinel says that knows it. Raises SharingError when none does."""
    last = "none knows the master"
    for host, port in state.sentinels:
        try:
            with _open(host, port, state, plain=True) as (link, answers):
                found = Connection(link, answers).call("SENTINEL", "get-master-addr-by-name", str(state.master))
        except (OSError, SharingError) as error:
            last = f"{host}:{port}: {error}"
            continue
        if isinstance(found, list) and len(found) == 2:
            return str(found[0]), int(str(found[1]))
    raise SharingError(
        f"no sentinel tells where the Redis {state.master} is ({last})", "Is edge.state.sentinels right?"
    )
