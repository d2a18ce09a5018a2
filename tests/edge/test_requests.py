"""Requests that run, seen and ended by an operator."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
import requests

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


class Running:
    """A request in a thread of its own."""

    def __init__(self, edge: Edge, id_: str, body: dict[str, Any]) -> None:
        self.answer: requests.Response | None = None
        self.error: Exception | None = None
        self.ended = 0.0
        self.thread = threading.Thread(target=self._run, args=(edge, id_, body), daemon=True)
        self.thread.start()

    def _run(self, edge: Edge, id_: str, body: dict[str, Any]) -> None:
        try:
            self.answer = edge.post(CHAT, body, headers={"X-Request-Id": id_})
        except requests.RequestException as error:
            self.error = error
        self.ended = time.monotonic()

    def join(self) -> Running:
        self.thread.join(15)
        assert not self.thread.is_alive()
        return self


def listed(edge: Edge) -> dict[str, dict[str, Any]]:
    return {request["id"]: request for request in edge.admin("GET", "/requests").json()["requests"]}


def test_running_requests_are_seen_from_any_worker(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        running = [Running(edge, f"run-{n}", chat("alpha", stream=True, tokens=100, delay_ms=20)) for n in range(6)]
        running.append(Running(edge, "early", chat("alpha", stream=True, first_ms=2500, tokens=1)))
        wait_until("all to run", lambda: edge.in_flight() == 7)
        time.sleep(0.3)
        for _ in range(4):  # one worker or the other answers
            answer = edge.admin("GET", "/requests").json()
            assert (answer["total"], answer["truncated"], answer["silent_workers"]) == (7, False, [])
            assert [one["age"] for one in answer["requests"]] == sorted(o["age"] for o in answer["requests"])[::-1]
        seen = listed(edge)
        assert set(seen) == {*(f"run-{n}" for n in range(6)), "early"}
        assert {seen[f"run-{n}"]["backend"] for n in range(6)} == {"alpha-1", "alpha-2"}
        assert {one["model"] for one in seen.values()} == {"alpha"}
        one = seen["run-0"]
        assert one["state"] == "decode" and one["chunks"] > 3 and 0.2 < one["age"] < 3
        assert (seen["early"]["state"], seen["early"]["chunks"]) == ("prefill", 0)
        for request in running:
            request.join()
        wait_until("none to be left", lambda: listed(edge) == {})


def test_a_running_request_ends_at_its_next_byte(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        victim = Running(edge, "victim", chat("alpha", stream=True, tokens=2000, delay_ms=20))
        other = Running(edge, "other", chat("alpha", stream=True, tokens=60, delay_ms=20))
        wait_until("both to decode", lambda: [r["state"] for r in listed(edge).values()] == ["decode"] * 2)
        answer = edge.admin("DELETE", "/requests/victim").json()
        assert answer["state"] == "decode" and "next byte" in answer["message"]
        began = time.monotonic()
        victim.join()
        assert victim.ended - began < 1
        assert victim.error is not None  # cut, and no invented end
        line = edge.log_of("victim")
        assert (line["end"], line["status"], line["backend"]) == ("cancelled", 200, "alpha-1")
        wait_until("the engine to see it", lambda: engine.counters()["aborted"].get(CHAT) == 1)
        assert other.join().answer is not None and edge.log_of("other")["end"] == "complete"
        wait_until("the count", lambda: edge.metric("signalbox_requests_total", end="cancelled") == 1)
        assert edge.backends()["alpha-1"]["state"] == "ready"
        edge.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_one_without_a_byte_yet_ends_with_its_first(engine: ScriptedEngine, stream: bool) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        victim = Running(edge, "victim", chat("alpha", stream=stream, first_ms=1200, tokens=100, delay_ms=5))
        wait_until("it to run", lambda: edge.in_flight() == 1)
        answer = edge.admin("DELETE", "/requests/victim").json()
        assert answer["state"] == "prefill" and "first byte" in answer["message"]
        victim.join()
        assert victim.error is not None
        assert edge.log_of("victim")["end"] == "cancelled"
        edge.idle()


def test_a_queued_request_ends_at_once(engine: ScriptedEngine) -> None:
    fleet = one_model("alpha", engine)
    fleet["models"]["alpha"]["backends"][0]["limit"] = 1
    with Edge(fleet) as edge:
        first = Running(edge, "first", chat("alpha", stream=True, tokens=100, delay_ms=20))
        wait_until("it to run", lambda: edge.in_flight() == 1)
        waiting = [Running(edge, f"wait-{n}", chat("alpha", tokens=1)) for n in range(3)]
        wait_until("all to wait", lambda: [r["state"] for r in listed(edge).values()].count("queued") == 3)
        began = time.monotonic()
        assert edge.admin("DELETE", "/requests/wait-1").json()["state"] == "queued"
        victim = waiting[1].join()
        assert victim.ended - began < 0.5
        assert victim.answer is not None
        check_error(victim.answer, 503, "cancelled")
        assert victim.answer.headers["x-should-retry"] == "false"
        line = edge.log_of("wait-1")
        assert (line["end"], line["backend"], line["error"]) == ("cancelled", None, "cancelled")
        for request in (first, waiting[0], waiting[2]):
            answer = request.join().answer
            assert answer is not None and answer.status_code == 200
        assert engine.started() == 3
        edge.idle()


def test_a_later_request_with_the_same_id_goes_on(engine: ScriptedEngine) -> None:
    """Clients choose ids, and use them again."""
    with Edge(one_model("alpha", engine)) as edge:
        first = Running(edge, "same", chat("alpha", stream=True, tokens=2000, delay_ms=20))
        wait_until("it to run", lambda: edge.in_flight() == 1)
        edge.admin("DELETE", "/requests/same")
        first.join()
        again = Running(edge, "same", chat("alpha", stream=True, tokens=60, delay_ms=20))
        wait_until("it to run", lambda: edge.in_flight() == 1)
        assert edge.admin("DELETE", "/requests/another").status_code == 404
        answer = again.join().answer
        assert answer is not None and answer.text.endswith("data: [DONE]\n\n")


def test_a_draining_worker_sees_it_when_bytes_pass(engine: ScriptedEngine) -> None:
    """After a reload the old workers have no timers; their streams go on."""
    with Edge(one_model("alpha", engine)) as edge:
        victims = [Running(edge, f"old-{n}", chat("alpha", stream=True, tokens=2000, delay_ms=20)) for n in range(4)]
        wait_until("all to run", lambda: edge.in_flight() == 4)
        edge.reload(force=True)
        wait_until("the old ones to be listed", lambda: len(listed(edge)) == 4)
        for number, victim in enumerate(victims):
            edge.admin("DELETE", f"/requests/old-{number}")
            victim.join()
            assert victim.error is not None
        edge.idle()


def test_the_list_is_bounded_and_says_so(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, workers=1)) as edge, contextlib.ExitStack() as stack:
        for number in range(1020):
            client = stack.enter_context(edge.raw())
            client.request(CHAT, chat("alpha", stream=True, hang=True), headers={"X-Request-Id": f"many-{number}"})
        wait_until("all to run", lambda: edge.in_flight() == 1020, 20)
        answer = edge.admin("GET", "/requests").json()
        assert answer["total"] == 1020 and answer["truncated"] is True
        assert len({one["id"] for one in answer["requests"]}) == 1000
        assert edge.admin("DELETE", "/requests/many-1019").json()["state"] == "prefill"  # one beyond the list too
        stack.close()
        edge.idle(10)
