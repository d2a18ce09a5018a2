"""An engine that leaves the fleet or is started anew: real edge, scripted engines, live streams that must not break."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from control.edge.gate import EdgeGate
from control.engines.health import listens
from control.engines.local import EngineStatus, Policy, Supervisor
from control.engines.processes import Record
from control.engines.recorded import stop_recorded
from control.fleet.load import load
from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.net import REPOSITORY, free_port, wait_until
from tests.support.processes import of_folder
from tests.support.queueing import hold
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

SCRIPTED = ["{python}", "-m", "tests.scripted", "--port", "{port}", "--name", "{name}"]
FAST = Policy(poll=0.05, pauses=(0.05,), retry=0.2, drain=0.05)
#: Seconds in which a supervisor that did not wait would have ended an engine.
WHILE = 1.0


class Stage:
    """An edge and a supervisor on one fleet.yaml, changed together as `signalbox reload` does."""

    def __init__(self, ports: list[int], **engine: Any) -> None:
        self.engine = engine
        self.edge = Edge(self.fleet(ports), ready=False)
        self.supervisors: list[Supervisor] = []

    def fleet(self, ports: list[int], **engine: Any) -> dict[str, Any]:
        settings = {"command": SCRIPTED, "stop_timeout": "2s", **self.engine, **engine}
        backends = [{"id": f"alpha-{n}", "host": "here", "port": port} for n, port in enumerate(ports, 1)]
        model = {"engine": settings, "backends": backends, "routing": {"policy": "least_loaded"}}
        return {
            "edge": {"probe": {"idle": "1h"}},
            "control": {"listen": f"127.0.0.1:{free_port()}"},
            "hosts": {"here": {"local": True}},
            "models": {"alpha": model},
        }

    def supervise(self) -> Supervisor:
        supervisor = Supervisor(load(self.edge.fleet_file), self.edge.paths, FAST, EdgeGate(self.edge.paths))
        self.supervisors.append(supervisor)
        supervisor.start()
        return supervisor

    def change(self, ports: list[int], **engine: Any) -> None:
        self.apply(self.fleet(ports, **engine))

    def apply(self, content: dict[str, Any]) -> None:
        self.edge.write(content)
        self.edge.reload()
        self.supervisors[-1].reload(load(self.edge.fleet_file))

    def status(self, identity: str = "alpha-1") -> EngineStatus:
        return next(status for status in self.supervisors[-1].status() if status.id == identity)

    def until_ready(self) -> dict[str, int]:
        """Wait until all engines are ready and the edge knows; their pids."""

        def ready() -> bool:
            engines = all(status.state == "ready" for status in self.supervisors[-1].status())
            return engines and all(backend["state"] == "ready" for backend in self.edge.state()["backends"])

        wait_until("all engines to be ready", ready, 20, every=0.05)
        return {status.id: status.pid or 0 for status in self.supervisors[-1].status()}

    def leaving(self) -> dict[str, int]:
        return {entry["id"]: entry["in_flight"] for entry in self.edge.state()["leaving"]}


@contextlib.contextmanager
def stage(ports: list[int], **engine: Any) -> Iterator[Stage]:
    here = Stage(ports, **engine)
    folder = here.edge.folder
    with here.edge:
        try:
            here.supervise()
            yield here
        finally:
            for supervisor in here.supervisors:
                supervisor.stop_all()
            stop_recorded(here.edge.paths)
    assert of_folder(folder) == []


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stream(edge: Edge, tokens: int = 100) -> RawClient:
    """A stream of ``tokens`` tokens, one every 40 ms."""
    client = edge.raw()
    client.request(CHAT, chat("alpha", stream=True, tokens=tokens, delay_ms=40))
    assert client.head().status == 200
    return client


def backend_of(edge: Edge) -> str:
    """The backend that the only stream runs on."""

    def found() -> list[str]:
        return [id_ for id_, backend in edge.backends().items() if backend["in_flight"]]

    (identity,) = wait_until("the stream to be counted", found)
    return identity


def whole(client: RawClient) -> bool:
    """Read the stream to its end."""
    events = [event for _, event in client.events()]
    client.close()
    return events[-1] == b"data: [DONE]"


def test_a_stream_on_an_engine_that_leaves_runs_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        clients = [stream(here.edge), stream(here.edge)]  # one on each
        here.change(ports[:1])
        assert here.leaving() == {"alpha-2": 1}
        time.sleep(WHILE)
        assert lives(pids["alpha-2"]) and here.leaving() == {"alpha-2": 1}
        assert [whole(client) for client in clients] == [True, True]
        wait_until("its process to go", lambda: not lives(pids["alpha-2"]), 10)
        assert lives(pids["alpha-1"]) and here.leaving() == {}
    text = caplog.text
    assert "alpha-2: waiting for 1 sequence before it is stopped (600 s at most)." in text
    assert "alpha-2 has left the fleet: its engine is stopped." in text


def test_an_idle_engine_that_leaves_is_stopped_at_once() -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        client = hold(here.edge)
        busy = backend_of(here.edge)
        gone = next(id_ for id_ in pids if id_ != busy)
        content = here.fleet(ports)
        (model,) = content["models"].values()
        model["backends"] = [backend for backend in model["backends"] if backend["id"] == busy]
        here.apply(content)
        wait_until("its process to go", lambda: not lives(pids[gone]), 10)
        assert lives(pids[busy])
        client.close()


def test_a_changed_engine_is_restarted_when_its_streams_have_ended() -> None:
    ports = [free_port(), free_port()]
    with stage(ports, min_ready=0) as here:  # an operator keeps the other one out all the time
        before = here.until_ready()
        client = stream(here.edge)
        busy = backend_of(here.edge)
        here.edge.admin("POST", "/backends/alpha-2/drain")
        here.change(ports, environment={"COLOUR": "green"})

        wait_until("it to be drained", lambda: "control" in here.edge.backends()[busy]["drained_by"])
        wait_until("what it waits for to be told", lambda: here.status(busy).phase == "draining")
        assert here.status(busy).detail == f"waiting for 1 sequence on {busy} before its restart"
        time.sleep(WHILE)
        assert lives(before[busy]) and here.edge.backends()[busy]["in_flight"] == 1
        assert whole(client)

        def restarted() -> bool:
            now = {status.id: status for status in here.supervisors[-1].status()}
            return all(one.state == "ready" and one.pid != before[id_] for id_, one in now.items())

        wait_until("both to be new", restarted, 20)
        assert psutil.Process(here.status(busy).pid).environ()["COLOUR"] == "green"
        wait_until("the edge to use it", lambda: here.edge.backends()["alpha-1"]["state"] == "ready", 10)
        rows = here.edge.backends()
        assert [rows[id_]["drained_by"] for id_ in ("alpha-1", "alpha-2")] == [[], ["operator"]]
        assert rows["alpha-2"]["state"] == "draining", "an operator's own drain survives"


def test_an_engine_that_gets_another_port_ends_at_the_old_one_when_it_is_empty() -> None:
    port, other = free_port(), free_port()
    with stage([port]) as here:
        before = here.until_ready()
        client = stream(here.edge)
        here.change([other])
        assert here.leaving() == {"alpha-1": 1}
        time.sleep(WHILE)
        assert lives(before["alpha-1"])
        assert whole(client)
        wait_until("the new one", lambda: here.status().pid != before["alpha-1"] and here.status().state == "ready", 20)
        assert not lives(before["alpha-1"])
        wait_until("requests", lambda: here.edge.post(CHAT, chat("alpha", tokens=1)).status_code == 200, 10)


def test_a_backend_that_comes_back_keeps_its_engine() -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        before = here.until_ready()
        clients = [stream(here.edge), stream(here.edge)]
        here.change(ports[:1])
        assert here.leaving() == {"alpha-2": 1}
        here.change(ports)
        assert here.until_ready() == before
        assert [whole(client) for client in clients] == [True, True]
        assert here.until_ready() == before


def test_a_change_that_is_taken_back_restarts_nothing() -> None:
    ports = [free_port()]
    with stage(ports) as here:
        before = here.until_ready()
        client = stream(here.edge)
        here.change(ports, environment={"COLOUR": "green"})
        wait_until("it to be drained", lambda: here.edge.backends()["alpha-1"]["state"] == "draining")
        here.change(ports)
        assert here.until_ready() == before
        assert whole(client)


def test_after_drain_timeout_the_stream_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    ports = [free_port(), free_port()]
    with stage(ports, drain_timeout="1s") as here:
        pids = here.until_ready()
        clients = [hold(here.edge), hold(here.edge)]
        began = time.monotonic()
        here.change(ports[:1])
        wait_until("its process to go", lambda: not lives(pids["alpha-2"]), 15)
        assert time.monotonic() - began >= 1
        assert "alpha-2: requests still ran after 1 s (engine.drain_timeout)." in caplog.text
        wait_until("its stream to be over", lambda: here.leaving() == {})
        assert here.edge.in_flight() == 1, "the other one runs on"
        for client in clients:
            client.close()


def test_without_an_edge_nobody_is_waited_for() -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        clients = [hold(here.edge), hold(here.edge)]
        here.edge.process.stop(quit=False)
        here.edge.write(here.fleet(ports[:1]))
        here.supervisors[-1].reload(load(here.edge.fleet_file))
        wait_until("its process to go", lambda: not lives(pids["alpha-2"]), 10)
        for client in clients:
            client.close()


def test_engines_of_a_model_are_restarted_one_after_another_and_a_failure_stops_that() -> None:
    """No request is lost meanwhile: nothing new is sent to the one whose turn it is, and a stream there may finish."""
    ports = [free_port(), free_port(), free_port()]
    with stage(ports) as here:
        before = here.until_ready()
        over = threading.Event()
        statuses: list[int] = []
        fewest = [len(ports)]

        def ask() -> None:
            while not over.wait(0.02):
                statuses.append(here.edge.post(CHAT, chat("alpha", tokens=1)).status_code)
                fewest[0] = min(fewest[0], sum(listens("127.0.0.1", port) for port in ports))

        client = stream(here.edge, 60)
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            here.change(ports, environment={"COLOUR": "red"})
            assert whole(client)
            wait_until("all to be restarted", lambda: not any(map(lives, before.values())), 30, every=0.05)
            after = here.until_ready()
        finally:
            over.set()
            thread.join()
        assert set(statuses) == {200} and fewest == [2]

        here.change(ports, command=["sh", "-c", "exit 3"])
        wait_until("one to fail", lambda: any(one.state == "failed" for one in here.supervisors[-1].status()), 20)
        time.sleep(WHILE)
        left = [one for one in here.supervisors[-1].status() if one.phase == "waiting for its turn"]
        assert len(left) == 2 and all(one.pid is not None and lives(one.pid) for one in left)
        assert sum(map(lives, after.values())) == 2
        here.change(ports, environment={"COLOUR": "blue"})
        wait_until("the others to follow", lambda: not any(map(lives, after.values())), 30, every=0.05)
        here.until_ready()


def test_an_edge_that_refuses_to_answer_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        clients = [hold(here.edge), hold(here.edge)]
        token = here.edge.paths.admin_token
        kept = token.read_text()
        token.write_text("x" * 32)
        here.edge.write(here.fleet(ports[:1]))
        here.supervisors[-1].reload(load(here.edge.fleet_file))
        wait_until("its process to go", lambda: not lives(pids["alpha-2"]), 10)
        token.write_text(kept)
        assert "alpha-2: not waited for, because the edge does not answer" in caplog.text
        for client in clients:
            client.close()


def test_stopping_all_waits_for_nobody() -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        clients = [hold(here.edge), hold(here.edge)]
        here.change(ports[:1], environment={"COLOUR": "green"})
        wait_until("both to be drained", lambda: here.leaving() and here.status().phase == "draining")
        began = time.monotonic()
        here.supervisors[-1].stop_all()
        assert time.monotonic() - began < 15 and not any(map(lives, pids.values()))
        for client in clients:
            client.close()


def test_engines_that_left_while_nobody_supervised_are_drained_too() -> None:
    ports = [free_port(), free_port()]
    with stage(ports) as here:
        pids = here.until_ready()
        clients = [stream(here.edge), stream(here.edge)]
        here.supervisors[-1].close()
        here.edge.write(here.fleet(ports[:1]))
        here.edge.reload()
        here.supervise()
        time.sleep(WHILE)
        assert lives(pids["alpha-2"]) and here.leaving() == {"alpha-2": 1}
        assert [whole(client) for client in clients] == [True, True]
        wait_until("its process to go", lambda: not lives(pids["alpha-2"]), 10)


def test_a_killed_control_plane_leaves_nothing_drained() -> None:
    ports = [free_port()]
    with stage(ports) as here:
        here.until_ready()
        here.supervisors.pop().close()
        edge = here.edge
        log = edge.folder / "control.log"
        plain, green = here.fleet(ports), here.fleet(ports, environment={"COLOUR": "green"})
        green["control"] = plain["control"]

        def serve() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "control", "-f", str(edge.fleet_file), "serve"]
            with log.open("ab") as output:
                return subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)

        def drained_by() -> Any:
            return edge.backends()["alpha-1"]["drained_by"]

        client = hold(edge)
        edge.write(green)
        daemon = serve()
        try:
            wait_until("it to be drained", lambda: drained_by() == ["control"], 20)
            daemon.kill()
            daemon.wait()
            record = Record.load(edge.paths.engine("alpha-1"))
            assert record is not None and drained_by() == ["control"], "the stream still runs, nobody undoes it"
            edge.write(plain)
            daemon = serve()
            wait_until("it to be resumed", lambda: drained_by() == [], 20)
            said = "An earlier control plane had drained alpha-1: resumed."
            wait_until("it to be said", lambda: said in log.read_text())
            assert lives(record.pid) and edge.post(CHAT, chat("alpha", tokens=1)).status_code == 200
        finally:
            client.close()
            os.kill(daemon.pid, signal.SIGTERM)
            daemon.wait(20)
