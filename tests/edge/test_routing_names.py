"""Which name reaches which engine, under which name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.support.client import CHAT, at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.fleets import Alphabet, one_model


def test_each_model_goes_to_its_own_engines_only(alphabet: Alphabet) -> None:
    """Two models behind one address: plain round robin would answer every second request with the engine's 404."""
    for number in range(20):
        model = "alpha" if number % 2 else "beta"
        answer = alphabet.edge.post(CHAT, chat(model, echo=True))
        assert answer.status_code == 200
        expected = alphabet.alphas if model == "alpha" else [alphabet.beta]
        assert answer.json()["instance"] in [engine.counters()["instance"] for engine in expected]


def test_real_name_and_alias_are_both_accepted(alphabet: Alphabet) -> None:
    """An engine that was started with one name answers 404 to an alias: the edge must give it the name it knows."""
    for name in ("alpha", "alpha-chat", "alpha/chat:v2"):
        answer = alphabet.edge.post(CHAT, chat(name))
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "alpha"


def test_an_alias_changes_that_one_value_and_no_other_byte(alphabet: Alphabet) -> None:
    body = (
        '{ "seed":1234567890123456789,\n "model" :\t"alpha-chat" , "tools":[], "x":0.30000000000000004,"u":"a\\/b",%s}'
    )
    body %= '"messages":[{"role":"user","content":"model: \\"alpha-chat\\" \\u00e9"}],"scripted":{"echo":true}'
    seen = alphabet.edge.post(CHAT, data=body.encode()).json()
    expected = body.replace('"alpha-chat"', '"alpha"', 1).encode()
    assert seen["sha256"] == hashlib.sha256(expected).hexdigest()
    assert seen["length"] == len(expected)


def test_an_engine_with_another_name_gets_that_name(alphabet: Alphabet) -> None:
    body = json.dumps(chat("beta", echo=True)).encode()
    seen = alphabet.edge.post(CHAT, data=body).json()
    assert seen["sha256"] == hashlib.sha256(body.replace(b'"beta"', b'"org/beta:v1"')).hexdigest()


def test_an_adapter_name_passes_as_it_is(alphabet: Alphabet) -> None:
    """LoRA adapters are served by the engine of their base model, under their own name."""
    body = json.dumps(chat("alpha-lora", echo=True)).encode()
    seen = alphabet.edge.post(CHAT, data=body).json()
    assert seen["sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("name", ["Alpha", "alpha ", "alph", "alpha\n", "unknown", "org/beta:v1x", "\u0430lpha"])
def test_an_unknown_name_is_404_with_the_known_ones(alphabet: Alphabet, name: str) -> None:
    """Names are exact and case-sensitive; the refusal says what exists, so that a typing error is seen at once."""
    message = check_error(alphabet.edge.post(CHAT, chat(name)), 404, "model_not_found")
    assert "alpha" in message and "beta" in message


def test_a_huge_unknown_name_gives_a_small_answer(alphabet: Alphabet) -> None:
    check_error(alphabet.edge.post(CHAT, chat("x" * 100_000)), 404, "model_not_found")


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}], ids=["missing", "null", "empty"])
def test_no_model_among_several_is_refused_with_the_list(alphabet: Alphabet, body: dict[str, Any]) -> None:
    """null is a value that is true in Lua: joining it to a text crashed gateways with a 500."""
    message = check_error(alphabet.edge.post(CHAT, {**chat(), **body}), 400, "model_required")
    assert "alpha" in message and "beta" in message


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}], ids=["missing", "null", "empty"])
def test_no_model_takes_the_only_one(solo: Edge, body: dict[str, Any]) -> None:
    """vLLM itself serves such a request with its default model."""
    assert solo.post(CHAT, {**chat(), **body}).status_code == 200


def test_no_model_takes_the_default_of_the_fleet(alphabet: Alphabet) -> None:
    fleet = alphabet.fleet()
    fleet["default_model"] = "beta"
    with Edge(fleet) as edge:
        answer = edge.post(CHAT, chat())
        assert answer.status_code == 200
        assert answer.json()["model"] == "org/beta:v1"


@pytest.mark.parametrize("value", [5, 1.5, True, False, ["alpha"], {"name": "alpha"}])
def test_a_model_that_is_no_string_is_refused(alphabet: Alphabet, value: Any) -> None:
    check_error(alphabet.edge.post(CHAT, chat(value)), 400, "invalid_model")


def test_a_half_surrogate_in_the_name_is_refused(alphabet: Alphabet) -> None:
    """Python reads it, other parsers do not: nobody may guess which model was meant."""
    answer = alphabet.edge.post(CHAT, data=b'{"model":"alpha\\ud800","messages":[]}')
    assert answer.status_code in (400, 404)
    check_error(answer, answer.status_code, "invalid_model" if answer.status_code == 400 else "model_not_found")


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"x","model":"beta"}],"scripted":{"echo":true},"model":"alpha"}',
        b'{"messages":[{"role":"user","content":"\\"model\\":\\"beta\\""}],"scripted":{"echo":true},"model":"alpha"}',
        b'{"x":{"model":"beta"},"y":["model","beta"],"model":"alpha","scripted":{"echo":true}}',
        b'{"\\u006dodel":"alpha","scripted":{"echo":true}}',
        b'{"model":"\\u0061lpha","scripted":{"echo":true}}',
        b'\n\t {"scripted":{"echo":true},"model":"alpha"}\r\n ',
    ],
    ids=["nested", "in a string", "objects and arrays", "escaped key", "escaped value", "white space"],
)
def test_the_name_that_counts_is_the_one_that_the_engine_will_read(alphabet: Alphabet, body: bytes) -> None:
    """A search for the first "model" would take a decoy inside messages; a parser reads the top-level member."""
    answer = alphabet.edge.post(CHAT, data=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["instance"] in [engine.counters()["instance"] for engine in alphabet.alphas]


def test_a_query_names_no_model(alphabet: Alphabet) -> None:
    answer = alphabet.edge.post(CHAT + "?model=beta", chat("alpha", echo=True))
    assert answer.json()["instance"] in [engine.counters()["instance"] for engine in alphabet.alphas]


@pytest.mark.parametrize("extra", [{"stream": None}, {"stream_options": None}, {"stream": False, "max_tokens": None}])
def test_null_means_absent(alphabet: Alphabet, extra: dict[str, Any]) -> None:
    answer = alphabet.edge.post(CHAT, {**chat("alpha"), **extra})
    assert answer.status_code == 200 and answer.json()["object"] == "chat.completion"


def test_simultaneous_requests_spread_over_the_engines(alphabet: Alphabet) -> None:
    """Balancing state kept per worker sends simultaneous requests of all workers to the same first engine."""
    with Edge(one_model("alpha", *alphabet.alphas, policy="least_loaded")) as edge:

        def where(_: int) -> str:
            answer = edge.post(CHAT, chat("alpha", echo=True, headers_after_ms=400), new_connection=True)
            return str(answer.json()["instance"])

        instances = at_once(8, where)
    assert sorted(instances.count(one) for one in set(instances)) == [4, 4]


def test_round_robin_takes_turns(alphabet: Alphabet) -> None:
    fleet = one_model("alpha", *alphabet.alphas, policy="round_robin")
    with Edge(fleet) as edge:
        instances = [edge.post(CHAT, chat("alpha", echo=True)).json()["instance"] for _ in range(12)]
    assert sorted(instances.count(one) for one in set(instances)) == [6, 6]
