"""Requests that wait: order, bounds, and everything that may happen to them meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.support.client import CHAT, at_once, chat, check_error, retry_after
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.queueing import hold, limited, line_up, queue_length, served
from tests.support.raw import Cut, RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def close(*clients: RawClient) -> None:
    for client in clients:
        client.close()


def answered(*clients: RawClient) -> None:
    """All of them get a whole answer."""
    for client in clients:
        head = client.head()
        assert head.status == 200
        assert client.body(head)
        client.close()


def empty(edge: Edge, seconds: float = 2.0) -> None:
    """Nobody waits and no slot is taken."""
    wait_until("the queue to be empty", lambda: queue_length(edge) == 0, seconds)
    edge.idle(seconds)


def test_first_come_first_served_over_two_workers(engine: ScriptedEngine) -> None:
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        names = [f"wait-{number:02}" for number in range(16)]
        clients = []
        for number, name in enumerate(names):
            clients += line_up(edge, name, worker=edge.workers()[number // 2 % 2], headers_after_ms=5)
        assert served(engine) == ["hold"]
        assert edge.metric("signalbox_queue_length", model="alpha") == 16
        close(holder)
        answered(*clients)
        assert served(engine) == ["hold", *names]
        empty(edge)


def test_the_limit_holds_and_every_slot_is_used(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(limited(engine, engine_2, limit=3)) as edge:
        answers = at_once(36, lambda number: edge.chat(chat("alpha", headers_after_ms=40), new_connection=True))
        assert {answer.status_code for answer in answers} == {200}
        assert [one.counters()["peak"] for one in (engine, engine_2)] == [3, 3]
        waits = [int(answer.headers.get("X-Signalbox-Queue-Ms", 0)) for answer in answers]
        assert waits.count(0) >= 6 and max(waits) >= 80
        logged = [edge.log_of(answer.headers["X-Request-Id"])["queue_ms"] for answer in answers[:6]]
        assert logged == waits[:6]
        name = "signalbox_queue_wait_seconds_count"
        wait_until("both workers to have counted", lambda: edge.metric(name, model="alpha") == 36, 2)
        total = edge.metric("signalbox_queue_wait_seconds_sum", model="alpha")
        assert total == pytest.approx(sum(waits) / 1000, abs=0.1)
        empty(edge)


def test_whoever_waits_too_long_is_told_so_in_time(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, timeout="400ms")) as edge:
        holder = hold(edge)
        began = time.monotonic()
        answers = at_once(4, lambda _: edge.chat(chat("alpha"), new_connection=True))
        assert 0.38 < time.monotonic() - began < 0.8
        for answer in answers:
            message = check_error(answer, 429, "queue_timeout")
            assert "alpha" in message and "0.4 s" in message
            assert retry_after(answer)
            assert 400 <= int(answer.headers["X-Signalbox-Queue-Ms"]) < 700
        line = edge.log_of(answers[0].headers["X-Request-Id"])
        assert (line["end"], line["error"], line["backend"]) == ("refused", "queue_timeout", None)
        assert line["queue_ms"] >= 400
        assert served(engine) == ["hold"]
        close(holder)
        empty(edge)
        assert edge.chat(chat("alpha")).status_code == 200


def test_a_full_queue_refuses_at_once(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, max_waiting=3)) as edge:
        holder = hold(edge)
        waiting = line_up(edge, "a", "b", "c")
        began = time.monotonic()
        answer = edge.chat(chat("alpha"))
        assert time.monotonic() - began < 0.2
        assert "3 requests" in check_error(answer, 429, "queue_full")
        assert retry_after(answer)
        answer = edge.post("/v1/messages", {**chat("alpha"), "max_tokens": 5})
        check_error(answer, 429, "queue_full", anthropic=True)
        close(waiting[0])
        wait_until("its place to be free", lambda: queue_length(edge) == 2, 0.5)
        more = line_up(edge, "d")
        close(holder)
        answered(*waiting[1:], *more)
        assert served(engine) == ["hold", "b", "c", "d"]


def test_a_client_that_leaves_while_waiting_is_gone_at_once(engine: ScriptedEngine) -> None:
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        clients = line_up(edge, "a", "b", "c", "d", "e")
        close(clients[0], clients[2], clients[4])
        wait_until("three to be gone", lambda: queue_length(edge) == 2, 0.5)
        for name in ("a", "c", "e"):
            line = edge.log_of(name)
            assert (line["status"], line["end"], line["backend"]) == (499, "client_left", None)
        close(holder)
        answered(clients[1], clients[3])
        assert served(engine) == ["hold", "b", "d"]
        empty(edge)


def test_a_slot_for_someone_who_has_just_left_goes_to_the_next(engine: ScriptedEngine) -> None:
    """The slot falls free in the moment in which the first in line leaves."""
    with Edge(limited(engine)) as edge:
        for number in range(20):
            holder = hold(edge)
            first, second = line_up(edge, "first", f"second-{number}")
            close(*(holder, first) if number % 2 else (first, holder))
            began = time.monotonic()
            answered(second)
            assert time.monotonic() - began < 0.5
        empty(edge)


def test_a_killed_worker_holds_nobody_up(engine: ScriptedEngine) -> None:
    """It held slots and the first places; those behind it, in another worker, are served as if it had never been."""
    with Edge(limited(engine, limit=2), may_kill=True) as edge:
        victim, survivor = edge.workers()
        holders = [hold(edge, name, victim) for name in ("hold-1", "hold-2")]
        lost = line_up(edge, "lost-1", "lost-2", "lost-3", worker=victim)
        endless = {"stream": True, "tokens": 100_000, "delay_ms": 50}
        kept = line_up(edge, "kept-1", "kept-2", "kept-3", worker=survivor, **endless)
        edge.kill_worker(victim)
        began = time.monotonic()
        assert [client.head().status for client in kept[:2]] == [200, 200]
        assert time.monotonic() - began < 1.5
        wait_until("only the survivor's to be counted", lambda: (edge.in_flight(), queue_length(edge)) == (2, 1), 1.5)
        close(kept[0])
        assert kept[2].head().status == 200
        assert [name for name in served(engine) if name[:4] == "kept"] == ["kept-1", "kept-2", "kept-3"]
        assert not [name for name in served(engine) if name[:4] == "lost"]
        close(*holders, *lost, *kept[1:])
        empty(edge)


def test_order_survives_a_reload(engine: ScriptedEngine) -> None:
    """Draining workers have no timers left; those that wait in them are served before newer ones."""
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        names = [f"old-{number}" for number in range(6)]
        clients = []
        for number, name in enumerate(names):
            clients += line_up(edge, name, worker=edge.workers()[number % 2])
        edge.reload(force=True)
        clients += line_up(edge, "new-0", "new-1")
        assert queue_length(edge) == 8
        close(holder)
        answered(*clients)
        assert served(engine) == ["hold", *names, "new-0", "new-1"]
        empty(edge)


def test_draining_workers_still_know_deadlines_and_leavers(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, timeout="1500ms")) as edge:
        holder = hold(edge)
        late, leaver = line_up(edge, "late", "leaver")
        edge.reload(force=True)
        close(leaver)
        wait_until("the leaver to be gone", lambda: queue_length(edge) == 1, 0.5)
        assert late.head().status == 429
        close(holder, late)
        empty(edge)


def test_a_raised_limit_and_a_new_backend_wake_those_that_wait(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        clients = line_up(edge, "a", "b", stream=True, tokens=100_000, delay_ms=50)
        edge.write(limited(engine, limit=2))
        edge.reload()
        assert clients[0].head().status == 200
        assert queue_length(edge) == 1
        edge.write(limited(engine, engine_2, limit=2))
        edge.reload()
        assert clients[1].head().status == 200
        assert served(engine_2) == ["b"]
        close(holder, *clients)
        empty(edge)


def test_waiting_ends_when_the_model_or_its_limits_go(engine: ScriptedEngine) -> None:
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        clients = line_up(edge, "a", "b")
        edge.write(limited(engine, limit=None))
        edge.reload()
        answered(*clients)
        edge.write(limited(engine))
        edge.reload()
        [client] = line_up(edge, "c")
        edge.write({"models": {"other": {"backends": [{"url": engine.url, "model_name": "alpha"}]}}})
        edge.reload()
        head = client.head()
        assert head.status == 404 and b"model_not_found" in client.body(head)
        close(holder, client)
        edge.idle()


def test_waiting_ends_when_no_backend_is_left(engine: ScriptedEngine) -> None:
    with Edge(limited(engine)) as edge:
        holder = hold(edge)
        clients = line_up(edge, "a", "b")
        engine.configure(health_status=500)
        for client in clients:
            head = client.head()
            assert head.status == 503 and b"no_backend_ready" in client.body(head)
            assert head.headers["retry-after"]
        close(holder, *clients)
        empty(edge)


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_after_a_failed_connect_a_request_waits_for_the_others(
    engine: ScriptedEngine, engine_2: ScriptedEngine, leaves: bool
) -> None:
    with Edge(limited(engine, engine_2)) as edge:
        holder = hold(edge)
        busy, dead = (engine, engine_2) if served(engine) else (engine_2, engine)
        dead.kill()
        [client] = line_up(edge, "retried")
        if leaves:
            close(client, holder)
            empty(edge, 0.5)
            return
        close(holder)
        answered(client)
        assert served(busy) == ["hold", "retried"]
        assert edge.log_of("retried")["retries"] == 1
        empty(edge)


def test_a_conversation_waits_for_its_own_engine_and_holds_up_nobody(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    with Edge(limited(engine, engine_2)) as edge:
        made = edge.post("/v1/responses", {"model": "alpha", "input": "hi"}).json()["id"]
        own, other = (engine, engine_2) if engine.started("/v1/responses") else (engine_2, engine)
        holders = [hold(edge, "hold-1"), hold(edge, "hold-2")]
        [mine] = [holder for holder, name in zip(holders, ("hold-1", "hold-2"), strict=True) if name in served(own)]
        client = edge.raw()
        client.request("/v1/responses", {"model": "alpha", "input": "more", "previous_response_id": made},
                       headers={"X-Request-Id": "more"})  # fmt: skip
        wait_until("it to wait", lambda: queue_length(edge) == 1)
        # To look at a response or to cancel it never waits.
        assert edge.get(f"/v1/responses/{made}", timeout=2).status_code == 200
        close(*[holder for holder in holders if holder is not mine])
        assert edge.chat(chat("alpha"), timeout=2, headers={"X-Request-Id": "free"}).status_code == 200
        assert served(other)[-1] == "free" and queue_length(edge) == 1
        close(mine)
        answered(client)
        assert served(own)[-1] == "more"
        empty(edge)


def test_without_limits_nothing_waits(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, limit=None, max_waiting=1)) as edge:
        answers = at_once(24, lambda _: edge.chat(chat("alpha", headers_after_ms=150), new_connection=True))
        assert {answer.status_code for answer in answers} == {200}
        assert engine.counters()["peak"] == 24
        assert not any("X-Signalbox-Queue-Ms" in answer.headers for answer in answers)
        assert edge.log_of(answers[0].headers["X-Request-Id"])["queue_ms"] == 0


def test_nothing_is_lost_in_a_mixed_crowd(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Leavers, failures, time-outs, several sequences, a killed worker and reloads at once."""
    fleet = limited(engine, engine_2, limit=4, max_waiting=24, timeout="800ms", timeouts={"read": "300ms"})
    with Edge(fleet, may_kill=True) as edge:
        kinds = ({}, {"stream": True, "delay_ms": 2}, {"die": True}, {"hang": True}, {"headers_after_ms": 40})
        seen: Counter[int] = Counter()

        def one(number: int) -> None:
            dice = random.Random(number)
            time.sleep(dice.uniform(0, 2))
            try:
                with edge.raw(timeout=5) as client:
                    body = {**chat("alpha", **dice.choice(kinds)), "n": dice.choice((1, 1, 2, 5))}
                    client.request(CHAT, body)
                    if dice.random() < 0.3:
                        time.sleep(dice.uniform(0, 0.1))
                        return
                    seen[client.head().status] += 1
            except (OSError, Cut):
                seen[0] += 1

        def trouble(number: int) -> None:
            time.sleep(0.6 + number * 0.7)
            if number == 1:
                os.kill(edge.workers()[0], signal.SIGKILL)
            else:
                edge.process.reload_signal()

        at_once(153, lambda number: trouble(number) if number < 3 else one(number))
        assert seen[200] > 20 and seen[429] > 0 and seen[502] > 0
        empty(edge, 3)
        wait_until("both engines to take requests", lambda: edge.chat(chat("alpha")).status_code == 200)
        # Every slot is there again, and no more than those.
        holders = [hold(edge, f"hold-{number}") for number in range(8)]
        last = line_up(edge, "ninth")
        close(*holders, *last)
        empty(edge)


