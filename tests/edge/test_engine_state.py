"""What the edge thinks of engines that hang with /health 200, are busy, come back, or are not what they should be."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any

import pytest
import requests

from tests.support.client import CHAT, at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

#: A clock five times as fast as the usual one.
FAST = {"interval": "200ms", "metrics": "200ms", "window": "1s", "idle": "2s", "suspect": "500ms", "answer": "1s"}
WINDOW = 1.0
COMPLETIONS = "/v1/completions"


def states(edge: Edge) -> dict[str, str]:
    return {id_: backend["state"] for id_, backend in edge.backends().items()}


def until(edge: Edge, backend: str, state: str, seconds: float) -> float:
    """Wait for a state; returns how long it took."""
    began = time.monotonic()
    wait_until(f"{backend} to be {state}", lambda: states(edge)[backend] == state, seconds, every=0.05)
    return time.monotonic() - began


def background(edge: Edge, count: int, id_: str = "", **script: Any) -> list[threading.Thread]:
    """Streams that run meanwhile; how they end does not matter."""

    def one() -> None:
        with contextlib.suppress(requests.RequestException):
            headers = {"X-Request-Id": id_} if id_ else {}
            edge.post(CHAT, chat("alpha", stream=True, **script), timeout=20, headers=headers)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_hung_engine_with_health_200_is_out_within_two_windows(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    """Its /health says 200, its /metrics stands still, its streams are silent: vLLM whose core hangs."""
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin", probe={**FAST, "idle": "1h"})) as edge:
        streams = background(edge, 4, tokens=400, delay_ms=20)
        wait_until("streams on both", lambda: min(b["in_flight"] for b in edge.backends().values()) >= 1)
        time.sleep(1)
        assert states(edge) == {"alpha-1": "ready", "alpha-2": "ready"}
        engine.configure(freeze=True)
        assert until(edge, "alpha-1", "suspect", 6) <= 2 * WINDOW + 1
        reason = edge.backends()["alpha-1"]["reason"]
        assert "answers probes" in reason
        before = engine.started()
        assert [edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)] == [200] * 6
        assert engine.started() == before
        assert states(edge)["alpha-2"] == "ready"
        engine.configure(freeze=False)
        until(edge, "alpha-1", "ready", 4)
        for stream in streams:
            stream.join(20)
        assert {line["end"] for line in edge.log_lines()} == {"complete"}
        edge.idle()


def test_an_idle_engine_that_hangs_is_found_and_comes_back(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, probe=FAST)) as edge:
        engine.configure(freeze=True)
        assert until(edge, "alpha-1", "suspect", 8) <= 2 + 2 * WINDOW + 1
        assert states(edge)["alpha-2"] == "ready"
        engine.configure(freeze=False)
        until(edge, "alpha-1", "ready", 4)


def test_an_engine_without_metrics_is_judged_by_trials(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    engine.configure(metrics_status=404)
    with Edge(one_model("alpha", engine, engine_2, probe=FAST)) as edge:
        assert edge.backends()["alpha-1"]["running"] is None
        assert "signalbox_engine_running" in str(edge.metrics())
        assert edge.metric("signalbox_engine_running", backend="alpha-2") == 0
        assert not [one for one in edge.metrics() if "signalbox_engine" in one and "alpha-1" in one]
        engine.configure(freeze=True)
        until(edge, "alpha-1", "suspect", 10)
        engine.configure(freeze=False)
        until(edge, "alpha-1", "ready", 4)


def test_a_stopped_process_is_out_and_back(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """SIGSTOP of the whole server: the kernel accepts connections, nobody answers, probes neither."""
    with Edge(one_model("alpha", engine, engine_2, probe=FAST)) as edge:
        engine.freeze()
        wait_until("alpha-1 to be out", lambda: states(edge)["alpha-1"] in ("suspect", "down"), 8)
        assert {edge.post(CHAT, chat("alpha")).status_code for _ in range(4)} == {200}
        engine.thaw()
        until(edge, "alpha-1", "ready", 8)


def test_a_busy_engine_that_answers_probes_late_stays_in(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Late is not dead: it produces tokens all the time."""
    with Edge(one_model("alpha", engine, engine_2, policy="round_robin", probe=FAST)) as edge:
        streams = background(edge, 2, tokens=300, delay_ms=20)
        engine.configure(health_delay_ms=1500)
        seen = set()
        stop = time.monotonic() + 4.5
        while time.monotonic() < stop:
            seen.add(states(edge)["alpha-1"])
            time.sleep(0.05)
        assert seen <= {"ready", "busy"} and "busy" in seen
        engine.configure(health_delay_ms=0)
        until(edge, "alpha-1", "ready", 4)
        for stream in streams:
            stream.join(20)


