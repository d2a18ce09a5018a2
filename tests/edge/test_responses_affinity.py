"""The Responses API keeps state inside one engine: later calls must find that one."""

from __future__ import annotations

import re

import pytest

from tests.support.client import at_once, check_error
from tests.support.fleets import Alphabet

PATH = "/v1/responses"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_get_and_cancel_go_to_the_engine_that_made_the_response(alphabet: Alphabet, stream: bool) -> None:
    made: list[str] = []
    for number in range(6):
        answer = alphabet.edge.post(PATH, {"model": "alpha", "input": f"hi {number}", "stream": stream})
        made.append(re.findall(r'"id":"(resp_\w+)"', answer.text)[0])
    instances = set()
    for response in made:
        for _ in range(3):
            got = alphabet.edge.get(f"{PATH}/{response}", new_connection=True)
            assert got.status_code == 200, got.text
            instances.add(got.json()["instance"])
        cancelled = alphabet.edge.post(f"{PATH}/{response}/cancel", data=b"")
        assert cancelled.json()["status"] == "cancelled"
    assert len(instances) == 2


def test_a_conversation_stays_with_the_engine_that_has_it(alphabet: Alphabet) -> None:
    """previous_response_id names a response that only its engine remembers."""
    made = alphabet.edge.post(PATH, {"model": "alpha", "input": "hi"}).json()
    before = [engine.started(PATH) for engine in alphabet.alphas]
    body = {"model": "alpha", "input": "more", "previous_response_id": made["id"]}
    assert {alphabet.edge.post(PATH, body).status_code for _ in range(6)} == {200}
    grown = sorted(engine.started(PATH) - old for engine, old in zip(alphabet.alphas, before, strict=True))
    assert grown == [0, 6]


def test_simultaneous_responses_do_not_mix_up(alphabet: Alphabet) -> None:
    def one(number: int) -> bool:
        model = "alpha" if number % 2 else "beta"
        made = alphabet.edge.post(PATH, {"model": model, "input": "hi", "scripted": {"delay_ms": 5}}).json()
        return bool(alphabet.edge.get(f"{PATH}/{made['id']}").json()["id"] == made["id"])

    assert all(at_once(12, one))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_response_is_404_without_asking_engines(alphabet: Alphabet, method: str) -> None:
    path = f"{PATH}/resp_0000" + ("/cancel" if method == "POST" else "")
    check_error(alphabet.edge.call(method, path), 404, "response_not_found")
    assert not any(path in engine.counters()["started"] for engine in alphabet.engines)


def test_other_methods_are_405(alphabet: Alphabet) -> None:
    check_error(alphabet.edge.call("DELETE", f"{PATH}/resp_0"), 405, "method_not_allowed")
    check_error(alphabet.edge.get(f"{PATH}/resp_0/cancel"), 405, "method_not_allowed")
