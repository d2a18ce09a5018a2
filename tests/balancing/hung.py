"""Engines that hang in every way, and engines that are only busy: what the edge makes of them, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.edge.test_engine_state import COMPLETIONS, background, states, until
from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until
from tests.support.proof import Row, row


class Clock:
    """``edge.probe`` in seconds: the usual one for the full proof, a faster one for the suite.

    ``slack``: what a bound gets on top, for windows so short that the edge's looks count.
    """

    def __init__(self, slack: float = 0, **seconds: float) -> None:
        self.slack = slack
        usual = {"interval": 1, "metrics": 2, "window": 5, "idle": 30, "suspect": 5, "answer": 5}
        self.settings = {**usual, **seconds}

    def __getattr__(self, name: str) -> float:
        return float(self.settings[name])

    def fleet(self, *engines: ScriptedEngine, **changes: str) -> dict[str, Any]:
        probe = {name: f"{round(value * 1000)}ms" for name, value in self.settings.items()}
        return one_model("alpha", *engines, policy="round_robin", probe={**probe, **changes})


def leave_and_return(edge: Edge, hang: Callable[[], None], recover: Callable[[], None]) -> tuple[float, float]:
    """Seconds until alpha-1 takes no request any more, and after its recovery until it does again.

    While it is out the other engine answers everything.
    """
    hang()
    began = time.monotonic()
    wait_until("alpha-1 to be out", lambda: states(edge)["alpha-1"] in ("suspect", "down"), 90, every=0.02)
    out = time.monotonic() - began
    assert [edge.post(CHAT, chat("alpha", tokens=1)).status_code for _ in range(6)] == [200] * 6
    assert states(edge)["alpha-2"] == "ready"
    recover()
    return out, until(edge, "alpha-1", "ready", 60)


def in_the_middle(clock: Clock, hang: Callable[[ScriptedEngine], None], recover: Callable[[ScriptedEngine], None]
                  ) -> tuple[float, float]:  # fmt: skip
    """Hang under streams, which end well all the same. No trials of idle engines: what is found, traffic has shown."""
    with (
        ScriptedEngine("alpha") as engine,
        ScriptedEngine("alpha") as other,
        Edge(clock.fleet(engine, other, idle="1h")) as edge,
    ):
        streams = background(edge, 4, tokens=round(4 * clock.window / 0.05), delay_ms=50)
        wait_until("streams on both", lambda: min(b["in_flight"] for b in edge.backends().values()) >= 1)
        time.sleep(clock.window / 2)
        assert set(states(edge).values()) == {"ready"}
        times = leave_and_return(edge, lambda: hang(engine), lambda: recover(engine))
        for stream in streams:
            stream.join(60)
        assert {line["end"] for line in edge.log_lines()} == {"complete"}, "a stream was cut"
    return times


def busy_ones(clock: Clock) -> list[Row]:
    """A core that stands still behind /health 200, and a stopped process."""
    core = in_the_middle(clock, lambda one: one.configure(freeze=True), lambda one: one.configure(freeze=False))
    process = in_the_middle(clock, ScriptedEngine.freeze, ScriptedEngine.thaw)
    rows = []
    for title, (out, back) in (("whose core hangs, /health 200", core), ("whose process stands still", process)):
        rows.append(row(f"A busy engine is out within two windows ({title})", out, 2 * clock.window + clock.slack, "s",
                        f"windows of {clock.window:g} s"))  # fmt: skip
        rows.append(row(f"It is back when it goes on ({title})", back, clock.suspect + clock.interval + clock.slack,
                        "s", "its streams went on and ended well"))  # fmt: skip
    return rows


def idle_one(clock: Clock) -> list[Row]:
    """Hangs just after it was tried, the worst moment."""
    with ScriptedEngine("alpha") as engine, ScriptedEngine("alpha") as other, Edge(clock.fleet(engine, other)) as edge:
        tried = engine.started(COMPLETIONS)
        wait_until("a trial", lambda: engine.started(COMPLETIONS) > tried, clock.idle + 10)
        out, back = leave_and_return(
            edge, lambda: engine.configure(freeze=True), lambda: engine.configure(freeze=False)
        )
    bound = clock.idle + clock.window + clock.interval + clock.slack
    return [row("An idle engine that hangs is out within its interval", out, bound, "s",
                f"one trial every {clock.idle:g} s, which may take a window; it hung just after one"),
            row("It is back when it goes on (idle)", back, clock.suspect + clock.interval + clock.slack,
                "s", f"tried every {clock.suspect:g} s meanwhile")]  # fmt: skip


def never_out(clock: Clock, seconds: float) -> list[Row]:
    """Answers probes far too late but generates; then one long prefill without a token."""
    with ScriptedEngine("alpha") as engine, ScriptedEngine("alpha") as other, Edge(clock.fleet(engine, other)) as edge:
        wrong, looks = 0, 0

        def watch(until_when: float) -> None:
            nonlocal wrong, looks
            while time.monotonic() < until_when:
                wrong += not set(states(edge).values()) <= {"ready", "busy"}
                looks += 1
                time.sleep(0.05)

        streams = background(edge, 4, tokens=round(seconds / 0.02) + 100, delay_ms=20)
        wait_until("streams on both", lambda: min(b["in_flight"] for b in edge.backends().values()) >= 1)
        engine.configure(health_delay_ms=1500 * clock.answer)
        watch(time.monotonic() + seconds)
        engine.configure(health_delay_ms=0)
        for stream in streams:
            stream.join(60)
        prefills = background(edge, 4, first_ms=1000 * seconds, tokens=1)
        watch(time.monotonic() + seconds)
        for prefill in prefills:
            prefill.join(60)
    return [row("A busy engine is never taken out", wrong, 0, "of the looks found it out",
                f"{looks} looks in {2 * seconds:g} s: probes answered after 1.5 times their time-out, then prefills of "
                f"{seconds:g} s")]  # fmt: skip


def proof(clock: Clock | None = None, seconds: float = 40) -> list[Row]:
    used = clock or Clock()
    return [*busy_ones(used), *idle_one(used), *never_out(used, seconds)]
