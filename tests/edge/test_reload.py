"""Reloads: nothing that runs is lost, nothing that is broken gets in."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from control.edge.render import Sources
from control.errors import SignalboxError
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import REPOSITORY, wait_until
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast


def read_streams(clients: list[RawClient]) -> list[int]:
    """Read all streams to their end, side by side; the number of events of each."""
    counts = [0] * len(clients)

    def read(number: int) -> None:
        counts[number] = sum(1 for _ in clients[number].events())

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def test_a_hundred_streams_survive_reloads(engine: ScriptedEngine) -> None:
    """Old workers finish what they have; new requests meet new workers; counts and metrics go on."""
    with Edge(one_model("alpha", engine)) as edge:
        old = set(edge.workers())
        clients = [edge.raw() for _ in range(100)]
        for client in clients:
            client.request(CHAT, chat("alpha", stream=True, tokens=35, delay_ms=100))
        assert {client.head().status for client in clients} == {200}
        for _ in range(2):
            edge.reload(force=True)
            assert edge.in_flight() == 100
            assert edge.post(CHAT, chat("alpha")).status_code == 200
        assert read_streams(clients) == [37] * 100
        edge.idle()
        wait_until("the old workers to be gone", lambda: not old & set(edge.workers()), 5)
        wait_until(
            "what old workers counted",
            lambda: edge.metric("signalbox_requests_total", end="complete") == 102,
            3,
            every=0.05,
        )
        assert edge.metric("signalbox_ttft_seconds_count") == 100
        assert {line["end"] for line in edge.log_lines()} == {"complete"}


def test_requests_during_reloads_never_fail(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        stop = threading.Event()
        codes: list[int] = []

        def client() -> None:
            while not stop.is_set():
                codes.append(edge.post(CHAT, chat("alpha", tokens=1), new_connection=True).status_code)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            edge.reload(force=True)
        stop.set()
        for thread in threads:
            thread.join()
    assert len(codes) > 20 and set(codes) == {200}


def test_a_stream_is_cut_when_the_drain_time_is_over_and_frees_its_slot(engine: ScriptedEngine) -> None:
    """Without a bound, old workers pile up for as long as a stream lasts."""
    with Edge(one_model("alpha", engine, edge_timeouts={"drain": "1s"})) as edge, edge.raw() as client:
        client.request(CHAT, chat("alpha", stream=True, tokens=1000, delay_ms=20))
        assert client.head().status == 200
        edge.reload(force=True)
        wait_until("the engine to be told", lambda: engine.counters()["aborted"].get(CHAT) == 1, 4)
        edge.idle(2)


def test_a_request_that_is_cut_before_it_has_a_status_is_logged_as_json(engine: ScriptedEngine) -> None:
    """nginx writes such a status as 000, which is no JSON."""
    with Edge(one_model("alpha", engine, edge_timeouts={"drain": "500ms"})) as edge, edge.raw() as client:
        client.request(CHAT, chat("alpha", hang=True), headers={"X-Request-Id": "no-status"})
        wait_until("it to run", lambda: engine.started() == 1)
        edge.reload(force=True)
        assert client.closed()
        assert edge.log_of("no-status")["status"] == 0


def test_a_new_model_needs_no_new_workers(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """Models and backends are told to the running workers; the state of the others stays known."""
    engine_2.configure(names=["gamma"])
    with Edge(one_model("alpha", engine)) as edge:
        check_error(edge.post(CHAT, chat("gamma")), 404, "model_not_found")
        workers, version = set(edge.workers()), edge.state()["fleet_version"]
        fleet = one_model("alpha", engine)
        fleet["models"]["gamma"] = {"backends": [{"url": engine_2.url}]}
        edge.write(fleet)
        assert edge.reload().action == "pushed"
        edge.until_ready()
        for _ in range(10):
            assert edge.post(CHAT, chat("gamma"), new_connection=True).status_code == 200
        assert set(edge.workers()) == workers
        assert edge.state()["fleet_version"] == version + 1
        edge.write(one_model("alpha", engine))
        edge.reload()
        for _ in range(10):
            check_error(edge.post(CHAT, chat("gamma"), new_connection=True), 404, "model_not_found")


def test_a_removed_backend_finishes_its_streams(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, engine_2)) as edge, edge.raw() as client:
        client.request(CHAT, chat("alpha", stream=True, tokens=40, delay_ms=20))
        assert client.head().status == 200
        busy = engine if engine.counters()["running"] else engine_2
        edge.write(one_model("alpha", engine_2 if busy is engine else engine))
        edge.reload()
        assert [event for _, event in client.events()][-1] == b"data: [DONE]"
        assert busy.counters()["finished"][CHAT] == 1


@pytest.mark.parametrize("spoil", ["no scheme", "unknown default", "null default"])
def test_a_fleet_that_would_break_requests_is_refused(solo: Edge, spoil: str) -> None:
    """Whatever is wrong with a fleet.json shows when it is given, not in the first request."""
    snapshot = json.loads((solo.paths.conf / "fleet.json").read_text())
    snapshot["version"] += 1
    if spoil == "no scheme":
        for backend in snapshot["backends"].values():
            del backend["scheme"]
    else:
        snapshot["default_model"] = "nobody" if spoil == "unknown default" else None
    assert solo.admin("PUT", "/fleet", data=json.dumps(snapshot).encode()).status_code == 400
    assert solo.post(CHAT, {"messages": []}).status_code in (200, 400)
    assert solo.state()["fleet_version"] == snapshot["version"] - 1


@pytest.mark.parametrize(
    "text",
    ["", "nope", "[]", "{}", '{"version": "x"}', '{"version":9,"models":{"a":{}},"backends":{},"names":{}}',
     '{"version":9,"models":{},"backends":{},"names":{"a":"b"}}'],
)  # fmt: skip
def test_a_broken_fleet_is_refused_and_changes_nothing(solo: Edge, text: str) -> None:
    before = solo.state()["fleet_version"]
    answer = solo.admin("PUT", "/fleet", data=text.encode())
    assert answer.status_code == 400 and answer.json()["error"]
    assert solo.state()["fleet_version"] == before
    assert solo.post(CHAT, chat("alpha")).status_code == 200


def broken_lua(folder: Path) -> None:
    with (folder / "lua" / "edge" / "policy.lua").open("a") as module:
        module.write("\nthis is no Lua\n")


def failing_lua(folder: Path) -> None:
    (folder / "lua" / "edge" / "routes.lua").write_text('error("routes are broken on purpose")\n')


def broken_template(folder: Path) -> None:
    path = folder / "templates" / "nginx.conf.j2"
    path.write_text(path.read_text().replace("{% endif %}", "", 1))


def broken_directive(folder: Path) -> None:
    path = folder / "templates" / "nginx.conf.j2"
    path.write_text(path.read_text().replace("gzip off;", "gzip perhaps;", 1))


def missing_module(folder: Path) -> None:
    (folder / "lua" / "edge" / "slots.lua").unlink()


BREAKS = (broken_lua, failing_lua, missing_module, broken_template, broken_directive)


@pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__.replace("_", " "))
def test_what_is_broken_leaves_the_running_edge_serving(engine: ScriptedEngine, tmp_path: Path, spoil: object) -> None:
    """`nginx -t` does not run Lua: only new workers that answer prove a reload. Live streams notice nothing."""
    assert callable(spoil)
    for name in ("lua", "templates"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    sources = Sources(lua=tmp_path / "lua", templates=tmp_path / "templates")
    with Edge(one_model("alpha", engine), sources=sources) as edge, edge.raw() as client:
        client.request(CHAT, chat("alpha", stream=True, tokens=10_000, delay_ms=20))
        assert client.head().status == 200
        events = client.events()
        next(events)
        workers = set(edge.workers())
        spoil(tmp_path)
        with pytest.raises(SignalboxError) as caught:
            edge.reload()
        assert str(caught.value)
        for _ in range(6):
            assert edge.post(CHAT, chat("alpha"), new_connection=True).status_code == 200
        assert set(edge.workers()) == workers
        while next(events)[0] < time.time() - 0.1:
            pass  # events that were waiting for us; one that is fresh shows that the stream lives
        edge.check_log = lambda log=None: None  # type: ignore[method-assign]  # nginx rightly reports the broken files


def test_broken_yaml_changes_nothing(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        before = (edge.state()["generation"], edge.state()["fleet_version"], set(edge.workers()))
        good = edge.fleet_file.read_text()
        for text in ("models: [", "models: {}", good + "\nunknown: 1\n", good.replace("url:", "ulr:")):
            edge.fleet_file.write_text(text)
            with pytest.raises(SignalboxError):
                edge.reload()
        assert (edge.state()["generation"], edge.state()["fleet_version"], set(edge.workers())) == before
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_an_edge_restarts_without_the_control_plane(engine: ScriptedEngine) -> None:
    """What it was last told lies in its folder: a cold start needs nobody else."""
    with Edge(one_model("alpha", engine)) as edge:
        edge.process.stop(quit=False)
        edge.process.start()
        edge.until_ready()
        assert edge.post(CHAT, chat("alpha")).status_code == 200


def test_stop_lets_streams_finish(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge, edge.raw() as client:
        client.request(CHAT, chat("alpha", stream=True, tokens=30, delay_ms=20))
        assert client.head().status == 200
        stopper = threading.Thread(target=edge.process.stop)
        stopper.start()
        assert [event for _, event in client.events()][-1] == b"data: [DONE]"
        client.close()
        stopper.join()
        assert edge.process.pid() is None


def test_dictionaries_keep_their_sizes() -> None:
    """A changed size gives new workers an empty dictionary while old ones keep theirs: sizes are no settings."""
    template = (REPOSITORY / "templates" / "nginx.conf.j2").read_text()
    lines = [line.strip() for line in template.splitlines() if "lua_shared_dict" in line]
    assert lines and not [line for line in lines if "{" in line]


def test_a_reload_without_a_change_reloads_nothing(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine)) as edge:
        before = edge.state()
        began = time.monotonic()
        assert edge.reload().action == "nothing"
        assert time.monotonic() - began < 2
        after = edge.state()
        assert {worker["pid"] for worker in before["workers"]} == {worker["pid"] for worker in after["workers"]}
        assert before["fleet_version"] == after["fleet_version"]
