"""A failure is explained only by what was done to that very request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.balancing.crowd import Story
from tests.balancing.explain import Evidence, causes, twice
from tests.balancing.violence import Deed

WORKER = Deed("worker killed", 105.0, 105.0, "4711", frozenset({40_001}))
KILL = Deed("engine killed", 105.0, 105.0, "alpha-1")
FREEZE = Deed("engine frozen", 101.0, 108.0, "alpha-1")
RELOAD = Deed("reload", 104.0, 105.0, "7")


def story(**changes: Any) -> Story:
    content: dict[str, Any] = {"id": "chaos-1", "stream": True, "tokens": 5, "port": 40_001, "began": 103.0,
                               "ended": 105.2, "outcome": "cut"}  # fmt: skip
    return Story(**(content | changes))


def line(end: str = "engine_cut", backend: str | None = "alpha-1") -> dict[str, Any]:
    return {"chaos-1": {"end": end, "backend": backend}}


@pytest.mark.parametrize(
    ("deed", "lines", "changes", "cause"),
    [
        (WORKER, {}, {}, "held by a killed worker"),
        (WORKER, {}, {"port": 40_002}, None),  # another worker had it
        (WORKER, {}, {"began": 105.1}, None),  # a later connection from the same port
        (WORKER, {}, {"ended": 104.9}, None),  # it was lost before
        (WORKER, {}, {"ended": 109.0}, None),  # it was lost of something else
        (KILL, line(), {}, "held by a killed engine"),
        (KILL, line(backend="alpha-2"), {}, None),
        (KILL, line("edge_error"), {}, None),
        (KILL, line("complete"), {}, None),  # the engine's answer was whole, the client's was not
        (KILL, line(), {"ended": 104.0}, None),
        (KILL, {}, {}, None),  # no line, and no killed worker that could have had it
        (FREEZE, line("engine_timeout"), {}, "held by a frozen engine"),
        (FREEZE, line("engine_timeout"), {"began": 90.0, "ended": 100.5}, None),
        (RELOAD, line(), {}, None),
        (RELOAD, {}, {}, None),
    ],
)
def test_the_cause(deed: Deed, lines: dict[str, Any], changes: dict[str, Any], cause: str | None) -> None:
    assert Evidence([deed], lines, {"chaos-1": ["alpha-1"]}).cause(story(**changes)) == cause


def test_a_log_line_may_go_with_a_worker_that_is_killed_later() -> None:
    other = Deed("worker killed", 106.0, 106.0, "4711", frozenset({1}))
    assert Evidence([KILL, other], {}, {"chaos-1": ["alpha-1"]}).cause(story()) == "held by a killed engine"
    assert Evidence([KILL, other], {}, {"chaos-1": ["alpha-2"]}).cause(story()) is None


def test_causes_are_counted_and_the_rest_is_told() -> None:
    good, left = story(outcome="complete"), story(outcome="left")
    evidence = Evidence([WORKER], line(), {"chaos-1": ["alpha-1"]})
    counted, rest = causes([good, left, story(), story(port=9)], evidence)
    assert counted == {"held by a killed worker": 1} and [one.port for one in rest] == [9]
    told = evidence.story(rest[0])
    assert "chaos-1" in told and "engine_cut" in told and "alpha-1" in told and "worker killed 4711" in told


def test_what_ran_twice() -> None:
    assert twice({"a": ["alpha-1"], "b": ["alpha-1", "alpha-2"], "c": ["alpha-1", "alpha-1"]}) == ["b", "c"]