def test_a_slot_freed_in_one_worker_serves_a_client_of_the_other(engine: ScriptedEngine) -> None:
    with Edge(limited(engine)) as edge:
        first, second = edge.workers()
        for holds, waits in ((first, second), (second, first)):
            holder = hold(edge, worker=holds)
            [client] = line_up(edge, "other-worker", worker=waits)
            began = time.monotonic()
            close(holder)
            answered(client)
            assert time.monotonic() - began < 0.3


def test_retry_after_says_when_those_that_wait_will_have_been_served(engine: ScriptedEngine) -> None:
    """A fixed number is a lie at every other speed: clients come back in a herd, or minutes late."""
    with Edge(limited(engine, max_waiting=8, timeout="20s")) as edge:
        clients = []
        for _ in range(9):
            clients.append(edge.raw())
            clients[-1].request(CHAT, chat("alpha", headers_after_ms=500))
        wait_until("a full queue", lambda: queue_length(edge) >= 7)
        answered(*clients)
        # Two a second: eight that wait take four seconds.
        holder = hold(edge)
        waiting = line_up(edge, *(f"again-{number}" for number in range(8)))
        answer = edge.chat(chat("alpha"))
        check_error(answer, 429, "queue_full")
        assert 3 <= retry_after(answer) <= 7
        close(holder, *waiting)
        empty(edge)
