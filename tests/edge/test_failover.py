"""Engines that are down, come back, move: who serves meanwhile, and who is blamed."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests.support.client import CHAT, at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin"])
def test_a_refused_connection_goes_to_the_next_engine(
    engine: ScriptedEngine, engine_2: ScriptedEngine, policy: str
) -> None:
    """Nothing was sent, so nothing can run twice: from the moment of the crash on, no request fails."""
    with Edge(one_model("alpha", engine, engine_2, policy=policy)) as edge:
        engine.kill()
        for number in range(20):
            assert edge.post(CHAT, chat("alpha", stream=number % 2 == 0, tokens=2)).status_code == 200
        edge.idle()
        assert engine_2.started() == 20


def test_simultaneous_requests_survive_a_crash_of_one_engine(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        engine.kill()
        assert set(at_once(16, lambda _: edge.post(CHAT, chat("alpha")).status_code)) == {200}
        edge.idle()


def test_a_retried_body_is_whole(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """The body of the first try comes from memory or from a file; the second try needs it again."""
    body = chat("alpha", text="x" * 3_000_000, echo=True)
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        engine.kill()
        lengths = {edge.post(CHAT, body).json()["length"] for _ in range(4)}
    assert len(lengths) == 1 and lengths.pop() > 3_000_000


def test_the_log_says_which_engine_served_and_how_often_was_tried(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        engine.kill()
        ids = [f"try-{number}" for number in range(4)]
        for one in ids:
            assert edge.post(CHAT, chat("alpha"), headers={"X-Request-Id": one}).status_code == 200
        lines = [edge.log_of(one) for one in ids]
    assert {line["backend"] for line in lines} == {"alpha-2"}
    assert sum(line["retries"] for line in lines) >= 1


def test_engines_of_other_names_and_schemes_follow_each_other(certificate: Path) -> None:
    """Rented GPUs: each behind https at its own origin, each with its own key and its own name for the model."""
    names = ("org/first", "org/second", "alpha")
    with (
        ScriptedEngine(names[0], tls_certificate=str(certificate)) as first,
        ScriptedEngine(names[1], tls_certificate=str(certificate), api_key="second-key") as second,
        ScriptedEngine(names[2]) as third,
    ):
        engines = (first, second, third)
        ca = str(certificate.with_name("ca.pem"))
        with Edge(one_model("alpha", third), ready=False) as edge:
            (edge.folder / "second.key").write_text("second-key")
            (edge.folder / "second.key").chmod(0o644)
            backends = [
                {"url": f"https://localhost:{first.port}", "ca": ca, "model_name": names[0]},
                {"url": f"https://localhost:{second.port}", "ca": ca, "model_name": names[1], "key_file": "second.key"},
                {"url": third.url},
            ]
            model = {"aliases": ["al"], "routing": {"policy": "round_robin"}, "backends": backends}
            edge.write({"models": {"alpha": model}})
            edge.reload()
            edge.until_ready()
            body = chat("al", text="x" * 1_500_000, echo=True)
            for alive in range(3):
                for number, engine in enumerate(engines):
                    if number != alive:
                        engine.kill()
                for _ in range(6):
                    answer = edge.post(CHAT, body)
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["length"] == len(json.dumps({**body, "model": names[alive]}).encode())
                for number, engine in enumerate(engines):
                    if number != alive:
                        engine.start()
                wait_until(
                    "all to be ready", lambda: {one["state"] for one in edge.backends().values()} == {"ready"}, 15
                )
            edge.idle()


def test_an_alias_follows_to_an_engine_that_knows_only_the_models_name(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    """One engine knows the alias, the other does not: the name in the body is fitted for each anew."""
    engine.configure(names=["alpha", "al"])
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        snapshot = json.loads((edge.paths.conf / "fleet.json").read_text())
        snapshot["names"]["al"] = "alpha"
        snapshot["backends"]["alpha-1"]["served"] = ["alpha", "al"]
        snapshot["version"] += 1
        assert edge.admin("PUT", "/fleet", data=json.dumps(snapshot).encode()).status_code == 200
        assert [edge.post(CHAT, chat("al")).status_code for _ in range(4)] == [200] * 4
        engine.kill()
        assert [edge.post(CHAT, chat("al")).status_code for _ in range(6)] == [200] * 6


def test_when_all_refuse_the_client_may_try_again(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        engine.kill()
        engine_2.kill()
        answer = edge.post(CHAT, chat("alpha"), headers={"X-Request-Id": "nobody"})
        check_error(answer, 502, "engine_unreachable")
        assert int(answer.headers["Retry-After"]) > 0
        line = edge.log_of("nobody")
        assert (line["end"], line["retries"]) == ("engine_error", 1)
        edge.idle()


def test_an_adapter_is_asked_only_of_engines_that_have_it(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Loaded into one engine by hand: the others would answer 404."""
    engine_2.configure(loras=["by-hand"])
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        wait_until("the adapter", lambda: edge.post(CHAT, chat("by-hand")).status_code == 200, 5)
        assert [edge.post(CHAT, chat("by-hand")).status_code for _ in range(6)] == [200] * 6
        assert engine.started() == 0
        engine_2.kill()
        wait_until("alpha-2 to be down", lambda: edge.backends()["alpha-2"]["state"] == "down", 5)
        check_error(edge.post(CHAT, chat("by-hand")), 503, "no_backend_ready")


