"""Places of those that wait are those of all edges together; what nobody uses any more is forgotten."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.edge.render import Sources
from tests.edge.test_redis_slots import edges, fleet, holders, kill_all
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.keyed import bearer, keyed
from tests.support.net import REPOSITORY, free_port, wait_until
from tests.support.queueing import queue_length, send
from tests.support.raw import RawClient
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]

PLACES = 10


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def waits(edge: Edge, name: str) -> RawClient | None:
    """A client that has a place now; None when there was none."""
    before = queue_length(edge)
    client = send(edge, name)
    client.socket.settimeout(0.005)

    def settled() -> bool:
        return queue_length(edge) > before or refused(client)

    wait_until("a place or a refusal", settled)
    full = refused(client)
    client.socket.settimeout(20)
    return None if full else client


def refused(client: RawClient) -> bool:
    with contextlib.suppress(TimeoutError):
        client._more()
    return b" 429 " in client.buffer


def test_so_many_wait_in_all_edges_together(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, 1, queue={"max_waiting": PLACES})) as (one, other):
        (held,) = holders(one, 1)
        # Most of them in one edge, though its share is a half.
        waiting = [waits(other, f"wait-{number}") for number in range(PLACES - 2)]
        waiting += [waits(one, f"more-{number}") for number in range(2)]
        assert None not in waiting and queue_length(one) + queue_length(other) == PLACES
        for edge in (one, other, one, other):
            check_error(edge.chat(chat("alpha"), new_connection=True), 429, "queue_full")
        # A place that is free in the one is one for the other.
        gone = waiting.pop(0)
        assert gone is not None
        gone.close()
        waiting.append(wait_until("a place for the other edge", lambda: waits(one, "late")))
        # Those of a dead edge come back.
        kill_all(other)
        for client in waiting:
            assert client is not None
            client.close()
        held.close()
        one.idle(10)
        (held,) = holders(one, 1)
        more = [wait_until("a place", lambda: waits(one, "again"), 12) for _ in range(PLACES)]
        check_error(one.chat(chat("alpha"), new_connection=True), 429, "queue_full")
        for client in (held, *more):
            client.close()


def test_a_key_has_one_part_of_the_places_of_all_edges(redis: Redis, engine: ScriptedEngine) -> None:
    """Alone it may fill a line of 12 up to nine: they are nine in both edges, not nine in each."""
    content = fleet(redis, engine, 1, queue={"max_waiting": 12})

    def waiting() -> int:
        return queue_length(one) + queue_length(other)

    def ask(edge: Edge, key: str) -> RawClient:
        client = edge.raw()
        client.request(CHAT, chat("alpha", stream=True, tokens=100_000, delay_ms=50), headers=bearer(key))
        return client

    with keyed(content, a={}, b={}) as one, keyed(content, a={}, b={}) as other:
        for edge in (one, other):
            wait_until("both edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == 2)  # type: ignore[misc]
        clients = [ask(one, "a")]
        assert clients[0].head().status == 200
        for number in range(9):
            clients.append(ask((one, other)[number % 2], "a"))
            wait_until("it to wait", lambda number=number: waiting() == number + 1)  # type: ignore[misc]
        time.sleep(0.05)  # a count is told some milliseconds after it has changed
        for edge in (one, other):
            answer = edge.chat(chat("alpha"), new_connection=True, headers=bearer("a"))
            check_error(answer, 429, "queue_full")
            assert "key" in answer.json()["error"]["message"]
        # Another key finds a place; one that leaves in the one edge makes room in the other.
        clients.append(ask(other, "b"))
        wait_until("the other key to wait", lambda: waiting() == 10)
        for client in (clients.pop(1), clients.pop(2)):
            client.close()
        wait_until("them to be gone", lambda: waiting() == 8)
        time.sleep(0.05)
        clients.append(ask(other, "a"))
        wait_until("a place", lambda: waiting() == 9)
        # What a dead edge had would be forgotten.
        told = redis.names("signalbox:share/*")
        assert len(told) == 3 and all(0 < redis.call("PTTL", name) <= 10_000 for name in told)
        for client in clients:
            client.close()
        for edge in (one, other):
            edge.idle()
        wait_until("their counts to be gone", lambda: not redis.names("signalbox:share/*"))


@pytest.fixture
def forgetful(tmp_path: Path) -> Sources:
    """The edge's own Lua, in which ten minutes are one second."""
    for name in ("lua", "templates"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    table = tmp_path / "lua" / "edge" / "lease_table.lua"
    text, changed = re.subn(r"local IDLE = \d+", "local IDLE = 1", table.read_text())
    assert changed == 1
    table.write_text(text)
    return Sources(lua=tmp_path / "lua", templates=tmp_path / "templates")


def test_what_nobody_uses_is_forgotten_and_comes_back(redis: Redis, engine: ScriptedEngine, forgetful: Sources) -> None:
    content = fleet(redis, engine, 4, limits={"concurrent": 3})
    with Edge(content, sources=forgetful) as edge:

        def lent() -> int:
            return int(edge.state()["state"]["leases"])

        def known() -> list[str]:
            return [name.partition("lease/")[2].partition("@")[0] for name in redis.names("signalbox:lease/*")]

        for number in range(2):
            assert edge.chat(chat("alpha", tokens=1)).status_code == 200
            wait_until("the limit to be forgotten", lambda: (lent(), known()) == (1, ["alpha-1"]), 10, every=0.1)
            # It is registered anew, and exact.
            held = holders(edge, 3)
            check_error(edge.chat(chat("alpha")), 429, "concurrency_limit")
            assert lent() == 2
            # Backends that come and go: what still runs there is not forgotten.
            backends = content["models"]["alpha"]["backends"]
            backends[0]["id"] = f"moved-{number}"
            backends[1:] = [{"id": f"dead-{number}", "url": f"http://127.0.0.1:{free_port()}", "limit": 2}]
            edge.write(content)
            edge.reload()
            wait_until("the new ones to be lent", lambda: lent() == 4)
            for client in held:
                client.close()
            backends[0]["id"] = "alpha-1"
            del backends[1]
            edge.write(content)
            edge.reload()
            wait_until("all others to be forgotten", lambda: (lent(), known()) == (1, ["alpha-1"]), 10, every=0.1)
        edge.until_ready()
        held = holders(edge, 3)
        for client in held:
            client.close()
        edge.idle()
