"""Limits: exact under concurrency, corrected by what the engines counted, and free for what was refused.

All of it twice: counted in memory, and in a Redis that several edges could share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from control.edge import apply
from tests.support.client import CHAT, at_once, chat, check_error, retry_after
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.keyed import bearer, keyed
from tests.support.net import wait_until
from tests.support.queueing import hold
from tests.support.redis import Redis, needs_redis

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


@pytest.fixture(autouse=True, params=["memory", pytest.param("redis", marks=needs_redis)])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the edges of this module count."""
    if request.param == "memory":
        yield
        return
    with Redis() as redis:
        # Patient: on a busy machine a slow answer would look like a Redis that is down.
        monkeypatch.setattr(Edge, "defaults", {"state": {"redis": redis.url, "timeout": "5s"}})
        yield


def limited(*engines: ScriptedEngine, limit: int | None = None, **limits: int) -> dict[str, Any]:
    """Model alpha with these limits on these engines; ``limit``: sequences in flight on each."""
    bound = {"limit": limit} if limit else {}
    backends = [{"id": f"alpha-{n}", "url": engine.url, **bound} for n, engine in enumerate(engines, 1)]
    return {"models": {"alpha": {"backends": backends, "limits": limits, "queue": {"max_waiting": 1}}}}


def left(answer: requests.Response, unit: str) -> int:
    """What x-ratelimit-remaining-UNIT says, after a look at its neighbours."""
    assert int(answer.headers[f"x-ratelimit-limit-{unit}"]) > 0
    assert answer.headers[f"x-ratelimit-reset-{unit}"][-1] == "s"
    return int(answer.headers[f"x-ratelimit-remaining-{unit}"])


def settled(edge: Edge) -> int:
    """Tokens that a refused client is told are left, once what was served before has been settled: a moment later."""
    told = []

    def stays() -> bool:
        told.append(left(edge.chat({**chat("alpha", tokens=100), "max_tokens": 100}), "tokens"))
        return len(told) > 1 and told[-1] == told[-2]

    wait_until("what is left to stay", stays, every=0.2)
    return told[-1]


def test_exactly_so_many_requests_pass_however_many_ask(engine: ScriptedEngine) -> None:
    """Read-then-write counters let 100 clients through a limit of ten."""
    with Edge(limited(engine, requests_per_minute=50)) as edge:
        began = time.monotonic()
        codes = at_once(
            100, lambda _: [edge.chat(chat("alpha", tokens=1), new_connection=True).status_code for _ in range(2)]
        )
        flat = [code for pair in codes for code in pair]
        # One more for each 1.2 s that this took.
        assert 50 <= flat.count(200) <= 51 + (time.monotonic() - began) / 1.2
        assert set(flat) == {200, 429}
        edge.idle()
        assert engine.started() == flat.count(200)


def test_a_refusal_says_which_limit_and_when_there_is_room(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, requests_per_minute=30)) as edge:
        first = edge.chat(chat("alpha", tokens=1))
        assert (first.headers["x-ratelimit-limit-requests"], left(first, "requests")) == ("30", 29)
        assert "x-ratelimit-limit-tokens" not in first.headers
        for _ in range(29):
            assert edge.chat(chat("alpha", tokens=1)).status_code == 200
        answer = edge.chat(chat("alpha", tokens=1))
        check_error(answer, 429, "rate_limit_exceeded")
        assert "model 'alpha'" in answer.text and "30 requests per minute" in answer.text
        assert left(answer, "requests") == 0
        time.sleep(retry_after(answer))
        assert edge.chat(chat("alpha", tokens=1)).status_code == 200


def test_refused_requests_burn_nothing(engine: ScriptedEngine) -> None:
    """By another limit, by a full queue, by an engine that cannot be reached, or because they are malformed."""
    with Edge(limited(engine, limit=1, requests_per_minute=100, tokens_per_minute=10_000, concurrent=3)) as edge:
        holder = hold(edge)
        waiting = edge.raw()
        waiting.request(CHAT, chat("alpha", tokens=1))
        wait_until("one to wait", lambda: edge.state()["models"][0]["queue_length"] == 1)
        for _ in range(5):
            check_error(edge.chat(chat("alpha", tokens=1)), 429, "queue_full")
        fourth = hold_place(edge)
        check_error(edge.chat(chat("alpha", tokens=1)), 429, "queue_full")
        waiting.close()
        wait_until("it to be gone", lambda: edge.state()["models"][0]["queue_length"] == 0)
        for client in (fourth, holder):
            client.close()
        edge.idle()
        engine.kill()
        for _ in range(3):
            assert edge.chat(chat("alpha", tokens=1)).status_code in (502, 503)
        engine.start()
        edge.until_ready(15)
        edge.post(CHAT, data=b'{"model": "alpha", ')
        answer = edge.chat(chat("alpha", tokens=1))
        assert answer.status_code == 200
        # The holder, the one that waited (it left before it was served: free), and this one.
        assert left(answer, "requests") >= 98


