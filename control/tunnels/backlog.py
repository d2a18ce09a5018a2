"""Does whoever listens at a local address still take connections in? The kernel counts those that wait for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds between two knocks, and after which a listener that took in none of them is hung.
KNOCK, HUNG = 5.0, 15.0
_LISTEN = "0A"


def waiting(address: tuple[str, int]) -> int:
    """How many connections to a listener of this machine wait to be taken in; 0 also where that is not known."""
    name = "tcp6" if ":" in address[0] else "tcp"
    try:
        return pending(Path("/proc/net", name).read_text(), address)
    except OSError:
        return 0


def pending(text: str, address: tuple[str, int]) -> int:
    """The same out of /proc/net/tcp or tcp6: of a listening socket, rx_queue is its queue (``get_tcp4_sock``)."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The kernel prints each 32 bits of the address as a number of the machine's own byte order.
    words = struct.iter_unpack("=I", socket.inet_pton(family, host))
    place = f"{''.join(f'{word:08X}' for (word,) in words)}:{port:04X}"
    for line in text.splitlines()[1:]:
        cells = line.split()
        if len(cells) > 4 and cells[1] == place and cells[3] == _LISTEN:
            return int(cells[4].partition(":")[2], 16)
    return 0


class Knocks:
    """Knocks at a listener now and then, and says when it has taken in nothing for too long."""

    def __init__(self, address: tuple[str, int], now: Callable[[], float] = time.monotonic) -> None:
        """``now``: a clock in seconds that nobody sets."""
        self._address, self._now = address, now
        self._next = now() + KNOCK
        self._since: float | None = None

    def hung(self) -> bool:
        """Whether it is hung. Called often; it knocks when it is time to."""
        now = self._now()
        if now < self._next:
            return False
        self._next = now + KNOCK
        if not waiting(self._address):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= HUNG:
            return True
        with contextlib.suppress(OSError):  # what is there is found out by others
            socket.create_connection(self._address, timeout=1).close()
        return False
