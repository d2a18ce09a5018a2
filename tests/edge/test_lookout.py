"""Live facts and findings of a real edge before scripted engines. What real vLLM does is in tests/tuning."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner, Result

from control.cli import main
from control.fleet.load import load
from control.tuning.lookout import Lookout
from control.tuning.observe import Observer, edge_metrics, watch
from tests.support.client import CHAT, at_once, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until


def test_a_watch_sees_what_edge_and_engine_did(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    fleet = one_model("alpha", engine, engine_2)
    fleet["models"]["alpha"]["slo"] = {"ttft": "50ms"}
    with Edge(fleet) as edge:
        edge.post(CHAT, chat("alpha"))  # counts of before are no part of the window
        time.sleep(1.1)  # workers add up once a second
        asked: list[float] = []

        def ask(over: float) -> None:
            if not asked:
                at_once(12, lambda _: edge.post(CHAT, {**chat("alpha"), "stream": True, "scripted": {"first_ms": 300}}))
            asked.append(over)

        observer = watch(load(edge.fleet_file), 2.5, ["alpha"], ask)
        assert observer.silent == {} and asked[-1] == 2.5
        ((name, facts),) = observer.facts()
        assert name == "alpha" and sorted(facts.engines) == ["alpha-1", "alpha-2"]
        assert facts.ttft is not None and facts.ttft.count == 12
        assert facts.wait is not None and facts.wait.count == 12
        engines = facts.of_engines("ttft")
        assert engines is not None and engines.count == 12, "one or the other had them"
        assert [one.id for one in observer.findings()] == ["slo_ttft_missed"]


def test_advise_live_on_the_command_line(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2)) as edge:
        engine.configure(waiting=9)
        engine_2.kill()

        def advise(*arguments: str) -> Result:
            return CliRunner().invoke(main, ["--fleet", str(edge.fleet_file), "advise", *arguments])

        told = advise("--live=2.2s", "--json")
        found = json.loads(told.stdout)
        assert told.exit_code == 0 and [one["id"] for one in found["findings"]] == ["queue_in_the_engine"]
        assert found["observed"]["alpha"]["engines"]["alpha-1"]["waiting"] == {"mean": 9, "peak": 9}
        assert list(found["silent"]) == ["alpha-2"]
        text = advise("--live=2.2s", "--strict", "alpha")
        assert text.exit_code == 1 and "9 requests waited inside the engine" in text.stdout
        assert "alpha-2 told nothing" in text.stdout and "1 warning" in text.stdout
        wrong = advise("--live=soon")
        assert wrong.exit_code == 2 and "Write --live or --live=2m" in wrong.stderr


def test_silent_engines_are_named_and_the_others_seen(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2)) as edge:
        engine_2.kill()
        loaded = load(edge.fleet_file)
        observer = Observer(loaded, lambda: edge_metrics(loaded), 60)
        for _ in range(2):
            observer.look()
        assert list(observer.silent) == ["alpha-2"] and "cannot be read" in observer.silent["alpha-2"]
        assert list(dict(observer.facts())["alpha"].engines) == ["alpha-1"]
    observer.look()
    assert "never started" in observer.silent[""], "the edge is gone; engines are still asked"
    engine.restart()
    observer.look()
    assert dict(observer.facts())["alpha"].engines == {}, "another process: nothing is compared with the old one"


@pytest.mark.parametrize("through_state", [False, True])
def test_the_lookout_finds_and_forgets(engine: ScriptedEngine, through_state: bool) -> None:
    """``through_state``: gauges of the edge's /state, as the page's poller brings them."""
    fleet = one_model("alpha", engine)
    fleet["edge"]["probe"] = {"metrics": "100ms"}
    with Edge(fleet) as edge:
        lookout = Lookout(load(edge.fleet_file), every=3600 if through_state else 0.2)
        lookout.start()
        try:
            engine.configure(waiting=9)
            if through_state:
                wait_until("the edge to see it", lambda: edge.state()["backends"][0]["waiting"] == 9)
                for _ in range(3):
                    lookout.note(edge.state())
                lookout._observer.look()
                (found,) = lookout._observer.findings()
            else:
                (found,) = wait_until("a finding", lambda: lookout.findings, 10)
            assert (found.id, found.subject) == ("queue_in_the_engine", "alpha-1")
            lookout.set_fleet(load(edge.fleet_file))
            assert lookout.findings == ()
        finally:
            lookout.close()
