"""The bench's own HTTP client: raw sockets, so that it adds as little as possible to what it times."""

from __future__ import annotations

import gc
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from control.bench.edge.load import EVENTS_PER_STREAM, KEY, PATH
from control.bench.edge.process import BenchError

#: Longest silence that any answer of the bench may have, seconds.
TIMEOUT_SECONDS = 60.0
_SENT = re.compile(rb"sent (\d+) us")


def request_bytes(body: bytes) -> bytes:
    """A POST of ``body`` as it goes over the wire."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One keep-alive connection to ``127.0.0.1:port``."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return the whole answer, head included.

        Raises BenchError unless the status is 200 and the answer is complete.
        """
        try:
            self._socket.sendall(request)
            answer = self._receive(b"")
            while not complete(answer):
                answer = self._receive(answer)
        except OSError as error:
            raise BenchError(f"{self.name}: the connection failed: {error}.", "Read its log.") from error
        check_status(self.name, answer)
        return answer

    def _receive(self, so_far: bytes) -> bytes:
        more = self._socket.recv(1 << 16)
        if not more:
            raise BenchError(f"{self.name} closed the connection in the middle of an answer.", "Read its log.")
        return so_far + more


def complete(answer: bytes) -> bool:
    """Whether an answer with Content-Length or in chunks is there to its end."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(body) >= int(length.group(1)) if length else body.endswith(b"0\r\n\r\n")


def check_status(name: str, answer: bytes) -> None:
    """Raises BenchError unless the answer's status is 200."""
    if answer[9:12] != b"200":
        raise BenchError(f"{name} answered {answer[:300].decode(errors='replace')!r}.", "Read its log.")


@contextmanager
def quiet_python() -> Iterator[None]:
    """Keep Python's garbage collector out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def latencies(ports: Mapping[str, int], body: bytes, rounds: int) -> dict[str, list[float]]:
    """Microseconds of each of ``rounds`` requests per port, one at a time, the ports taking turns in changing order."""
    request = request_bytes(body)
    connections = {name: Connection(name, port) for name, port in ports.items()}
    names = list(ports)
    taken: dict[str, list[float]] = {name: [] for name in names}
    try:
        for connection in connections.values():
            for _ in range(20):
                connection.exchange(request)
        with quiet_python():
            for turn in range(rounds):
                for offset in range(len(names)):
                    name = names[(turn + offset) % len(names)]
                    begin = time.perf_counter_ns()
                    connections[name].exchange(request)
                    taken[name].append((time.perf_counter_ns() - begin) / 1000)
    finally:
        for connection in connections.values():
            connection.close()
    return taken


@dataclass
class _Stream:
    """One stream under way: what has come and how late each event was, microseconds."""

    name: str
    socket: socket.socket
    rest: bytes = b""
    late: list[float] = field(default_factory=list)
    begun: bool = False
    ended: bool = False

    def take(self, data: bytes, now_us: float) -> None:
        if not data:
            raise BenchError(f"{self.name} cut a stream after {len(self.late)} events.", "Read its log.")
        if not self.begun:
            check_status(self.name, data)
            self.begun = True
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        self.late += [now_us - int(sent) for line in lines for sent in _SENT.findall(line)]
        self.ended = any(line.startswith(b"data: [DONE]") for line in lines)


def event_lateness(ports: Mapping[str, int], body: bytes, streams: int) -> dict[str, list[float]]:
    """Microseconds from the engine's sending an event to its arrival here, for ``streams`` streams of each port.

    One stream of each port runs at a time, a few milliseconds apart so that their events do not meet.
    """
    late: dict[str, list[float]] = {name: [] for name in ports}
    names = list(ports)
    for turn in range(streams):
        order = [names[(turn + offset) % len(names)] for offset in range(len(names))]
        for stream in _streams_side_by_side({name: ports[name] for name in order}, request_bytes(body)):
            if len(stream.late) != EVENTS_PER_STREAM:
                raise BenchError(
                    f"{stream.name} delivered {len(stream.late)} of {EVENTS_PER_STREAM} events.", "Read its log."
                )
            late[stream.name] += stream.late
    return late


def _streams_side_by_side(ports: Mapping[str, int], request: bytes) -> list[_Stream]:
    streams: list[_Stream] = []
    with selectors.DefaultSelector() as selector, quiet_python():
        try:
            for name, port in ports.items():
                stream = _Stream(name, socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS))
                streams.append(stream)
                stream.socket.sendall(request)
                selector.register(stream.socket, selectors.EVENT_READ, stream)
                time.sleep(0.02 / (len(ports) + 1))
            while not all(stream.ended for stream in streams):
                ready = selector.select(TIMEOUT_SECONDS)
                now_us = time.monotonic_ns() / 1000
                if not ready:
                    raise BenchError("A stream fell silent.", "Is one of the proxies hanging? Read its log.")
                for key, _ in ready:
                    key.data.take(key.data.socket.recv(1 << 16), now_us)
                    if key.data.ended:
                        selector.unregister(key.fileobj)
        finally:
            for stream in streams:
                stream.socket.close()
    return streams


def burst(name: str, port: int, body: bytes, requests: int, at_a_time: int) -> None:
    """Send ``requests`` bodies, ``at_a_time`` at a time. Raises BenchError when one is not answered 200."""
    request = request_bytes(body)
    _in_threads(name, port, at_a_time, lambda connection: _repeat(connection, request, requests // at_a_time))


def _repeat(connection: Connection, request: bytes, times: int) -> None:
    for _ in range(times):
        connection.exchange(request)


def _in_threads(name: str, port: int, count: int, work: Callable[[Connection], None]) -> None:
    failures: list[BenchError] = []

    def one() -> None:
        try:
            connection = Connection(name, port)
            try:
                work(connection)
            finally:
                connection.close()
        except (BenchError, OSError) as error:
            failures.append(
                error if isinstance(error, BenchError) else BenchError(f"{name}: {error}.", "Read its log.")
            )

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1e6) * len(ordered) // 1_000_000) - 1))]