def hold_place(edge: Edge) -> Any:
    """A client that has sent half of its request: it takes nothing."""
    client = edge.raw()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    return client


def test_as_many_at_the_same_time_as_allowed(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, concurrent=2)) as edge:
        holders = [hold(edge, f"hold-{number}") for number in range(2)]
        answer = edge.chat(chat("alpha"))
        check_error(answer, 429, "concurrency_limit")
        assert retry_after(answer) == 1
        holders[0].close()
        wait_until("a free place", lambda: edge.chat(chat("alpha")).status_code == 200)
        # One after the other is never two at the same time.
        for _ in range(30):
            assert edge.chat(chat("alpha", tokens=1)).status_code == 200
        holders[1].close()
        edge.idle()


def test_who_finds_no_place_is_told_how_the_other_limits_stand(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, concurrent=1, requests_per_minute=100, tokens_per_day=1_000_000)) as edge:
        with hold(edge):
            for _ in range(2):
                answer = edge.chat(chat("alpha"))
                check_error(answer, 429, "concurrency_limit")
                assert left(answer, "requests") == 99, "what is refused burns nothing"
                assert 0 < left(answer, "tokens") < 1_000_000
        edge.idle()


def test_a_killed_worker_gives_its_places_back(engine: ScriptedEngine) -> None:
    """Counters leaked, and a key was locked for ever."""
    with Edge(limited(engine, concurrent=2), may_kill=True) as edge:
        holders = [hold(edge, f"hold-{number}") for number in range(2)]
        for pid in edge.workers():
            edge.kill_worker(pid)

        def served() -> bool:
            return edge.chat(chat("alpha", tokens=1), new_connection=True, timeout=1).status_code == 200

        wait_until("free places", served, 10)
        for holder in holders:
            holder.close()
        edge.idle()


def test_tokens_are_corrected_by_what_the_engine_counted(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_minute=60_000)) as edge:
        before = left(edge.chat(chat("alpha", tokens=1)), "tokens")
        answer = edge.chat({**chat("alpha", tokens=500), "max_tokens": 500})
        used = answer.json()["usage"]["total_tokens"]
        edge.idle()
        # What was reserved for this one stands in its own answer; it is corrected in the next. A thousand are given
        # back each second.
        after = left(edge.chat(chat("alpha", tokens=1)), "tokens")
        assert used >= 500 and before - after <= used + 400


def test_tokens_run_out_and_come_back(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_minute=6_000)) as edge:
        total, answer = 0, edge.chat({**chat("alpha", tokens=100), "max_tokens": 100})
        while answer.status_code == 200:
            total += answer.json()["usage"]["total_tokens"]
            assert total < 12_000
            answer = edge.chat({**chat("alpha", tokens=100), "max_tokens": 100})
        check_error(answer, 429, "rate_limit_exceeded")
        assert "tokens per minute" in answer.text
        assert 5_500 <= total <= 7_000
        time.sleep(min(retry_after(answer), 5))
        assert edge.chat({**chat("alpha", tokens=100), "max_tokens": 100}).status_code == 200


def test_what_can_never_pass_is_told_so(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_minute=1_000)) as edge:
        answer = edge.chat({**chat("alpha"), "max_tokens": 2_000})
        check_error(answer, 429, "request_too_large")
        assert answer.headers["x-should-retry"] == "false" and "max_tokens" in answer.text
        assert edge.chat({**chat("alpha"), "max_tokens": 50}).status_code == 200


