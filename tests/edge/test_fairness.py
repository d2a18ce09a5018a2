"""Several keys at one engine: who is served while all wait, and what a key may not do to the others."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.support.client import CHAT, at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.keyed import bearer, keyed
from tests.support.net import wait_until
from tests.support.queueing import queue_length, served
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def fleet(engine: ScriptedEngine, **queue: Any) -> dict[str, Any]:
    backends = [{"id": "alpha-1", "url": engine.url, "limit": 1}]
    return {"models": {"alpha": {"backends": backends, "queue": {"max_waiting": 400, **queue}}}}


def join(edge: Edge, key: str, name: str, **body: Any) -> RawClient:
    """A client that waits with this key, after all those before it."""
    before = queue_length(edge)
    client = edge.raw()
    client.request(CHAT, chat("alpha", tokens=1, **body), headers={"X-Request-Id": name, **bearer(key)})
    wait_until(f"{name} to wait", lambda: queue_length(edge) > before)
    return client


def hold(edge: Edge, key: str) -> RawClient:
    client = edge.raw()
    client.request(CHAT, chat("alpha", stream=True, tokens=100_000, delay_ms=50), headers=bearer(key))
    assert client.head().status == 200
    return client


def order_of(engine: ScriptedEngine) -> list[str]:
    """The keys in the order in which their requests reached the engine."""
    return [name.split("-")[0] for name in served(engine) if "-" in name]


def test_a_key_that_sends_more_waits_longer(engine: ScriptedEngine) -> None:
    """Key a has forty requests waiting when key b comes with four: b is served in turn with a, not after it."""
    with keyed(fleet(engine), a={}, b={}) as edge:
        holder = hold(edge, "a")
        clients = [join(edge, "a", f"a-{number}") for number in range(40)]
        clients += [join(edge, "b", f"b-{number}") for number in range(4)]
        holder.close()
        for client in clients:
            assert client.head().status == 200
            client.close()
        order = order_of(engine)
        assert order[:10].count("b") == 4
        inside = [name for name in served(engine) if name.startswith("a-")]
        assert inside == [f"a-{number}" for number in range(40)]
        edge.idle()


def load(edge: Edge, key: str, clients: int, stop: threading.Event) -> int:
    """So many clients of a key, each of which asks again as soon as it has its answer. Returns the answers."""

    # Shares are in estimated tokens: the same for all, not learned while the test runs.
    body = {**chat("alpha", tokens=1, headers_after_ms=5), "max_tokens": 400}

    def one(_: int) -> int:
        answers = 0
        while not stop.is_set():
            answers += edge.chat(body, headers=bearer(key)).status_code == 200
        return answers

    return sum(at_once(clients, one))


@pytest.mark.parametrize(("weights", "share"), [((1, 1), 0.5), ((3, 1), 0.75)], ids=["equal", "three to one"])
def test_shares_do_not_follow_the_load(engine: ScriptedEngine, weights: tuple[int, int], share: float) -> None:
    """Ten times as many clients get no more than their weight says."""
    with keyed(fleet(engine), a={"weight": weights[0]}, b={"weight": weights[1]}) as edge:
        stop = threading.Event()
        timer = threading.Timer(6, stop.set)
        timer.start()
        crowds = (("a", 5 if weights[0] > 1 else 30), ("b", 30 if weights[0] > 1 else 3))
        first, second = at_once(2, lambda number: load(edge, *crowds[number], stop))
        timer.cancel()
        assert first + second > 100
        assert abs(first / (first + second) - share) <= 0.1
        edge.idle()


def test_one_key_does_not_fill_the_line(engine: ScriptedEngine) -> None:
    """A flood of one key left no place for anybody else."""
    with keyed(fleet(engine, max_waiting=9), a={}, b={}) as edge:
        holder = hold(edge, "a")
        clients = [join(edge, "a", f"a-{number}") for number in range(7)]
        answer = edge.chat(chat("alpha"), headers=bearer("a"))
        check_error(answer, 429, "queue_full")
        assert "'a'" in answer.text
        clients.append(join(edge, "b", "b-0"))
        holder.close()
        for client in clients:
            assert client.head().status == 200
            client.close()
        edge.idle()
        assert queue_length(edge) == 0


def test_those_that_leave_are_not_paid_for(engine: ScriptedEngine) -> None:
    """A key whose clients gave up must not stand behind for what it never got."""
    with keyed(fleet(engine), a={}, b={}) as edge:
        holder = hold(edge, "b")
        gone = [join(edge, "a", f"gone-{number}") for number in range(20)]
        for client in gone:
            client.close()
        wait_until("them to be gone", lambda: queue_length(edge) == 0)
        clients = [join(edge, key, f"{key}-{number}") for number in range(5) for key in ("b", "a")]
        holder.close()
        for client in clients:
            assert client.head().status == 200
            client.close()
        assert Counter(order_of(engine)[:4]) == {"a": 2, "b": 2}
        edge.idle()


def test_the_class_of_a_key(engine: ScriptedEngine) -> None:
    with keyed(fleet(engine), a={"priority": "low"}, b={"priority": "high"}, c={}) as edge:
        holder = hold(edge, "c")
        clients = [join(edge, key, f"{key}-0") for key in ("a", "c", "b")]
        assert edge.state()["models"][0]["waiting"] == {"high": 1, "normal": 1, "low": 1}
        holder.close()
        for client in clients:
            assert client.head().status == 200
            client.close()
        assert order_of(engine)[0] in ("b", "c")
        assert edge.log_of("a-0")["priority"] == "low" and edge.log_of("b-0")["key"] == "b"
        edge.idle()
