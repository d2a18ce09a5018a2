"""One engine of a model after another, while enough others serve."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from control.engines.turns import Turns, others_lack
from control.errors import EdgeError

STATES = {"m-1": ("m", "ready"), "m-2": ("m", "busy"), "m-3": ("m", "down"), "o-1": ("o", "ready")}


@pytest.mark.parametrize(
    ("states", "backend", "min_ready", "lack"),
    [
        (STATES, "m-1", 1, ""),
        (STATES, "m-1", 2, "1 of 2 are ready"),
        (STATES, "m-1", 9, "1 of 2 are ready"),
        (STATES, "m-1", 0, ""),
        (STATES, "m-3", 2, ""),  # it serves nobody
        (STATES, "o-1", 1, ""),  # there are no others
        (STATES, "new", 1, ""),
        (None, "m-1", 9, ""),
    ],
)
def test_what_the_others_lack(
    states: Mapping[str, tuple[str, str]] | None, backend: str, min_ready: int, lack: str
) -> None:
    assert others_lack(states, backend, "m" if backend != "o-1" else "o", min_ready) == lack


def test_one_has_the_turn_until_it_gives_it_back() -> None:
    states = dict(STATES)
    turns = Turns(lambda: states)
    assert turns.take("m-1", "m", 1) == "" == turns.take("m-1", "m", 1) == turns.take("o-1", "o", 1)
    assert turns.take("m-2", "m", 1) == "m-1 is restarted before it"
    turns.give("m-2")  # it was not its turn
    assert turns.take("m-2", "m", 1) == "m-1 is restarted before it"
    states["m-1"] = ("m", "starting")
    turns.give("m-1")
    assert turns.take("m-2", "m", 1) == "waiting for other backends: 0 of 1 are ready"
    assert turns.take("m-3", "m", 1) == "", "who waits for others does not keep the turn"
    turns.give("m-3")
    states["m-1"] = ("m", "ready")
    assert turns.take("m-2", "m", 1) == ""


def test_an_edge_that_does_not_answer_holds_nothing_up() -> None:
    def broken() -> None:
        raise EdgeError("no answer")

    assert Turns(broken).take("m-1", "m", 1) == ""
