"""A client that sees bytes and the moments at which they came."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Head:
    """Status line and headers; names in lower case, the last of several wins."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


class Cut(Exception):
    """The connection ended before the answer did."""


class RawClient:
    """One TCP (or TLS) connection, used by hand. Times are ``time.time()`` seconds."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, timeout: float = 20) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.buffer = b""
        self.moment = 0.0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, path: str, body: Any = None, method: str = "POST", headers: dict[str, str] | None = None) -> None:
        """Send one request. ``body``: bytes as they are, anything else as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: edge"]
        merged = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        lines += [f"{name}: {value}" for name, value in merged.items()]
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data)

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self.moment = time.time()
        self.buffer += data
        return bool(data)

    def _line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            if not self._more():
                raise Cut(self.buffer)
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def head(self) -> Head:
        """Read status line and headers. Raises Cut."""
        head = Head(int(self._line().split(b" ", 2)[1]))
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            head.headers[name.lower()] = value.strip()
        return head

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        """Chunks of a chunked body with the time of each one's arrival. Raises Cut when the last one never comes."""
        while True:
            size = int(self._line(), 16)
            while len(self.buffer) < size + 2:
                if not self._more():
                    raise Cut(self.buffer)
            data, self.buffer = self.buffer[:size], self.buffer[size + 2 :]
            if not size:
                return
            yield self.moment, data

    def events(self) -> Iterator[tuple[float, bytes]]:
        """Server-sent events, each with the time at which its last byte came."""
        rest = b""
        for moment, data in self.chunks():
            rest += data
            while b"\n\n" in rest:
                event, rest = rest.split(b"\n\n", 1)
                yield moment, event
        assert not rest, f"half an event at the end: {rest!r}"

    def body(self, head: Head) -> bytes:
        """The whole body, however it is framed."""
        if head.headers.get("transfer-encoding") == "chunked":
            return b"".join(data for _, data in self.chunks())
        length = int(head.headers.get("content-length", "0"))
        while len(self.buffer) < length:
            if not self._more():
                raise Cut(self.buffer)
        data, self.buffer = self.buffer[:length], self.buffer[length:]
        return data

    def closed(self) -> bool:
        """Wait for the other side to close; False when it sends something or the time-out passes first."""
        try:
            return not self._more()
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
