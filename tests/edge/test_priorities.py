"""Priority classes: who is served first while requests wait, and who is served all the same."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import hold, queue_length, served
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def ranked(*engines: ScriptedEngine, **queue: Any) -> dict[str, Any]:
    """Model alpha on engines with one slot each; the header X-Team gives the class of that name."""
    rules = [{"header": {"name": "X-Team", "value": name}, "priority": name} for name in ("high", "normal", "low")]
    backends = [{"id": f"alpha-{n}", "url": engine.url, "limit": 1} for n, engine in enumerate(engines, 1)]
    return {"rules": rules, "models": {"alpha": {"backends": backends, "queue": queue}}}


def join(edge: Edge, name: str, team: str = "", **headers: str) -> RawClient:
    """A client that waits, after all those before it."""
    before = queue_length(edge)
    client = edge.raw()
    extra = {"X-Team": team} if team else {}
    client.request(CHAT, chat("alpha", tokens=1), headers={"X-Request-Id": name, **extra, **headers})
    wait_until(f"{name} to wait", lambda: queue_length(edge) > before)
    return client


def finish(*clients: RawClient) -> None:
    for client in clients:
        assert client.head().status == 200
        client.close()


def test_the_higher_class_is_served_first(engine: ScriptedEngine) -> None:
    with Edge(ranked(engine)) as edge:
        holder = hold(edge)
        clients = [join(edge, f"{team}-{number}", team) for number in range(2) for team in ("low", "normal", "high")]
        assert edge.state()["models"][0]["waiting"] == {"high": 2, "normal": 2, "low": 2}
        assert edge.metric("signalbox_queue_length", model="alpha", priority="low") == 2
        holder.close()
        finish(*clients)
        order = [name.rsplit("-", 1)[0] for name in served(engine)[1:]]
        # One of eight places goes to the middle class first, one to the lowest.
        assert order[:3] == ["high", "high", "normal"] or order[:2] == ["high", "normal"]
        inside = [name for name in served(engine) if name.startswith("low")]
        assert inside == ["low-0", "low-1"]
        line = edge.log_of("low-1")
        assert (line["priority"], line["queue_place"]) == ("low", 4)
        edge.idle()


def test_no_class_starves(engine: ScriptedEngine) -> None:
    """A stream of urgent requests that never ends: the others move all the same."""
    with Edge(ranked(engine, max_waiting=200)) as edge:
        holder = hold(edge)
        clients = [join(edge, f"low-{number}", "low") for number in range(4)]
        clients += [join(edge, f"normal-{number}", "normal") for number in range(4)]
        clients += [join(edge, f"high-{number}", "high") for number in range(40)]
        holder.close()
        finish(*clients)
        order = [name.split("-")[0] for name in served(engine)[1:]]
        first = Counter(order[:24])
        assert first["high"] >= 16 and first["normal"] >= 2 and first["low"] >= 2
        edge.idle()


def test_a_client_may_lower_its_class_and_never_raise_it(engine: ScriptedEngine) -> None:
    with Edge(ranked(engine)) as edge:
        holder = hold(edge)
        clients = [
            join(edge, "lowered", "high", **{"X-Priority": "low"}),
            join(edge, "raised", "low", **{"X-Priority": "high"}),
            join(edge, "plain"),
            join(edge, "plain-high", **{"X-Priority": "high"}),
        ]
        assert edge.state()["models"][0]["waiting"] == {"high": 0, "normal": 2, "low": 2}
        holder.close()
        finish(*clients)
        assert edge.log_of("plain-high")["priority"] == "normal"
        edge.idle()


def test_a_client_may_shorten_its_wait(engine: ScriptedEngine) -> None:
    with Edge(ranked(engine, timeout="30s")) as edge:
        holder = hold(edge)
        began = time.monotonic()
        answer = edge.chat(chat("alpha"), headers={"X-Request-Timeout": "0.5"})
        check_error(answer, 429, "queue_timeout")
        assert 0.4 <= time.monotonic() - began <= 3 and "0.5 s" in answer.text
        # Not longer than the model's own, and nonsense is none.
        clients = [
            join(edge, name, **{"X-Request-Timeout": value}) for name, value in (("long", "9999"), ("odd", "soon"))
        ]
        holder.close()
        finish(*clients)
        edge.idle()


def test_classes_hold_over_workers_and_a_killed_one(engine: ScriptedEngine) -> None:
    """What a killed worker showed as its first holds up nobody."""
    with Edge(ranked(engine, max_waiting=200), may_kill=True) as edge:
        holder = hold(edge)
        teams = ("low", "high")
        clients = {f"{team}-{number}": join(edge, f"{team}-{number}", team) for number in range(12) for team in teams}
        victim = edge.workers()[0]
        edge.kill_worker(victim)
        wait_until("its tickets to be gone", lambda: queue_length(edge) < 24, 5)
        left = queue_length(edge)
        holder.close()
        wait_until("the others to be served", lambda: queue_length(edge) == 0, 10)
        edge.idle(5)
        survivors = served(engine)[1:]
        assert 0 < left < 24 and len(survivors) >= left
        for client in clients.values():
            client.close()
