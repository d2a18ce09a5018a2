"""What the control plane does about containers that end: by themselves, by somebody's hand, with the Docker Engine."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from control.engines.local import EngineStatus
from control.engines.ownership import working_on
from control.engines.policy import Policy
from control.engines.reconcile import Reconciler
from control.engines.sampler import Sampler
from control.fleet.load import load
from tests.docker.conftest import Place
from tests.support.dockerd import Dockerd
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast

FAST = Policy(poll=0.1, pauses=(0.2,), quick=60, give_up_after=3)


class Watch:
    """A reconciler of the test's own on a fleet whose containers `signalbox up` has started."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.watchers: list[Reconciler] = []
        self.begin()

    def begin(self) -> None:
        self.watchers.append(Reconciler(load(self.place.folder / "fleet.yaml"), self.place.paths, FAST))
        self.watchers[-1].start()

    def of(self, identity: str = "m-1") -> EngineStatus:
        return next(one for one in self.watchers[-1].status() if one.id == identity)

    def until(self, state: str, phase: str = "", seconds: float = 15) -> EngineStatus:
        def reached() -> EngineStatus | None:
            now = self.of()
            return now if now.state == state and phase in now.phase else None

        found = wait_until(f"{state} {phase}; now {self.of()}", reached, seconds, every=0.05)
        assert found is not None
        return found

    def row(self) -> dict[str, object]:
        (row,) = self.place.containers()
        state: dict[str, object] = row["State"]
        return {"id": row["Id"], **state}


@pytest.fixture(scope="module")
def shared(dockerd: Dockerd) -> Iterator[Place]:
    place = Place(dockerd, backends=1)
    yield place
    assert place.end() == []


def up(place: Place) -> str:
    """`signalbox up`; then what it has started beside the container is ended, the control plane above all."""
    said = place.call("up")
    place.call("stop")
    os.kill(int((place.paths.root / "control/control.pid").read_text().splitlines()[0]), signal.SIGUSR1)
    return said


@pytest.fixture
def watch(shared: Place) -> Iterator[Watch]:
    up(shared)
    watch = Watch(shared)
    try:
        watch.until("ready")
        yield watch
    finally:
        for one in watch.watchers:
            one.close()


def kill(row: dict[str, object]) -> None:
    """The engine dies by itself, as Docker sees it."""
    os.kill(int(str(row["Pid"])), signal.SIGKILL)


def test_what_dies_is_started_again_and_what_somebody_stops_is_not(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = watch.row()
    kill(before)
    wait_until("a restart", lambda: watch.of().restarts == 1, 15)
    watch.until("ready")
    after = watch.row()
    assert after["id"] == before["id"] and after["Pid"] != before["Pid"]
    assert "m-1 died (1 in a row): The engine was killed (signal 9)" in caplog.text

    with watch.place.dockerd.client() as client:
        client.containers.get(str(after["id"])).stop(timeout=2)
    watch.until("stopped", "by hand")
    time.sleep(1)  # ten looks
    assert watch.row()["Status"] == "exited"

    watch.watchers[-1].close()  # the next control plane knows it too
    watch.begin()
    watch.until("stopped", "by hand")
    time.sleep(1)
    assert watch.row()["Status"] == "exited" and watch.of().restarts == 0

    assert "m-1: ready: serving" in up(watch.place)
    watch.until("ready")
    assert watch.row()["id"] == before["id"]
    kill(watch.row())
    wait_until("a restart", lambda: watch.of().restarts == 1, 15)
    watch.until("ready")


def test_a_crash_loop_ends_and_a_command_at_work_is_left_alone(watch: Watch) -> None:
    with working_on(watch.place.paths, "m-1"):
        kill(watch.row())
        watch.until("starting", "another command is at work")
        assert watch.of().restarts == 0
    watch.until("ready")
    for _ in range(2):
        kill(watch.row())
        wait_until("its end to be seen", lambda: watch.of().state == "failed", 15, every=0.02)
        if watch.of().phase != "given up":
            watch.until("ready")
    gave_up = watch.until("failed", "given up")
    assert "died 3 times in a row" in gave_up.detail
    time.sleep(1)
    assert watch.row()["Status"] == "exited"
    assert "m-1: ready: serving" in up(watch.place)
    watch.until("ready")


def test_the_docker_engine_starts_anew(watch: Watch, dockerd: Dockerd) -> None:
    before = watch.row()
    looking = Sampler(watch.watchers[-1].running, 0.3)
    looking.start()
    wait_until("looks", lambda: len(looking.samples("m-1")) > 3, 20)
    used = looking.samples("m-1")[-1]
    assert used.cpu is not None and used.memory is not None and used.memory > 10_000_000 and used.gpu is None
    dockerd.stop()
    away = watch.until("failed", "Docker does not answer")
    silent = time.time()
    assert "cannot be reached" in away.detail and "Is Docker running" in away.detail
    dockerd.start()
    watch.until("ready", seconds=30)
    after = watch.row()
    assert after["id"] == before["id"] and after["Status"] == "running" and after["Pid"] != before["Pid"]
    wait_until("looks again", lambda: looking.samples("m-1")[-1].at > silent, 20)
    looking.close()
    times = [sample.at for sample in looking.samples("m-1")]
    assert max(later - sooner for sooner, later in pairwise(times)) > 1  # a gap, and no guess in it


def test_too_little_memory_is_named(shared: Place) -> None:
    before = dict(shared.engine)
    shared.engine["command"] = ["python3", "-c", "x = bytearray(400_000_000); import time; time.sleep(60)"]
    shared.engine["memory"] = "64m"
    shared.write()
    output = shared.call("up", code=1)
    assert (
        "The engine m-1 did not start: The kernel killed the engine, because it used more memory than it may" in output
    )
    assert "Raise models.m.engine.memory (now " in output
    shared.fleet["models"]["m"]["engine"] = before
    shared.write()
    assert "1 of 1 containers stay as they are" in shared.call("up")
