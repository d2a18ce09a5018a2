"""Edges whose engines have limits, and clients that wait in their queues."""

from __future__ import annotations

from typing import Any

import psutil

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


def client_of(edge: Edge, worker: int) -> RawClient:
    """A connection that this worker has accepted. nginx gives another worker a turn after some connections."""
    strays = []
    try:
        for _ in range(100):
            client = edge.raw()
            port = client.socket.getsockname()[1]
            if wait_until("a worker to accept", lambda port=port: _acceptor(edge, port)) == worker:  # type: ignore[misc]
                return client
            strays.append(client)
        raise AssertionError(f"worker {worker} accepted none of 100 connections")
    finally:
        for client in strays:
            client.close()


def _acceptor(edge: Edge, port: int) -> int | None:
    """The worker at the other end of a client's port."""
    for pid in edge.workers():
        if any(one.raddr and one.raddr.port == port for one in psutil.Process(pid).net_connections(kind="tcp")):
            return pid
    return None


def send(edge: Edge, name: str = "", worker: int = 0, **body: Any) -> RawClient:
    """A client that has sent a chat request with ``name`` as its id, to this worker if it matters.

    ``body``: see ``chat``.
    """
    client = client_of(edge, worker) if worker else edge.raw()
    client.request(CHAT, chat("alpha", **body), headers={"X-Request-Id": name} if name else None)
    return client


def hold(edge: Edge, name: str = "hold", worker: int = 0) -> RawClient:
    """A stream that keeps its slot until its client closes."""
    client = send(edge, name, worker, stream=True, tokens=100_000, delay_ms=50)
    assert client.head().status == 200
    return client


def line_up(edge: Edge, *names: str, worker: int = 0, **body: Any) -> list[RawClient]:
    """Clients that wait in this order: each one has its place before the next one comes."""
    clients = []
    for name in names:
        before = queue_length(edge)
        clients.append(send(edge, name, worker, **body))
        wait_until(f"{name} to wait", lambda before=before: queue_length(edge) > before)  # type: ignore[misc]
    return clients


def served(engine: ScriptedEngine) -> list[str]:
    """Ids of the last requests in the order in which they reached the engine."""
    return [str(request["id"]) for request in engine.counters()["requests"]]