def test_a_rotated_engine_key_is_read_again() -> None:
    """A key file is replaced while everything runs; nobody reloads anything."""
    with ScriptedEngine("alpha", api_key="old-key") as engine, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        key = Path(folder, "engine.key")
        key.write_text("old-key\n")
        key.chmod(0o644)
        with Edge({"models": {"alpha": {"backends": [{"url": engine.url, "key_file": str(key)}]}}}) as edge:
            assert edge.post(CHAT, chat("alpha")).status_code == 200
            key.write_text("new-key\n")
            engine.configure(api_key="new-key")
            wait_until("the new key", lambda: edge.post(CHAT, chat("alpha")).status_code == 200, 20, every=0.2)


def test_a_busy_engines_503_is_not_sent_elsewhere(alphabet: Alphabet) -> None:
    """Its status is back-pressure for the client; to re-send by status would multiply the load."""
    assert alphabet.edge.post(CHAT, chat("alpha", status=503)).status_code == 503
    assert sum(engine.started() for engine in alphabet.alphas) == 1
    alphabet.edge.until_ready()


def test_an_engine_is_down_when_it_refuses_and_ready_when_it_is_back(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin")) as edge:
        engine.kill()
        wait_until("alpha-1 to be down", lambda: edge.backends()["alpha-1"]["state"] == "down", 5)
        assert edge.backends()["alpha-2"]["state"] == "ready"
        assert edge.backends()["alpha-1"]["reason"]
        engine.start()
        wait_until("alpha-1 to be ready again", lambda: edge.backends()["alpha-1"]["state"] == "ready", 5)
        at_once(8, lambda _: edge.post(CHAT, chat("alpha", headers_after_ms=100)))
        assert engine.started() > 0


def test_a_lone_engine_gets_requests_as_soon_as_it_is_back(engine: ScriptedEngine) -> None:
    """One failed request of a lone engine must not put it out of use: there is no other."""
    with Edge(one_model("alpha", engine)) as edge:
        check_error(edge.post(CHAT, chat("alpha", die=True)), 502, "engine_failed")
        assert edge.post(CHAT, chat("alpha")).status_code == 200
        engine.restart()
        wait_until("an answer", lambda: edge.post(CHAT, chat("alpha")).status_code == 200, 4)


def test_one_slow_request_ejects_nobody(engine: ScriptedEngine) -> None:
    """A time-out is a policy of ours, not a fault of the engine; pairs were halved for hours after one long prefill."""
    with Edge(one_model("alpha", engine, timeouts={"read": "300ms"})) as edge:
        for _ in range(3):
            check_error(edge.post(CHAT, chat("alpha", hang=True)), 504, "engine_timeout")
        assert edge.backends()["alpha-1"]["state"] == "ready"
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_a_clients_mistakes_are_not_blamed_on_the_engine(alphabet: Alphabet) -> None:
    for status in (400, 404, 422, 429):
        for _ in range(5):
            assert alphabet.edge.post(CHAT, chat("alpha", status=status)).status_code == status
    assert {backend["state"] for backend in alphabet.edge.state()["backends"]} == {"ready"}


def test_an_engine_whose_health_is_503_gets_no_requests(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """vLLM answers /health with 503 when its engine process is dead; the API process lives on for seconds."""
    with Edge(one_model("alpha", engine, engine_2)) as edge:
        engine.configure(health_status=503)
        wait_until("alpha-1 to be down", lambda: edge.backends()["alpha-1"]["state"] == "down", 5)
        engine.reset()
        assert {edge.post(CHAT, chat("alpha")).status_code for _ in range(6)} == {200}
        assert engine.started() == 0


def test_an_engine_may_start_long_after_the_edge(engine: ScriptedEngine) -> None:
    """Model loading takes minutes, and refuses connections meanwhile."""
    engine.kill()
    with Edge(one_model("alpha", engine), ready=False) as edge:
        check_error(edge.post(CHAT, chat("alpha")), 503, "no_backend_ready")
        assert edge.backends()["alpha-1"]["state"] == "starting"
        engine.start()
        edge.until_ready()
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_an_address_that_swallows_connections_costs_the_connect_time_out_only(engine: ScriptedEngine) -> None:
    """A dead host answers nothing at all, not even a refusal."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for one in fillers:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        fleet = one_model("alpha", engine, timeouts={"connect": "300ms"}, policy="round_robin")
        fleet["models"]["alpha"]["backends"].append({"id": "dead", "url": f"http://127.0.0.1:{full.getsockname()[1]}"})
        with Edge(fleet, ready=False) as edge:
            began = time.monotonic()
            assert {edge.post(CHAT, chat("alpha")).status_code for _ in range(6)} == {200}
            assert time.monotonic() - began < 3
        for one in fillers:
            one.close()


def test_a_dead_neighbour_does_not_slow_the_others_down(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """A frozen process accepts connections through the kernel and never answers: probing it must block nobody."""
    with Edge(one_model("alpha", engine)) as edge:
        engine_2.freeze()
        fleet = one_model("alpha", engine)
        fleet["models"]["other"] = {"backends": [{"id": "frozen", "url": engine_2.url}]}
        edge.write(fleet)
        edge.reload()
        stop = time.monotonic() + 1.5
        slowest = 0.0
        while time.monotonic() < stop:
            began = time.monotonic()
            assert edge.post(CHAT, chat("alpha", tokens=1)).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 0.5
        assert edge.backends()["alpha-1"]["state"] == "ready"
    assert threading.active_count() < 50
