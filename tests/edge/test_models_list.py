"""GET /v1/models: from the fleet and from what engines report, without asking anybody now."""

from __future__ import annotations

import time

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until


def test_every_name_is_listed_once(alphabet: Alphabet) -> None:
    """Two replicas, aliases and an adapter: gateways listed duplicates, or left out aliases and adapters."""
    content = alphabet.edge.get("/v1/models").json()
    assert content["object"] == "list"
    names = [entry["id"] for entry in content["data"]]
    assert sorted(names) == ["alpha", "alpha-chat", "alpha-lora", "alpha/chat:v2", "beta"]
    for entry in content["data"]:
        assert entry["object"] == "model"
        assert isinstance(entry["created"], int) and isinstance(entry["owned_by"], str)


def test_every_listed_name_can_be_used(alphabet: Alphabet) -> None:
    for entry in alphabet.edge.get("/v1/models").json()["data"]:
        assert alphabet.edge.post(CHAT, chat(entry["id"])).status_code == 200


@pytest.mark.parametrize("name", ["alpha", "alpha-chat", "alpha-lora", "alpha/chat:v2", "alpha%2Fchat:v2", "beta"])
def test_one_model_by_name(alphabet: Alphabet, name: str) -> None:
    """Names with slashes are usual ("org/name") and stand in the path as they are, or encoded."""
    content = alphabet.edge.get(f"/v1/models/{name}").json()
    assert content["id"] == name.replace("%2F", "/")
    assert content["object"] == "model"


@pytest.mark.parametrize("name", ["nobody", "Alpha", "org/beta:v1", "alpha/", "x" * 5000])
def test_an_unknown_name_is_404(alphabet: Alphabet, name: str) -> None:
    check_error(alphabet.edge.get(f"/v1/models/{name}"), 404, "model_not_found")


def test_the_length_that_engines_report_is_shown(alphabet: Alphabet) -> None:
    wait_until("the report", lambda: alphabet.edge.get("/v1/models/alpha").json().get("max_model_len") == 4_194_304)


def test_an_adapter_that_only_the_engine_knows_is_listed_and_routed() -> None:
    """Adapters are loaded while the engine runs; the fleet file does not know them all."""
    with ScriptedEngine("alpha", lora="late-lora") as engine, Edge(one_model("alpha", engine)) as edge:
        wait_until("it", lambda: "late-lora" in [one["id"] for one in edge.get("/v1/models").json()["data"]], 4)
        assert edge.post(CHAT, chat("late-lora")).json()["model"] == "late-lora"


def test_no_dead_engine_delays_the_list(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2)) as edge:
        engine.freeze()
        engine_2.kill()
        for _ in range(5):
            began = time.monotonic()
            answer = edge.get("/v1/models")
            assert answer.status_code == 200 and time.monotonic() - began < 0.2
            assert [entry["id"] for entry in answer.json()["data"]] == ["alpha"]


def test_head_works(alphabet: Alphabet) -> None:
    answer = alphabet.edge.call("HEAD", "/v1/models")
    assert answer.status_code == 200 and answer.content == b""
