"""Edges whose engines have limits, and clients that wait in their queues."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.raw import RawClient


def limited(*engines: ScriptedEngine, limit: int | None = 1, timeouts: dict[str, str] | None = None, **queue: Any
            ) -> dict[str, Any]:  # fmt: skip
    """A fleet of model alpha on these engines, each with ``limit``; ``queue``: max_waiting, timeout."""
    bound = {"limit": limit} if limit else {}
    backends = [{"id": f"alpha-{n}", "url": engine.url, **bound} for n, engine in enumerate(engines, 1)]
    model: dict[str, Any] = {"backends": backends, "queue": queue, "routing": {"policy": "least_loaded"}}
    if timeouts:
        model["timeouts"] = timeouts
    return {"models": {"alpha": model}}


def queue_length(edge: Edge) -> int:
    return sum(model["queue_length"] for model in edge.state()["models"])


def send(edge: Edge, name: str = "", **body: Any) -> RawClient:
    """A client that has sent a chat request with ``name`` as its id; ``body``: see ``chat``."""
    client = edge.raw()
    client.request(CHAT, chat("alpha", **body), headers={"X-Request-Id": name} if name else None)
    return client


def hold(edge: Edge, name: str = "hold") -> RawClient:
    """A stream that keeps its slot until its client closes."""
    client = send(edge, name, stream=True, tokens=100_000, delay_ms=50)
    assert client.head().status == 200
    return client


def line_up(edge: Edge, *names: str, **body: Any) -> list[RawClient]:
    """Clients that wait in this order: each one has its place before the next one comes."""
    clients = []
    for name in names:
        before = queue_length(edge)
        clients.append(send(edge, name, **body))
        wait_until(f"{name} to wait", lambda before=before: queue_length(edge) > before)  # type: ignore[misc]
    return clients


@contextlib.contextmanager
def through(edge: Edge, worker: int) -> Iterator[None]:
    """New connections are accepted by this worker: the others stand still meanwhile."""
    others = [pid for pid in edge.workers() if pid != worker]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def served(engine: ScriptedEngine) -> list[str]:
    """Ids of the last requests in the order in which they reached the engine."""
    return [str(request["id"]) for request in engine.counters()["requests"]]
