"""What /metrics says beside the requests: prefixes, errors, failed connects, dead workers, sizes, states."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import control
from tests.support.client import CHAT, at_once, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import REPOSITORY, wait_until

PROMPT, KNOWN = "signalbox_prefix_prompt_bytes_total", "signalbox_prefix_known_bytes_total"
SHARED = "signalbox_prefix_shared_bytes_total"


def until(edge: Edge, expected: float, name: str, **labels: str) -> None:
    """Wait for a counter: workers add up once a second."""
    seen: list[float] = []

    def same() -> bool:
        seen.append(edge.metric(name, **labels))
        return seen[-1] == expected

    try:
        wait_until(f"{name}{labels} to be {expected}", same, 4, every=0.05)
    except AssertionError as error:
        raise AssertionError(f"{name}{labels} is {seen[-1]}, not {expected}") from error


def talk(*texts: str) -> dict[str, Any]:
    """Messages of one conversation; each adds its text and what JSON puts around it."""
    return {"model": "alpha", "messages": [{"role": "user", "content": text} for text in texts]}


def message_bytes(text: str) -> int:
    return len('{"role": "user", "content": ""}') + len(text)


class TestPrefixEstimate:
    def test_the_second_turn_knows_the_first(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        first, more = message_bytes("a" * 3000), len(", ") + message_bytes("b" * 1000)
        with Edge(one_model("alpha", engine, engine_2)) as edge:
            edge.post(CHAT, talk("a" * 3000))
            until(edge, first, PROMPT)
            until(edge, 0, KNOWN)
            edge.post(CHAT, talk("a" * 3000, "b" * 1000))
            until(edge, 2 * first + more, PROMPT)
            until(edge, first, KNOWN)
            # Another beginning for 1,000 bytes: nothing of it is known.
            edge.post(CHAT, talk("c" * 1000))
            until(edge, 2 * first + more + message_bytes("c" * 1000), PROMPT)
            until(edge, first, KNOWN)
            assert edge.metric(SHARED) == first
            backends = {series for series in edge.metrics() if series.startswith(PROMPT)}
            assert backends and all('model="alpha",backend="alpha-' in series for series in backends)

    def test_prompts_that_only_a_salt_keeps_apart(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        size, salted = message_bytes("a" * 3000), "signalbox_prefix_salted_bytes_total"
        with Edge(one_model("alpha", engine, engine_2)) as edge:
            for salt in ("one", "two", "two", "three"):
                edge.post(CHAT, {**talk("a" * 3000), "cache_salt": salt})
            edge.post(CHAT, {**talk("b" * 1000), "cache_salt": "one"})  # too short to tell
            edge.post(CHAT, talk("a" * 3000))  # without a salt: nothing keeps it apart but that the others have one
            until(edge, 5 * size + message_bytes("b" * 1000), PROMPT)
            until(edge, 2 * size, salted)

    def test_what_another_backend_knows_is_shared(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        """The one that has seen the conversation drains: the other one gets it, and does not know it."""
        size = message_bytes("a" * 3000)
        with Edge(one_model("alpha", engine, engine_2)) as edge:
            edge.post(CHAT, talk("a" * 3000))
            until(edge, size, PROMPT)
            (series,) = (series for series in edge.metrics() if series.startswith(PROMPT))
            holder = "alpha-1" if "alpha-1" in series else "alpha-2"
            assert edge.admin("POST", f"/backends/{holder}/drain").status_code == 200
            edge.post(CHAT, talk("a" * 3000))
            until(edge, size, SHARED)
            assert edge.metric(KNOWN) == 0

    def test_a_request_that_waits_is_counted_once(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        """The first of a line asks for a backend many times a second."""
        fleet = one_model("alpha", engine, engine_2)
        for backend in fleet["models"]["alpha"]["backends"]:
            backend["limit"] = 1
        size = message_bytes("a" * 3000)
        with Edge(fleet) as edge:
            body = {**talk("a" * 3000), "scripted": {"headers_after_ms": 300}}
            answers = at_once(6, lambda _: edge.post(CHAT, body))
            assert {answer.status_code for answer in answers} == {200}
            until(edge, 6 * size, PROMPT)
            # Each engine sees it once for the first time.
            until(edge, 4 * size, KNOWN)

    def test_what_no_engine_got_is_not_counted(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        with Edge(one_model("alpha", engine, engine_2)) as edge:
            for one in (engine, engine_2):
                one.kill()
            assert edge.post(CHAT, talk("a" * 3000)).status_code in (502, 503)
            until(edge, 1, "signalbox_requests_total")
            assert edge.metric(PROMPT) == 0

    @pytest.mark.parametrize("policy", ["least_loaded", "session"])
    def test_other_policies_estimate_nothing(
        self, engine: ScriptedEngine, engine_2: ScriptedEngine, policy: str
    ) -> None:
        with Edge(one_model("alpha", engine, engine_2, policy=policy)) as edge:
            edge.post(CHAT, talk("a" * 3000))
            until(edge, 1, "signalbox_requests_total")
            assert not [series for series in edge.metrics() if series.startswith("signalbox_prefix_")]


def test_errors_are_counted_by_their_code(alphabet: Alphabet) -> None:
    """429 alone does not say whether a queue was full or an address too eager."""
    edge = alphabet.edge
    time.sleep(1.1)  # workers add up once a second
    wrong: list[tuple[dict[str, str], Any]] = [
        ({"error": "model_not_found", "model": ""}, chat("nobody")),
        ({"error": "engine_failed", "model": "beta"}, chat("beta", die=True)),
    ]
    before = [edge.metric("signalbox_errors_total", **labels) for labels, _ in wrong]
    for _, body in wrong:
        edge.post(CHAT, body)
    edge.post(CHAT, chat("beta", status=500))  # the engine's own error: none of ours
    total = edge.metric("signalbox_errors_total")
    for (labels, _), count in zip(wrong, before, strict=True):
        until(edge, count + 1, "signalbox_errors_total", **labels)
    assert edge.metric("signalbox_errors_total") <= total + 2


def test_failed_connects_are_counted_where_they_failed(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    fleet = one_model("alpha", engine, engine_2, policy="round_robin", probe={"interval": "1h"})
    with Edge(fleet) as edge:
        engine.kill()
        for _ in range(4):
            assert edge.post(CHAT, chat("alpha")).status_code == 200
        until(edge, 1, "signalbox_connect_failures_total", model="alpha", backend="alpha-1")
        assert edge.metric("signalbox_connect_failures_total") == 1
        until(edge, 1, "signalbox_connect_retries_total", model="alpha")


def test_dead_workers_and_what_they_held_are_counted(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine), may_kill=True) as edge:
        series = edge.metrics()
        # From the start: a counter that begins with its first event shows no rise.
        assert series["signalbox_worker_deaths_total"] == series["signalbox_slots_reaped_total"] == 0
        clients = [edge.raw() for _ in range(10)]
        for client in clients:
            client.request(CHAT, chat("alpha", stream=True, tokens=2000, delay_ms=50))
        assert {client.head().status for client in clients} == {200}
        killed = edge.workers()
        for pid in killed:
            edge.kill_worker(pid)
        wait_until("all slots to be free", lambda: edge.in_flight() == 0, 5)
        until(edge, len(killed), "signalbox_worker_deaths_total")
        until(edge, 10, "signalbox_slots_reaped_total")
        for client in clients:
            client.close()


def test_an_orderly_end_is_no_death(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        old = set(edge.workers())
        edge.reload(force=True)
        wait_until("the old workers to be gone", lambda: not old & set(edge.workers()), 10)
        wait_until("two workers", lambda: edge.metric("signalbox_workers", state="serving") == 2, 5)
        assert edge.metric("signalbox_workers", state="draining") == 0
        time.sleep(1.2)  # the janitor looks twice a second
        assert edge.metric("signalbox_worker_deaths_total") == 0


def test_the_size_of_every_dictionary_is_shown(alphabet: Alphabet) -> None:
    template = (REPOSITORY / "templates" / "nginx.conf.j2").read_text()
    sizes = {name: int(size) * 1024**2 for name, size in re.findall(r"lua_shared_dict (\w+) (\d+)m;", template)}
    assert sizes
    series = alphabet.edge.metrics()
    for name, size in sizes.items():
        assert series[f'signalbox_dict_capacity_bytes{{dict="{name}"}}'] == size
        assert 0 < series[f'signalbox_dict_free_bytes{{dict="{name}"}}'] < size
    assert sum(name.startswith("signalbox_dict_free_bytes") for name in series) == len(sizes)


def test_states_have_their_moment(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        name, labels = "signalbox_backend_state_since_seconds", {"model": "alpha", "backend": "alpha-1"}
        # A loaded machine may make it busy, or ready again, between two looks.
        wait_until("one moment", lambda: abs(edge.metric(name, **labels) - edge.backends()["alpha-1"]["since"]) < 0.001)
        since = edge.metric(name, **labels)
        assert abs(since - time.time()) < 60
        edge.admin("POST", "/backends/alpha-1/drain")
        assert edge.metric(name) > since


def test_limits_are_shown_where_there_are_any(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    fleet = one_model("alpha", engine, engine_2)
    fleet["models"]["alpha"]["backends"][0]["limit"] = 7
    fleet["models"]["alpha"]["queue"] = {"max_waiting": 31}
    with Edge(fleet) as edge:
        limits = {name: value for name, value in edge.metrics().items() if name.partition("{")[0].endswith("_limit")}
    assert limits == {
        'signalbox_backend_limit{model="alpha",backend="alpha-1"}': 7,
        'signalbox_queue_limit{model="alpha"}': 31,
    }


def test_edges_of_one_fleet_have_one_hash(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Whatever their names resolve to there, and however often each was changed."""
    fleet = one_model("alpha", engine, engine_2)
    with Edge(fleet) as one, Edge(fleet) as other:
        own = one.metric("signalbox_fleet_hash")
        assert own > 0 and own == other.metric("signalbox_fleet_hash")
        other.write(one_model("alpha", engine))
        other.reload()
        wait_until("another hash", lambda: other.metric("signalbox_fleet_hash") != own, 5)
        other.write(fleet)
        other.reload()
        wait_until("the same hash", lambda: other.metric("signalbox_fleet_hash") == own, 5)
        assert other.metric("signalbox_fleet_version") > one.metric("signalbox_fleet_version")


def test_the_version_is_shown(alphabet: Alphabet) -> None:
    info = [series for series in alphabet.edge.metrics() if series.startswith("signalbox_build_info")]
    assert len(info) == 1
    assert re.fullmatch(
        rf'signalbox_build_info{{version="{re.escape(control.__version__)}",nginx="\d+\.\d+\.\d+"}}', info[0]
    )