def test_a_long_prefill_is_no_hang(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """No token for many windows, but the scheduler's steps go on."""
    with Edge(one_model("alpha", engine, engine_2, probe=FAST)) as edge:
        streams = background(edge, 2, first_ms=5000, tokens=1)
        stop = time.monotonic() + 5
        while time.monotonic() < stop:
            assert set(states(edge).values()) == {"ready"}
            time.sleep(0.1)
        for stream in streams:
            stream.join(20)


def test_requests_waiting_inside_an_engine_make_it_busy(engine: ScriptedEngine) -> None:
    engine.configure(waiting=3, kv_usage=0.75)
    with Edge(one_model("alpha", engine, probe=FAST), ready=False) as edge:
        until(edge, "alpha-1", "busy", 5)
        backend = edge.backends()["alpha-1"]
        assert (backend["waiting"], backend["kv_usage"], backend["running"]) == (3, 0.75, 0)
        assert edge.metric("signalbox_engine_waiting") == 3
        assert edge.metric("signalbox_engine_kv_usage_ratio") == 0.75
        assert edge.metric("signalbox_backend_state", state="busy") == 1
        assert edge.metric("signalbox_backend_state") == 1
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_the_last_engine_is_never_taken_out_for_a_suspicion(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, timeouts={"read": "700ms"}, probe=FAST)) as edge:
        engine.configure(freeze=True)
        until(edge, "alpha-1", "suspect", 8)
        check_error(edge.post(CHAT, chat("alpha")), 504, "engine_timeout")
        engine.configure(freeze=False)
        assert edge.post(CHAT, chat("alpha")).status_code == 200
        until(edge, "alpha-1", "ready", 4)


def test_an_engine_comes_back_after_one_trial(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """/health alone does not bring it back: it may answer long before it can generate."""
    with Edge(one_model("alpha", engine, engine_2, probe={**FAST, "idle": "1h"})) as edge:
        engine.kill()
        until(edge, "alpha-1", "down", 4)
        engine.start()
        until(edge, "alpha-1", "ready", 5)
        assert engine.started(COMPLETIONS) == 1
        engine.configure(freeze=True, health_status=503)
        until(edge, "alpha-1", "down", 4)
        engine.configure(health_status=200)
        stop = time.monotonic() + 2
        while time.monotonic() < stop:
            assert states(edge)["alpha-1"] in ("down", "suspect")
            time.sleep(0.05)
        assert {edge.post(CHAT, chat("alpha", text=f"{n}")).status_code for n in range(4)} == {200}
        assert engine.started() == 0
        engine.configure(freeze=False)
        until(edge, "alpha-1", "ready", 4)


def test_4xx_never_counts(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2, probe=FAST)) as edge:
        for status in (400, 404, 422, 429) * 3:
            assert edge.post(CHAT, chat("alpha", status=status)).status_code == status
        time.sleep(0.6)
        assert set(states(edge).values()) == {"ready"}
        assert engine.started(COMPLETIONS) + engine_2.started(COMPLETIONS) == 0


