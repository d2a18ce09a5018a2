"""Workers that die without a word: what they held comes back."""

from __future__ import annotations

import time

import psutil

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until
from tests.support.raw import RawClient


def streams(edge: Edge, count: int) -> list[RawClient]:
    clients = [edge.raw() for _ in range(count)]
    for client in clients:
        client.request(CHAT, chat("alpha", stream=True, tokens=2000, delay_ms=50))
    assert {client.head().status for client in clients} == {200}
    return clients


def connections(pid: int, port: int) -> int:
    """How many connections to ``port`` a process holds that carry a stream."""
    found = psutil.Process(pid).net_connections(kind="tcp")
    return sum(1 for one in found if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED")


def test_slots_of_killed_workers_are_free_within_a_second(engine: ScriptedEngine) -> None:
    """A killed worker never runs its log phase; a plain shared counter would stay too high for ever."""
    with Edge(one_model("alpha", engine), may_kill=True) as edge:
        clients = streams(edge, 20)
        assert edge.in_flight() == 20
        killed = edge.workers()
        began = time.monotonic()
        for pid in killed:
            edge.kill_worker(pid)
        wait_until("all slots to be free", lambda: edge.in_flight() == 0, 1.0)
        assert time.monotonic() - began < 1.2
        assert edge.post(CHAT, chat("alpha")).status_code == 200
        assert not set(killed) & set(edge.workers())
        for client in clients:
            client.close()
        time.sleep(0.6)
        assert edge.in_flight() == 0


def test_one_killed_worker_takes_nothing_from_the_other(engine: ScriptedEngine) -> None:
    """The worker that replaces it gets the same number: counts belong to process ids."""
    with Edge(one_model("alpha", engine), may_kill=True) as edge:
        clients = streams(edge, 24)
        victim = max(edge.workers(), key=lambda pid: connections(pid, engine.port))
        edge.kill_worker(victim)
        wait_until("the engine to notice", lambda: engine.counters()["running"] < 24, 1.5)
        time.sleep(0.2)  # its connections end one after the other
        left = engine.counters()["running"]
        wait_until("the slots of the victim", lambda: edge.in_flight() == left, 1.0)
        more = streams(edge, 4)
        assert edge.in_flight() == left + 4
        for client in clients + more:
            client.close()
        edge.idle(1.5)


def test_a_killed_draining_worker_gives_its_slots_back(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine), may_kill=True) as edge:
        old = edge.workers()
        clients = streams(edge, 6)
        edge.reload(force=True)
        assert edge.in_flight() == 6
        for pid in old:
            if pid in edge.workers():
                edge.kill_worker(pid)
        wait_until("all slots to be free", lambda: edge.in_flight() == 0, 1.5)
        for client in clients:
            client.close()


def test_slots_come_back_however_requests_end(engine: ScriptedEngine) -> None:
    """Fifty that leave, fifty that time out, fifty that fail: an internal redirect once lost the slot of each."""
    with Edge(one_model("alpha", engine, timeouts={"read": "200ms"})) as edge:
        for number in range(50):
            client = edge.raw()
            client.request(CHAT, chat("alpha", stream=number % 2 == 0, hang=True))
            client.close()
        with_errors = [edge.raw() for _ in range(50)]
        for number, client in enumerate(with_errors):
            client.request(CHAT, chat("alpha", hang=True) if number % 2 else chat("alpha", die=True))
        assert {client.head().status for client in with_errors} == {502, 504}
        for client in with_errors:
            client.close()
        edge.idle(1.5)
        assert edge.post(CHAT, chat("alpha")).status_code == 200
