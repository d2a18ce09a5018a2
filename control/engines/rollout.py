"""Carries out a plan: hosts in parallel, engines that share a GPU one after another, a model's backends in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from control.engines.converge import Cancelled, Converge, Tools
from control.engines.docker import DockerHost
from control.engines.drain import Gate
from control.engines.plan import Step
from control.engines.turns import SERVING, others_lack
from control.errors import EngineError, SignalboxError

#: Seconds for the edge to find enough other backends before one is taken out, and one that is ready again.
TURN_SECONDS = 60.0
POLL = 0.3
#: An edge that runs and does not answer may be busy for a moment.
MISS_SECONDS = 2.0


class Rollout:
    """Brings the backends of a plan to what they shall be; each in a thread of its own."""

    def __init__(
        self,
        steps: Sequence[Step],
        hosts: Mapping[str, DockerHost],
        tools: Tools,
        edge: Gate | None,
        anew: bool = False,
    ) -> None:
        self._tools, self._edge = tools, edge
        self._work = [(step, Converge(step, hosts[step.host], tools, anew)) for step in steps if not step.settled]
        #: Who waits for what, or has it (the first), in the order of the plan: which backend goes first is no accident.
        self._lines: dict[str, list[Step]] = {}
        self._moved = threading.Condition()
        for step, _ in self._work:
            for name in claims(step):
                self._lines.setdefault(name, []).append(step)
        self._failed: set[str] = set()
        #: What went wrong, by backend.
        self.failures: dict[str, SignalboxError] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin. ``running`` says when it is over."""
        for step, work in self._work:
            thread = threading.Thread(target=self._run, args=(step, work), name=f"up {step.backend}", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def running(self) -> bool:
        """Whether anything is still to be done."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, step: Step, work: Converge) -> None:
        tell = self._tools.tell
        try:
            if step.do == "conflict":
                raise EngineError(f"{step.backend} on {step.host}: {step.why}.")
            tell(step.backend, "waiting", "waiting for its turn")
            work.prepare()
            self._wait_turn(step)
            if step.do == "stop":
                work.stop()
                return
            if step.do == "replace":
                self._others_serve(step)
            work.run()
            self._found_by_edge(step)
        except SignalboxError as error:
            self._failed.add(step.model)
            self.failures[step.backend] = error
            tell(step.backend, "failed", "interrupted" if isinstance(error, Cancelled) else "failed", error.message)
        except Exception as error:  # a bug: say so, and let the others go on
            self._failed.add(step.model)
            self.failures[step.backend] = EngineError(f"{step.backend}: {error!r}", "This is a fault of Signalbox.")
            tell(step.backend, "failed", "failed", repr(error))
        finally:
            self._leave(step)

    def _wait_turn(self, step: Step) -> None:
        """Wait for what this step needs alone: the model's turn, and its GPUs. The first of the plan never waits."""
        names = claims(step)
        with self._moved:
            while any(self._lines[name][0] is not step for name in names):
                self._go_on(step)
                self._moved.wait(POLL)
        self._go_on(step)

    def _leave(self, step: Step) -> None:
        with self._moved:
            for name in claims(step):
                self._lines[name].remove(step)
            self._moved.notify_all()

    def _go_on(self, step: Step) -> None:
        """Raises EngineError when this step shall not be done any more."""
        if self._tools.cancel.is_set():
            raise Cancelled(step.backend)
        if step.do == "replace" and step.model in self._failed:
            raise EngineError(f"{step.backend} was left as it is, because another backend of {step.model} failed.")

    def _others_serve(self, step: Step) -> None:
        """Wait until enough other backends of the model take requests. Raises EngineError when they do not."""
        assert step.spec is not None
        deadline = time.monotonic() + TURN_SECONDS
        while True:
            states = self._states()
            if states is not None and not states and self._tools.cancel.wait(MISS_SECONDS):
                raise Cancelled(step.backend)
            lack = others_lack(states, step.backend, step.model, step.spec.engine.engine.min_ready)
            if not lack:
                return
            self._tools.tell(step.backend, "waiting", "waiting for other backends", lack)
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{step.backend} was left as it is: of the other backends of {step.model} {lack} "
                    "(engine.min_ready).",
                    "Bring the others up first: `signalbox status` says what they lack.",
                )
            if self._tools.cancel.wait(POLL):
                raise Cancelled(step.backend)

    def _found_by_edge(self, step: Step) -> None:
        """Wait until the edge sends requests there, so that the next one can be taken out."""
        deadline = time.monotonic() + TURN_SECONDS
        while time.monotonic() < deadline:
            states = self._states()
            state = (states or {}).get(step.backend, ("", ""))[1]
            if states is None or state in (*SERVING, "", "draining"):
                self._tools.tell(step.backend, "ready", "serving")
                return
            self._tools.tell(step.backend, "ready", "the edge looks for it")
            if self._tools.cancel.wait(POLL):
                raise Cancelled(step.backend)
        raise EngineError(
            f"{step.backend} is ready, but the edge does not reach it.",
            "Is the host's address in fleet.yaml right, and does a firewall stand between?",
        )

    def _states(self) -> Mapping[str, tuple[str, str]] | None:
        if self._edge is None:
            return None
        try:
            return self._edge.states()
        except SignalboxError:
            return {}


def claims(step: Step) -> list[str]:
    """What nobody else may use meanwhile."""
    claims = [f"model {step.model}"] if step.do in ("replace", "wait") else []
    if step.spec is not None:
        claims += sorted({f"gpu {step.host} {gpu}" for gpu in step.spec.gpus})
    return claims
