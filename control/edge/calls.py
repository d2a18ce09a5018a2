"""Calls of an edge that runs in the foreground (``signalbox start --foreground``), perhaps in another container.

A process id says nothing in another container. A socket in the state folder does: who listens there lives, and can be
asked to reload.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from control.errors import EdgeError
from control.paths import StatePaths

#: Seconds that a reload may take: rendering, nginx's test, and new workers that do not come (``apply``).
CALL_TIMEOUT = 90.0
#: Bytes of one call or answer.
LONGEST = 1024 * 1024


@contextlib.contextmanager
def address(paths: StatePaths) -> Iterator[str]:
    """The socket's path for bind and connect, short however long the folder's is (the system allows 107 bytes)."""
    folder = os.open(paths.foreground.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{paths.foreground.name}"
    finally:
        os.close(folder)


def answers(paths: StatePaths) -> bool:
    """Whether an edge runs in the foreground from this state folder, here or in another container."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(2.0)
        try:
            with address(paths) as at:
                connection.connect(at)
        except OSError:
            return False
    return True


def require_none(paths: StatePaths) -> None:
    """Raises EdgeError when an edge runs in the foreground from this state folder."""
    if answers(paths):
        raise EdgeError("the edge already runs in the foreground", "`signalbox reload` applies changes.")


def reload(paths: StatePaths) -> list[str] | None:
    """Make the edge that runs in the foreground render and take fleet.yaml; what happened, in words.

    None when there is none. Raises EdgeError with its reason when it refuses, or does not answer.
    """
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(CALL_TIMEOUT)
        try:
            with address(paths) as at:
                connection.connect(at)
        except PermissionError:
            raise EdgeError(
                "the edge belongs to another user", "Use the account (or container) that started it."
            ) from None
        except OSError:
            return None
        try:
            connection.sendall(b"reload\n")
            answer = json.loads(_all(connection))
        except (OSError, ValueError) as error:
            raise EdgeError(
                f"the edge that runs in the foreground did not answer: {error}",
                "Its own output (`docker compose logs edge`, `journalctl -u signalbox-edge`) says what it does.",
            ) from error
    return _said(answer)


def _said(answer: dict[str, Any]) -> list[str]:
    if "error" in answer:
        raise EdgeError(str(answer["error"]), str(answer.get("hint", "")))
    return [str(line) for line in answer["lines"]]


def _all(connection: socket.socket) -> bytes:
    parts = bytearray()
    while len(parts) < LONGEST and (part := connection.recv(65_536)):
        parts += part
    return bytes(parts)