def test_an_engine_that_fails_everything_at_once_is_no_black_hole(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    """It is idle all the time, so every policy that looks at load sends everything there."""
    fleet = one_model("alpha", engine, engine_2, policy="round_robin", probe={**FAST, "idle": "1h"})
    with Edge(fleet) as edge:
        engine.configure(status=500)
        at_once(12, lambda _: edge.post(CHAT, chat("alpha")).status_code)
        until(edge, "alpha-1", "suspect", 4)
        assert {edge.post(CHAT, chat("alpha")).status_code for _ in range(6)} == {200}
        engine.configure(status=0)
        until(edge, "alpha-1", "ready", 4)


def test_a_refused_key_and_a_wrong_model_are_misconfigured(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    engine.configure(api_key="another")
    engine_2.configure(names=["other-model"])
    with Edge(one_model("alpha", engine, engine_2, probe=FAST), ready=False) as edge:
        until(edge, "alpha-1", "misconfigured", 4)
        until(edge, "alpha-2", "misconfigured", 4)
        backends = edge.backends()
        assert "key" in backends["alpha-1"]["reason"] and "other-model" in backends["alpha-2"]["reason"]
        check_error(edge.post(CHAT, chat("alpha")), 503, "no_backend_ready")
        engine.configure(api_key="")
        engine_2.configure(names=["alpha"])
        edge.until_ready(8)


def test_states_and_their_times_survive_reloads_and_killed_workers(
    engine: ScriptedEngine, engine_2: ScriptedEngine
) -> None:
    """Whoever looks after the engines next goes on where the last one was."""
    with Edge(one_model("alpha", engine, engine_2, probe=FAST), may_kill=True) as edge:
        engine.configure(freeze=True)
        until(edge, "alpha-1", "suspect", 8)
        since = edge.backends()["alpha-1"]["since"]
        edge.reload(force=True)
        for pid in edge.workers():
            edge.kill_worker(pid)
        time.sleep(1)
        backend = wait_until("an answer", lambda: edge.backends()["alpha-1"])
        assert (backend["state"], backend["since"]) == ("suspect", since)
        engine.configure(freeze=False)
        wait_until("it to be ready", lambda: states(edge)["alpha-1"] == "ready", 6)


def stop_logged(edge: Edge, request_id: str, body: dict[str, Any]) -> tuple[int, str, dict[str, Any]]:
    answer = edge.post(CHAT, body, headers={"X-Request-Id": request_id})
    return answer.status_code, answer.text, edge.log_of(request_id)


@pytest.mark.parametrize("split", [0, 7])
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_is_told_to_stop_ends_no_request_well(alphabet: Alphabet, stream: bool, split: int) -> None:
    """A SIGTERMed vLLM: 200, finish_reason "abort", [DONE]. The client gets it as it is; the log says whose fault."""
    before = alphabet.edge.metric("signalbox_requests_total", end="engine_error")
    body = chat("alpha", stream=stream, tokens=9, told_to_stop_after=4, split=split, delay_ms=20)
    status, text, line = stop_logged(alphabet.edge, f"told-{stream}-{split}", body)
    assert status == 200 and '"finish_reason":"abort"' in text
    assert (line["end"], line["status"]) == ("engine_error", 200)
    wait_until("the count", lambda: alphabet.edge.metric("signalbox_requests_total", end="engine_error") == before + 1)


def test_an_error_event_before_done_is_the_engines_fault(alphabet: Alphabet) -> None:
    status, text, line = stop_logged(alphabet.edge, "error-event", chat("alpha", stream=True, error_event_after=3))
    assert status == 200 and text.endswith("data: [DONE]\n\n") and line["end"] == "engine_error"


def test_text_that_speaks_of_an_abort_is_no_abort(alphabet: Alphabet) -> None:
    words = 'say "finish_reason":"abort" and "stop_reason":"abort"'
    body = {"model": "alpha", "input": words, "stream": True}
    alphabet.edge.post("/v1/responses", body, headers={"X-Request-Id": "speaks"})
    assert alphabet.edge.log_of("speaks")["end"] == "complete"
    alphabet.edge.post(CHAT, chat("alpha", text=words), headers={"X-Request-Id": "speaks-2"})
    assert alphabet.edge.log_of("speaks-2")["end"] == "complete"


def test_an_engine_that_never_ends_is_cut_and_named(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Two of eight SIGTERMed vLLMs kept their streams open for ever."""
    with Edge(one_model("alpha", engine, engine_2, timeouts={"read": "600ms"}, probe=FAST)) as edge:
        with pytest.raises(requests.RequestException):
            edge.post(CHAT, chat("alpha", stream=True, hang=True), headers={"X-Request-Id": "silent"})
        assert edge.log_of("silent")["end"] == "engine_timeout"
        (victim,) = background(edge, 1, id_="cut", tokens=500, delay_ms=20)
        wait_until("it to run", lambda: edge.in_flight() == 1)
        for one in (engine, engine_2):
            if one.counters()["running"]:
                assert one.process is not None
                os.kill(one.process.pid, signal.SIGKILL)
        victim.join(10)
        assert edge.log_of("cut")["end"] == "engine_cut"
        edge.idle()