def test_a_budget_is_spent_once(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_day=2_000, tokens_per_month=1_000_000)) as edge:
        answer = edge.chat({**chat("alpha", tokens=100), "max_tokens": 100})
        while answer.status_code == 200:
            answer = edge.chat({**chat("alpha", tokens=100), "max_tokens": 100})
        check_error(answer, 429, "insufficient_quota")
        assert "per day" in answer.text and answer.headers["x-should-retry"] == "false"
        assert 0 < int(answer.headers["Retry-After"]) <= 86_400
        spent = settled(edge)
        # It outlives a reload, and a restart.
        edge.reload(force=True)
        check_error(edge.chat({**chat("alpha", tokens=100), "max_tokens": 100}), 429, "insufficient_quota")
        edge.process.stop(quit=True)
        apply.start(edge.site)
        edge.until_ready()
        again = edge.chat({**chat("alpha", tokens=100), "max_tokens": 100})
        check_error(again, 429, "insufficient_quota")
        assert left(again, "tokens") == spent


def test_a_damaged_file_of_budgets_costs_the_last_seconds_only(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_day=10_000)) as edge:
        left_over = 10_000
        for _ in range(2):
            left_over = left(edge.chat({**chat("alpha", tokens=100), "max_tokens": 100}), "tokens")
            edge.idle()
            edge.process.stop(quit=True)
            apply.start(edge.site)
            edge.until_ready()
        files = sorted(edge.paths.edge.glob("run/budgets-*"), key=lambda path: int(path.read_text().split()[0] or 0))
        assert len(files) == 2
        edge.process.stop(quit=True)
        newest = max(files, key=lambda path: int(path.read_text().split()[0]))
        newest.write_bytes(newest.read_bytes()[:20])
        apply.start(edge.site)
        edge.until_ready()
        now = left(edge.chat({**chat("alpha", tokens=100), "max_tokens": 100}), "tokens")
        assert left_over - 400 <= now < left_over


def test_streams_that_are_left_are_charged_for_what_they_took(engine: ScriptedEngine) -> None:
    with Edge(limited(engine, tokens_per_minute=600_000)) as edge:
        first = left(edge.chat(chat("alpha", tokens=1)), "tokens")
        client = edge.raw()
        client.request(CHAT, {**chat("alpha", stream=True, tokens=4_000, delay_ms=2), "max_tokens": 4_000})
        client.head()
        events = client.events()
        for _ in range(50):
            next(events)
        client.close()
        edge.idle()
        # Not the 4,000 that were reserved.
        wait_until("it to be settled", lambda: left(edge.chat(chat("alpha", tokens=1)), "tokens") > first - 3_000)


def test_limits_change_without_a_reload(engine: ScriptedEngine) -> None:
    content = limited(engine, requests_per_minute=1)
    with Edge(content) as edge:
        assert edge.chat(chat("alpha", tokens=1)).status_code == 200
        assert edge.chat(chat("alpha", tokens=1)).status_code == 429
        generation = edge.state()["generation"]
        content["models"]["alpha"]["limits"] = {}
        edge.write(content)
        edge.reload()
        assert {edge.chat(chat("alpha", tokens=1)).status_code for _ in range(20)} == {200}
        assert edge.state()["generation"] == generation


def test_limits_of_a_key_bind_that_key_alone(engine: ScriptedEngine) -> None:
    content = {"models": {"alpha": {"backends": [{"id": "alpha-1", "url": engine.url}]}}}
    per_model = {"models": {"alpha": {"requests_per_minute": 2}}}
    with keyed(content, tight={"limits": {"requests_per_minute": 3}}, free={}, model={"limits": per_model}) as edge:

        def codes(key: str) -> list[int]:
            return [edge.chat(chat("alpha", tokens=1), headers=bearer(key)).status_code for _ in range(5)]

        assert codes("tight") == [200, 200, 200, 429, 429]
        assert codes("free") == [200] * 5
        assert codes("model") == [200, 200, 429, 429, 429]
        answer = edge.chat(chat("alpha", tokens=1), headers=bearer("tight"))
        assert "the key 'tight'" in answer.text
        edge.idle()


def test_streams_are_settled_by_usage_that_their_clients_never_see(engine: ScriptedEngine) -> None:
    """Without the engine's count a token limit would go by the number of events."""
    with Edge(limited(engine, tokens_per_minute=100_000)) as edge:
        request = {**chat("alpha", stream=True, tokens=200), "max_tokens": 4_000}
        answer = edge.chat(request, headers={"X-Request-Id": "settled"})
        assert answer.status_code == 200 and '"usage":{' not in answer.text
        line = edge.log_of("settled")
        assert line["completion_tokens"] == 200 and line["prompt_tokens"] > 0
        # What was reserved would be back by itself after two seconds.
        wait_until("it to be settled", lambda: left(edge.chat(chat("alpha", tokens=1)), "tokens") > 98_500, 0.8)
