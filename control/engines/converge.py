"""One backend's containers become what its spec says: pull, create, drain, stop, start, wait, put back on failure.

Every step leaves something from which the next `signalbox up` goes on: containers are found by their labels, and the
old one is removed only when the new one is ready.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from control.engines.args import EngineSpec
from control.engines.containers import ContainerSpec
from control.engines.diagnosis import Ending, Situation
from control.engines.docker import DockerHost
from control.engines.drain import Drain, Gate, sequences
from control.engines.health import listens, unready
from control.engines.log_copy import LogCopy
from control.engines.ownership import adopted, disown, working_on
from control.engines.phases import CREATED, PULLING, Span, stretched
from control.engines.plan import EVERYWHERE, Found, Step
from control.engines.pulls import SILENCE
from control.engines.watch import Kept, Watch
from control.errors import EngineError
from control.paths import StatePaths

log = logging.getLogger(__name__)

#: Seconds between two looks at an engine that starts, and at Docker's own word on it.
POLL, LOOK = 0.3, 1.5
#: Seconds between two questions to the edge what still runs.
DRAIN_POLL = 0.5
#: Seconds that another command may hold a backend.
PATIENCE = 15.0
#: Seconds that an engine which does not listen gets to end: it has no requests, and vLLM can hang when it starts.
STARTING_SECONDS = 3.0


class Tell(Protocol):
    """Hears what happens to a backend."""

    def __call__(self, backend: str, state: str, phase: str, detail: str = "") -> None: ...


class Cancelled(EngineError):
    """Somebody wants to stop; what was done stays."""

    def __init__(self, backend: str) -> None:
        super().__init__(f"{backend}: interrupted.", "`signalbox up` goes on where it was.")


@dataclass(frozen=True)
class Listener:
    """Where a container listens, for ``Drain``."""

    host: str
    port: int


@dataclass
class Tools:
    """What every change of a backend needs. ``cancel`` is set when somebody wants to stop."""

    paths: StatePaths
    gate: Gate | None
    tell: Tell
    cancel: threading.Event
    #: Why a backend is out of reach whatever its engine does (its tunnel is down); empty when it is not.
    way: Callable[[str], str] = lambda _: ""


class Converge:
    """Carries out the step of one backend."""

    def __init__(self, step: Step, host: DockerHost, tools: Tools, anew: bool = False) -> None:
        """``anew``: a container that is as asked is restarted."""
        self._step, self._host, self._tools, self._anew = step, host, tools, anew
        self._id = step.backend
        #: The phases before the container runs: its image, and its wait until the old one has left.
        self._pulling = time.time()
        self._before: list[Span] = []
        self._created = 0.0

    def prepare(self) -> None:
        """Everything that can fail before anybody notices: above all the image. Raises EngineError."""
        if self._step.spec is not None:
            self._pulling = time.time()
            self._host.need_image(self._step.spec.image, self._progress, silence=_silence(self._step.spec))
            self._before = [Span(PULLING, time.time() - self._pulling)]

    def stop(self) -> None:
        """Drain, stop and remove all containers of the backend. Raises EngineError."""
        with working_on(self._tools.paths, self._id, PATIENCE, self._tools.cancel.is_set):
            for found in self._mine():
                drain = self._drained(found, "stopped")
                try:
                    self._end(found)
                finally:
                    drain.release()
                self._remove(found)
            self._say("stopped", "removed")

    def run(self) -> None:
        """Make the backend's container what the spec says, and wait until it is ready. Raises EngineError."""
        spec = self._step.spec
        assert spec is not None
        with working_on(self._tools.paths, self._id, PATIENCE, self._tools.cancel.is_set):
            self._pulling = time.time()  # others may have come first since ``prepare``
            image = self._host.need_image(spec.image, self._progress, silence=_silence(spec))
            mine = self._mine()
            target = next((found for found in mine if _fits(found, spec, image)), None)
            old = max((found for found in mine if found is not target), key=_freshness, default=None)
            if target is None:
                target = self._create(spec, mine)
            if target.alive and not self._anew:
                self._finish(spec, target, old, None)
            else:
                self._switch(spec, target, old)

    # Inside.

    def _switch(self, spec: ContainerSpec, target: Found, old: Found | None) -> None:
        """From what runs to ``target``: the old one goes first, because both want the port and the GPUs."""
        running = target if target.alive else old if old is not None and old.alive else None
        drain = self._drained(running, "restarted") if running is not None else None
        try:
            if running is not None:
                self._end(running)
            self._finish(spec, target, old, drain)
        except Cancelled:
            # Nothing serves there yet, and the edge may not have seen that: it would send requests at once.
            if drain is not None:
                drain.leave()
            raise
        finally:
            if drain is not None:
                drain.release()

    def _finish(self, spec: ContainerSpec, target: Found, old: Found | None, drain: Drain | None) -> None:
        """Start ``target`` if it does not run, wait until it is ready, remove the others; else put the old one back."""
        now = self._host.look(target.id)
        copy: LogCopy | None = None
        try:
            if now is None:
                raise EngineError(f"{target.name} is gone: somebody removed it meanwhile.", "Run the same again.")
            if not now.alive:
                self._say("starting", "starting")
                if self._created:
                    self._before.append(Span(CREATED, time.time() - self._created))
                self._host.start(target.id)
                now = self._host.look(target.id) or now
            folder = self._tools.paths.engine(self._id)
            copy = LogCopy(self._host, target.id, folder, now.started if target.started else 0.0)
            self._wait(spec.engine, target, copy)
        except Cancelled:
            raise
        except EngineError as error:
            raise self._put_back(spec, target, old, error) from error
        finally:
            if copy is not None:
                copy.close()
        for found in self._mine():
            if found.id != target.id:
                self._remove(found)
        if target.name != spec.name and target.id not in adopted(self._tools.paths):
            self._host.rename(target.id, spec.name)
        if drain is None and self._tools.gate is not None:
            self._tools.gate.release(self._id)  # a change that was interrupted has kept requests out
        self._say("ready", "serving")

    def _wait(self, spec: EngineSpec, target: Found, copy: LogCopy) -> None:
        """Until the engine serves its model. Raises EngineError with the reason when it does not get there."""
        began = looked = time.time()
        startup = copy.reader.startup
        watch = Watch(spec, startup, adopted=target.alive)
        try:
            while True:
                copy.reader.read()
                now = time.time()
                missing = watch.look(now)
                if watch.ready:
                    folder = self._tools.paths.engine(self._id)
                    if watch.timed:
                        Kept(target.id, (*self._before, *watch.phases), watch.facts).save(folder)
                    return
                if blocked := self._tools.way(self._id):
                    missing = blocked
                self._say("starting", startup.phase, blocked or startup.timeline.detail)
                if now - looked > LOOK:
                    looked = now
                    found = self._host.look(target.id)
                    if found is None:
                        raise EngineError(f"The engine {self._id} did not start: its container was removed.")
                    if not found.alive:
                        copy.finish()
                        raise self._failed(spec, copy, how_ended(found))
                if late := watch.late(now, began + int(spec.engine.start_timeout) / 1000):
                    raise self._failed(spec, copy, Ending(overdue=f"{late}: {missing}"))
                if self._tools.cancel.wait(POLL):
                    raise Cancelled(self._id)
        finally:
            watch.close()

    def _failed(self, spec: EngineSpec, copy: LogCopy, how: Ending) -> EngineError:
        """What to tell of a start that failed: the reason, the log's decisive lines, the cure."""
        startup = copy.reader.startup
        failure = startup.diagnosis(Situation(spec, how, startup.phase, startup.facts, self._host.gpu_memory))
        lines = "".join(f"\n  | {line}" for line in failure.lines)
        hint = f"{failure.cure}\n{self._see_logs()}".strip()
        return EngineError(f"The engine {self._id} did not start: {failure.sentence}{lines}", hint)

    def _put_back(self, spec: ContainerSpec, target: Found, old: Found | None, error: EngineError) -> EngineError:
        """The new container failed: the old one runs again if there is one. What to tell."""
        self._say("failed", "failed", error.message)
        self._host.stop(target.id, self._grace(spec))
        if old is None or not old.started:
            return error
        self._host.remove(target.id)
        try:
            self._say("starting", "going back to the old container", error.message)
            self._host.start(old.id)
            if old.name != spec.name and old.id not in adopted(self._tools.paths):
                self._host.rename(old.id, spec.name)
        except EngineError as second:
            return EngineError(f"{error.message} Its old container did not start either: {second.message}", error.hint)
        self._until_back(spec.engine, old)
        return EngineError(f"{error.message} Its old container, with the old settings, runs again.", error.hint)

    def _until_back(self, spec: EngineSpec, old: Found) -> None:
        """Wait until the old container serves again: only then may the edge send requests there."""
        place = self._listener(old)
        same = replace(spec, host=place.host, port=place.port)
        deadline = time.monotonic() + int(spec.engine.start_timeout) / 1000
        while unready(same) and time.monotonic() < deadline and not self._tools.cancel.wait(POLL):
            pass

    def _create(self, spec: ContainerSpec, mine: list[Found]) -> Found:
        """A new container beside what there is; leftovers of earlier tries that never ran go."""
        for found in [one for one in mine if one.state in ("created", "dead") and not one.started]:
            self._remove(found)
            mine.remove(found)
        used = {found.name for found in mine}
        name = next(name for name in (spec.name, *(f"{spec.name}.{n}" for n in range(2, 100))) if name not in used)
        self._created = time.time()
        return self._host.create(spec, name)

    def _mine(self) -> list[Found]:
        there = self._host.see(set(), adopted(self._tools.paths))
        return [found for found in there.ours if found.backend == self._id]

    def _drained(self, found: Found, purpose: str) -> Drain:
        """Wait until nothing runs there any more. The edge lets nothing in until ``release``. Raises Cancelled."""
        drain = Drain(self._tools.gate, self._id, self._listener(found), purpose, alive=lambda _: found.alive)
        spec = self._step.spec
        seconds = int(spec.engine.engine.drain_timeout) / 1000 if spec is not None else 600.0

        def tell(count: int) -> None:
            self._say("draining", "draining", f"waiting for {sequences(count)}")

        try:
            if not drain.wait(seconds, DRAIN_POLL, self._tools.cancel.wait, tell):
                raise Cancelled(self._id)
        except BaseException:
            drain.release()
            raise
        return drain

    def _end(self, found: Found) -> None:
        if not found.alive:
            return
        self._say("stopping", "stopping")
        seconds = self._grace(self._step.spec)
        place = self._listener(found)
        if not listens(place.host, place.port):
            seconds = min(seconds, STARTING_SECONDS)
        self._host.stop(found.id, seconds)

    def _listener(self, found: Found) -> Listener:
        """Where the edge reaches it; an adopted one may be open on all addresses of its host."""
        host, port = found.listen or ("", 0)
        if host in EVERYWHERE and self._step.spec is not None:
            host = self._step.spec.engine.host
        return Listener(host, port)

    def _grace(self, spec: ContainerSpec | None) -> float:
        return int(spec.engine.engine.stop_timeout) / 1000 if spec is not None else 30.0

    def _remove(self, found: Found) -> None:
        self._host.remove(found.id)
        if found.id in adopted(self._tools.paths):
            disown(self._tools.paths, self._id)

    def _see_logs(self) -> str:
        return f"The whole log: signalbox logs {self._id}, or {self._tools.paths.engine(self._id) / 'engine.log'}"

    def _say(self, state: str, phase: str, detail: str = "") -> None:
        self._tools.tell(self._id, state, phase, detail)

    def _progress(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        if self._tools.cancel.is_set():
            raise Cancelled(self._id)
        percent = f" ({fraction:.0%})" if fraction is not None else ""
        self._say("pulling", title, f"{detail}{percent}")


def _silence(spec: ContainerSpec) -> float:
    """Seconds that its pull may show nothing new."""
    return SILENCE * stretched(int(spec.engine.engine.start_timeout) / 1000)


def _fits(found: Found, spec: ContainerSpec, image: str) -> bool:
    return found.hash == spec.hash() and found.image_id in ("", image)


def _freshness(found: Found) -> tuple[bool, float]:
    return found.alive, found.started


def ending(found: Found) -> str:
    """How a container ended, where its log has no reason."""
    if found.out_of_memory:
        return "the kernel killed it because it used more memory than it may (engine.memory, or all of the host's)"
    if found.exit_code == 137:
        return "it was killed (signal 9); when nobody did that, the host ran out of memory"
    if found.exit_code is not None and found.exit_code > 128:
        return f"it was ended by signal {found.exit_code - 128}"
    return f"it ended by itself with exit code {found.exit_code}"


def how_ended(found: Found) -> Ending:
    """How a container ended, for a diagnosis."""
    return Ending() if found.exit_code is None else Ending.of_container(found.exit_code, found.out_of_memory)
