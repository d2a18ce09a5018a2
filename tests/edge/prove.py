"""The edge's promises at length: ``make prove-edge`` measures them and writes docs/figures/edge.json.

Run it on a machine that does nothing else. ``python -m tests.edge.prove NAME...`` measures only some of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from tests.edge.test_reload import read_streams
from tests.edge.test_streaming import lateness
from tests.support.client import CHAT, at_once, chat, percentile
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until
from tests.support.proof import Chapter, Proof, Row, row


def connections() -> list[Row]:
    """1,000 sequential requests, every fifth over a new client connection, two workers, one engine."""
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine)) as edge:
        for number in range(1000):
            assert edge.post(CHAT, chat("alpha", tokens=1), new_connection=number % 5 == 0).ok
        used = engine.counters()["connections"]["with_post"]
    return [row("1,000 requests one after the other share their connections to the engine", used, 2, "connections",
                "two workers, one idle pool each")]  # fmt: skip


def events() -> list[Row]:
    """Events 20 ms apart: when they arrive, against the time that the engine wrote into each."""
    rows = []
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine)) as edge:
        for title, encoding in (("", "identity"), (", for a client that asks for gzip", "gzip, deflate, br")):
            late = [value for _ in range(4) for value in lateness(edge.port, encoding, 500)]
            direct = [value for _ in range(4) for value in lateness(engine.port, encoding, 500)]
            detail = f"p99 of {len(late)} events; without the edge {1000 * percentile(direct, 0.99):.1f} ms"
            promise = f"Events sent 20 ms apart arrive on time{title}"
            rows.append(row(promise, 1000 * percentile(late, 0.99), 5, "ms", detail))
    return rows


def bodies() -> list[Row]:
    """The SHA-256 of a body at the engine against the client's, plain and chunked, when nothing has to change."""
    sent = differ = 0
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine)) as edge:
        for size in (200, 1_000, 10_000, 100_000, 1_000_000, 1_100_000, 10_000_000, 60_000_000):
            messages = [{"role": "user", "content": "é/" + os.urandom(size // 2).hex()}]
            content = {
                "model": "alpha",
                "scripted": {"echo": True},
                "tools": [],
                "seed": 2**60 + 1,
                "messages": messages,
            }
            body = json.dumps(content).encode()
            for data in (body, (body[at : at + 65_536] for at in range(0, len(body), 65_536))):
                answer = edge.post(CHAT, data=data)
                sent += 1
                differ += answer.json()["sha256"] != hashlib.sha256(body).hexdigest()
    return [row("Bodies reach the engine byte for byte", differ, 0, "differ",
                f"{sent} bodies from 200 bytes to 60 MB, with a length and chunked")]  # fmt: skip


def reloads() -> list[Row]:
    """Twenty reloads, each with new workers, under 100 live streams."""
    tokens = 300
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine)) as edge:
        clients = [edge.raw() for _ in range(100)]
        for client in clients:
            client.request(CHAT, chat("alpha", stream=True, tokens=tokens, delay_ms=100))
        assert {client.head().status for client in clients} == {200}

        def reload() -> list[int]:
            for _ in range(20):
                edge.reload(force=True)
            return []

        counts, _ = at_once(2, lambda number: (lambda: read_streams(clients), reload)[number]())
        edge.idle()
        for client in clients:
            client.close()
        wait_until("the old workers to be gone", lambda: len(edge.workers()) == 2, 20)
    lost = sum(count != tokens + 2 for count in counts)
    return [row("Reloads under 100 live streams lose none", lost, 0, "streams lost",
                f"20 reloads while {len(counts)} streams of {tokens} events ran; every event counted")]  # fmt: skip


def leavers() -> list[Row]:
    """Clients that leave in the middle of a stream: until the engine has seen it."""
    waits = []
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine)) as edge:
        for number in range(50):
            client = edge.raw()
            client.request(CHAT, chat("alpha", stream=True, tokens=1000, delay_ms=20))
            client.head()
            next(client.events())
            client.close()
            began = time.monotonic()
            wait_until("the engine", lambda done=number + 1: engine.counters()["aborted"].get(CHAT) == done, 5)  # type: ignore[misc]
            waits.append(time.monotonic() - began)
        edge.idle()
    return [row("An engine stops when its client leaves", 1000 * max(waits), 1000, "ms", "the slowest of 50 clients")]


def killed() -> list[Row]:
    """All workers killed with -9 under 50 streams: until no slot is held any more."""
    waits = []
    with ScriptedEngine("alpha") as engine, Edge(one_model("alpha", engine), may_kill=True) as edge:
        for _ in range(5):
            clients = [edge.raw() for _ in range(50)]
            for client in clients:
                client.request(CHAT, chat("alpha", stream=True, tokens=2000, delay_ms=50))
                client.head()
            began = time.monotonic()
            for pid in edge.workers():
                edge.kill_worker(pid)
            wait_until("the slots", lambda: edge.in_flight() == 0, 5)
            waits.append(time.monotonic() - began)
            for client in clients:
                client.close()
    return [row("Workers killed with -9 give their slots back", 1000 * max(waits), 1200, "ms",
                "the slowest of 5 times, all workers at once, 50 streams")]  # fmt: skip


PROOFS: dict[str, Proof] = {
    "connections": connections,
    "events": events,
    "bodies": bodies,
    "reloads": reloads,
    "leavers": leavers,
    "killed": killed,
}
CHAPTER = Chapter("edge", PROOFS)

if __name__ == "__main__":
    sys.exit(CHAPTER.main())
