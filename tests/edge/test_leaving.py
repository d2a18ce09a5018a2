"""A backend leaves the fleet, or its id moves to another engine, while streams run: they are seen until they end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.edge.gate import EdgeGate
from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.queueing import hold, queue_length, send
from tests.support.raw import RawClient


def fleet(*engines: ScriptedEngine | None, limit: int | None = None) -> dict[str, Any]:
    """alpha-1, alpha-2 and so on; None leaves a number out."""
    bound = {"limit": limit} if limit else {}
    backends = [
        {"id": f"alpha-{number}", "url": engine.url, **bound} for number, engine in enumerate(engines, 1) if engine
    ]
    return {
        "edge": {"probe": {"idle": "1h"}},
        "models": {"alpha": {"backends": backends, "routing": {"policy": "least_loaded"}}},
    }


def change(edge: Edge, content: dict[str, Any]) -> None:
    edge.write(content)
    assert edge.reload().action == "pushed"


def leaving(edge: Edge) -> list[tuple[str, str, int]]:
    return [(entry["id"], entry["address"], entry["in_flight"]) for entry in edge.state()["leaving"]]


def address(engine: ScriptedEngine) -> str:
    return f"127.0.0.1:{engine.port}"


def two_streams(edge: Edge) -> list[RawClient]:
    """One on each of two engines."""
    streams = [hold(edge), hold(edge)]
    wait_until("one stream on each", lambda: [b["in_flight"] for b in edge.backends().values()] == [1, 1])
    return streams


def end(streams: list[RawClient]) -> None:
    for stream in streams:
        stream.close()


def test_what_left_is_seen_until_it_is_empty(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(fleet(engine, engine_2)) as edge:
        assert edge.state()["leaving"] == []
        streams = two_streams(edge)
        change(edge, fleet(engine))
        gone = [("alpha-2", address(engine_2), 1)]
        assert leaving(edge) == gone and list(edge.backends()) == ["alpha-1"]
        assert edge.metric("signalbox_in_flight", backend="alpha-2", model="alpha") == 1

        change(edge, fleet(engine, limit=50))
        edge.reload(force=True)
        assert leaving(edge) == gone, "another change and a reload of the workers later"
        assert {edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)} == {200}
        assert engine_2.started() == 1, "nothing new goes there"

        end(streams)
        wait_until("it to be empty", lambda: leaving(edge) == [])
        assert 'signalbox_in_flight{model="alpha",backend="alpha-2"}' not in edge.metrics()
        edge.idle()


def test_an_id_that_moves_to_another_engine_counts_anew(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """The new engine has its whole limit, whatever still runs on the old one; the metric is the sum."""
    with Edge(fleet(engine, limit=2)) as edge:
        old = [hold(edge), hold(edge)]
        waiting = send(edge, "waits", stream=True, tokens=100_000, delay_ms=50)
        wait_until("it to wait", lambda: queue_length(edge) == 1)
        change(edge, fleet(engine_2, limit=2))
        assert waiting.head().status == 200, "there is room on the new engine"
        new = [waiting, hold(edge)]
        assert engine_2.counters()["running"] == 2
        assert leaving(edge) == [("alpha-1", address(engine), 2)]
        assert edge.backends()["alpha-1"]["in_flight"] == 2
        assert edge.metric("signalbox_in_flight", backend="alpha-1") == 4
        third = send(edge, "third", stream=True, tokens=1)
        wait_until("a third to wait: two are the limit", lambda: queue_length(edge) == 1)
        end(old)
        wait_until("the old engine to be empty", lambda: leaving(edge) == [])
        assert queue_length(edge) == 1, "a place on the old engine is none on the new one"
        new[0].close()
        assert third.head().status == 200
        end(new)
        edge.idle()


def test_an_id_that_comes_back_finds_its_streams_counted(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(fleet(engine, engine_2)) as edge:
        streams = two_streams(edge)
        change(edge, fleet(engine))
        assert leaving(edge) == [("alpha-2", address(engine_2), 1)]
        change(edge, fleet(engine, engine_2, limit=1))
        assert leaving(edge) == []
        assert [b["in_flight"] for b in edge.backends().values()] == [1, 1]
        late = send(edge, "late", stream=True, tokens=1)
        wait_until("both to be full", lambda: queue_length(edge) == 1)
        end(streams)
        assert late.head().status == 200
        edge.idle()


def test_a_killed_worker_leaves_nothing_on_what_left(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(fleet(engine, engine_2), may_kill=True) as edge:
        streams = two_streams(edge)
        change(edge, fleet(engine))
        assert len(leaving(edge)) == 1
        for pid in edge.workers():
            edge.kill_worker(pid)
        wait_until("nothing to be left", lambda: leaving(edge) == [] and edge.in_flight() == 0)
        end(streams)


def test_counts_of_what_comes_and_goes_take_no_room(engine: ScriptedEngine) -> None:
    """The dictionary never evicts: when it is full, nothing is counted any more. Long ids fill it sooner."""
    with Edge(fleet(engine)) as edge:
        content = json.loads((edge.paths.conf / "fleet.json").read_text())
        (backend,) = content["backends"].values()
        content["timers"] = False
        for version in range(10, 410):
            id_ = f"{version:0>9000}"
            content |= {"version": version, "backends": {id_: backend}}
            content["models"]["alpha"]["backends"] = [id_]
            assert edge.admin("PUT", "/fleet", data=json.dumps(content)).status_code == 200
            assert edge.post(CHAT, chat("alpha", tokens=1)).status_code == 200
        edge.idle()
        full = [line[:120] for line in edge.error_log().splitlines() if "edge: slots: could not" in line]
        assert full == []


def test_a_wish_of_the_control_plane_leaves_the_operators_alone(engine: ScriptedEngine) -> None:
    with Edge(fleet(engine)) as edge:

        def call(verb: str, by: str = "") -> Any:
            return edge.admin("POST", f"/backends/alpha-1/{verb}{by}").json()["draining"]

        def seen() -> tuple[str, list[str]]:
            row = edge.backends()["alpha-1"]
            return row["state"], row["drained_by"]

        assert call("drain", "?by=control") is True
        assert seen() == ("draining", ["control"])
        assert "restarted" in edge.backends()["alpha-1"]["reason"]
        assert edge.post(CHAT, chat("alpha")).status_code == 503
        assert call("drain") is True
        assert seen() == ("draining", ["operator", "control"])
        assert call("resume", "?by=control") is True, "the operator's own wish stays"
        assert seen() == ("draining", ["operator"])
        call("drain", "?by=control")
        assert call("resume") is True, "and the other way round"
        assert call("resume", "?by=control") is False
        assert seen() == ("ready", [])
        assert edge.post(CHAT, chat("alpha")).status_code == 200
        assert edge.admin("POST", "/backends/alpha-1/drain?by=somebody").status_code == 400


@pytest.mark.slow
def test_a_wish_that_is_not_repeated_runs_out(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """The control plane was killed: nobody takes it back. One that lives repeats it."""
    with Edge(fleet(engine, engine_2)) as edge:
        gate = EdgeGate(edge.paths)
        assert gate.hold("alpha-2") and not gate.hold("alpha-2")
        edge.admin("POST", "/backends/alpha-1/drain?by=control")
        assert edge.post(CHAT, chat("alpha")).status_code == 503
        wait_until("the wish to run out", lambda: edge.backends()["alpha-1"]["state"] == "ready", 40, every=0.2)
        wait_until("every worker to know", lambda: edge.post(CHAT, chat("alpha")).status_code == 200)
        assert edge.backends()["alpha-2"]["drained_by"] == ["control"], "repeated in time"
        gate.release("alpha-2")
        assert edge.backends()["alpha-2"]["state"] == "ready"


def test_an_address_is_written_as_everywhere(engine: ScriptedEngine) -> None:
    with ScriptedEngine("alpha", host="::1", port=free_port()) as six, Edge(fleet(six)) as edge:
        stream = hold(edge)
        shown = edge.backends()["alpha-1"]["address"]
        change(edge, fleet(engine))
        assert leaving(edge) == [("alpha-1", shown, 1)] and shown == f"[::1]:{six.port}"
        stream.close()
