"""One HTTP request: its parts, and the ways to answer it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import time
import uuid
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from tests.scripted.script import Script
from tests.scripted.state import Engine

JSON_TYPE = (b"content-type", b"application/json")
STREAM_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")
COMMENT = b": keep-alive\n\n"


class Event(NamedTuple):
    """Bytes of one server-sent event; ``token`` says that it carries generated text."""

    data: bytes
    token: bool = False


class Fault(Exception):
    """Ends the request with a JSON error in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


class Left(Exception):
    """The client has gone while the answer was being sent."""


class Call:
    """A request with its body read, and the answering side."""

    def __init__(self, engine: Engine, scope: dict[str, Any], body: bytes, send: Any) -> None:
        self.engine = engine
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.body = body
        self.script: Script = engine.script
        self.json: dict[str, Any] = {}
        self.arrived = time.monotonic()
        self._send = send
        self._sequences = 0
        self._has_turn = False

    def begin(self, sequences: int) -> None:
        """Count it as generating, until its last byte is about to be written or ``end``."""
        self._sequences = sequences
        self.engine.generating += sequences
        self.engine.peak = max(self.engine.peak, self.engine.generating)

    async def turn(self) -> None:
        """Wait, first come, first served, until the engine runs fewer than ``max_running`` requests; until ``end``."""
        if self.engine.turns is None:
            return
        self.engine.queued += 1
        try:
            await self.engine.turns.acquire()
            self._has_turn = True
        finally:
            self.engine.queued -= 1

    def end(self) -> None:
        self.engine.generating -= self._sequences
        self._sequences = 0
        if self._has_turn and self.engine.turns is not None:
            self._has_turn = False
            self.engine.turns.release()

    def header(self, name: str) -> str:
        wanted = name.encode().lower()
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == wanted), "")

    @property
    def request_id(self) -> str:
        return self.header("x-request-id") or uuid.uuid4().hex[:16]

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        own = [(name.lower().encode(), value.encode()) for name, value in self.script.headers.items()]
        all_headers = [*headers, (b"vary", b"Origin"), *own]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def write(self, data: bytes, more: bool = True) -> None:
        if self.scope["scripted.transport"].is_closing():
            raise Left  # uvicorn would swallow the bytes and let us go on
        if not more:
            self.end()  # whoever reads the end may send the next request at once
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, value: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """A JSON document (or nothing, for None)."""
        data = b"" if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        kind = () if value is None else (JSON_TYPE,)
        await self.start(status, ((b"content-length", str(len(data)).encode()), *kind, *headers))
        await self.write(data, more=False)

    async def fault(self, fault: Fault) -> None:
        headers = ((b"retry-after", str(self.script.retry_after).encode()),) if self.script.retry_after else ()
        if self.path.startswith("/v1/messages"):
            value: Any = {"type": "error", "error": {"type": fault.kind, "message": fault.message}}
        else:
            error = {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.status}
            value = {"error": error}
        await self.answer(fault.status, value, headers)

    async def echo(self) -> None:
        """What arrived, for tests that compare it with what was sent."""
        await self.answer(200, {
            "object": "scripted.echo", "path": self.path, "method": self.method, "length": len(self.body),
            "query": self.scope["query_string"].decode("latin-1"),
            "sha256": hashlib.sha256(self.body).hexdigest(), "instance": self.engine.instance,
            "headers": [[key.decode("latin-1"), value.decode("latin-1")] for key, value in self.scope["headers"]],
        })  # fmt: skip

    def close(self, reset: bool = False) -> None:
        """End the TCP connection as it is: no terminating chunk, no answer; ``reset`` with RST."""
        transport = self.scope["scripted.transport"]
        if not reset:
            transport.close()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def stream(self, events: Iterable[Event]) -> None:
        """Send events as vLLM does: headers at once, one chunk per event, and whatever the script spoils."""
        script = self.script
        if script.raw:
            await self._stream_raw()
            return
        await self.start(200, (STREAM_TYPE,))
        await self.write(b"")  # uvicorn sends the headers now
        if script.hang:
            await asyncio.Event().wait()
        await self.engine.melt()
        if script.empty_stream:
            await self.write(b"", more=False)
            return
        if script.comment_first:
            await self.write(COMMENT)
        await self.turn()
        await self.engine.work(script.first_ms)
        pending: list[bytes] = []
        sent = 0
        previous = 0.0
        for number, event in enumerate(_spaced(events)):
            if event is None:
                if sent and script.delay_ms:
                    await self._flush(pending, script.merge)
                    await asyncio.sleep(script.delay_ms / 1000)
                if self.engine.frozen:
                    await self._flush(pending)
                    await self.engine.melt()
                continue
            if sent in (script.cut_after, script.abort_after):
                await self._flush(pending)
                self.close(reset=sent == script.abort_after)
                return
            if sent == script.error_event_after:
                await self._flush(pending)
                await self.write(FAULTS.get(self.scope["path"], ENGINE_DIED + b"data: [DONE]\n\n"), more=False)
                return
            if script.comment_every and number % script.comment_every == 0:
                pending.append(COMMENT)
            pending.append(event.data)
            if event.token:
                sent += 1
                now = time.monotonic()
                if sent == 1:
                    self.engine.ttft.observe(now - self.arrived)
                else:
                    self.engine.itl.observe(now - previous)
                previous = now
            await self._flush(pending, script.merge)
        await self._flush(pending)
        await self.write(b"", more=False)

    async def _stream_raw(self) -> None:
        script = self.script
        data = script.raw.encode()
        length = ((b"content-length", str(len(data)).encode()),) if script.content_length else ()
        await self.start(200, (STREAM_TYPE, *length))
        places = script.split_at or range(script.split or len(data), len(data), script.split or 1)
        for start, end in pairwise([0, *places, len(data)]):
            await self.write(data[start:end])
            await asyncio.sleep(script.split_ms / 1000)
        if script.cut_after == 0:
            self.close()
            return
        await self.write(b"", more=False)

    async def _flush(self, pending: list[bytes], at_least: int = 1) -> None:
        if len(pending) < max(at_least, 1):
            return
        data = b"".join(pending)
        pending.clear()
        size = self.script.split or len(data)
        for start in range(0, len(data), size):
            await self.write(data[start : start + size])
            if self.script.split_ms:
                await asyncio.sleep(self.script.split_ms / 1000)


def _spaced(events: Iterable[Event]) -> Iterable[Event | None]:
    """None stands before every token event: the place where time passes, before the event's text is made."""
    iterator = iter(events)
    while True:
        yield None
        for event in iterator:
            yield event
            if event.token:
                break
        else:
            return


def sse(value: Any, name: str = "") -> bytes:
    """One event of the stream; ``name`` for the APIs that name their events."""
    data = b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    return f"event: {name}\n".encode() + data if name else data


ENGINE_DIED = sse({"error": {
    "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "type": "InternalServerError", "param": None, "code": 500,
}})  # fmt: skip
#: How other APIs say it inside a stream.
FAULTS = {
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"It died."}}\n\n',
    "/v1/responses": b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed"}}\n\n',
}
