"""An operator takes a backend out and puts it back: nothing that runs is broken, nothing new comes."""

from __future__ import annotations

import threading

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def test_a_drained_backend_finishes_and_takes_nothing_new(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin", probe={"idle": "1h"})) as edge:
        texts: list[str] = []
        body = chat("alpha", stream=True, tokens=60, delay_ms=25)
        streams = [threading.Thread(target=lambda: texts.append(edge.post(CHAT, body).text)) for _ in range(4)]
        for stream in streams:
            stream.start()
        wait_until("two streams on each", lambda: all(b["in_flight"] == 2 for b in edge.backends().values()))
        answer = edge.admin("POST", "/backends/alpha-1/drain").json()
        assert answer == {"id": "alpha-1", "draining": True, "in_flight": 2, "others_ready": 1}
        backend = edge.backends()["alpha-1"]
        assert (backend["state"], backend["in_flight"]) == ("draining", 2)
        started = engine.started()
        assert {edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)} == {200}
        assert engine.started() == started
        assert edge.metric("signalbox_backend_state", backend="alpha-1", state="draining") == 1

        edge.reload(force=True)
        assert edge.backends()["alpha-1"]["state"] == "draining"
        wait_until("it to be empty", lambda: edge.backends()["alpha-1"]["in_flight"] == 0)
        for stream in streams:
            stream.join(10)
        assert len(texts) == 4 and all(text.endswith("data: [DONE]\n\n") for text in texts)
        assert {edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)} == {200}
        assert engine.started() == started

        assert edge.admin("POST", "/backends/alpha-1/resume").json()["draining"] is False
        assert edge.backends()["alpha-1"]["state"] == "ready"
        assert {edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)} == {200}
        assert engine.started() > started


def test_draining_survives_the_engines_own_restart(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """That is what one drains it for."""
    with Edge(one_model("alpha", engine, engine_2)) as edge:
        edge.admin("POST", "/backends/alpha-1/drain")
        engine.kill()
        wait_until("the reason", lambda: "down" in edge.backends()["alpha-1"]["reason"])
        engine.start()
        wait_until("the reason", lambda: "down" not in edge.backends()["alpha-1"]["reason"])
        assert edge.backends()["alpha-1"]["state"] == "draining"
        assert {edge.post(CHAT, chat("alpha", text=f"{n}")).status_code for n in range(6)} == {200}
        assert engine.started() == 0


def test_without_another_backend_clients_are_told(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        assert edge.admin("POST", "/backends/alpha-1/drain").json()["others_ready"] == 0
        check_error(edge.post(CHAT, chat("alpha")), 503, "no_backend_ready")
        edge.admin("POST", "/backends/alpha-1/resume")
        assert edge.post(CHAT, chat("alpha")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/backends/nobody/drain", 404),
        ("POST", "/backends/nobody/resume", 404),
        ("GET", "/backends/alpha-1/drain", 404),
        ("POST", "/backends/alpha-1/stop", 404),
        ("POST", "/backends//drain", 404),
        ("DELETE", "/requests/", 404),
        ("DELETE", "/requests/no-such", 404),
    ],
)
def test_calls_that_name_nothing_are_refused(solo: Edge, method: str, path: str, status: int) -> None:
    answer = solo.admin(method, path)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_without_the_token_nothing_is_done(solo: Edge) -> None:
    for method, path in (("POST", "/backends/alpha-1/drain"), ("GET", "/requests"), ("DELETE", "/requests/x")):
        assert solo.admin(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert solo.backends()["alpha-1"]["state"] == "ready"
