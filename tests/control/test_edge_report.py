"""The table of `signalbox status`, and the words for changes."""

from __future__ import annotations

import io
import json
import time

from rich.console import Console

from control.edge.changes import changed_files, compare
from control.edge.report import Report, as_json, show

BACKEND = {"id": "m-1", "model": "m", "scheme": "http", "address": "10.0.0.1:80", "in_flight": 3, "requests": 12}


def text(report: Report) -> str:
    file = io.StringIO()
    show(report, Console(file=file, width=160))
    return file.getvalue()


def state(**backend: object) -> dict[str, object]:
    workers = [{"pid": 1, "generation": "2", "exiting": False}, {"pid": 2, "generation": "1", "exiting": True}]
    return {
        "generation": "2",
        "fleet_version": 7,
        "workers": workers,
        "models": [],
        "backends": [{**BACKEND, **backend}],
    }


def test_a_backend_that_is_down_says_why_and_since_when() -> None:
    shown = text(
        Report(7, time.time() - 90_000, state(state="down", reason="[red]refused[/red]", since=time.time() - 65))
    )
    assert "edge: pid 7, up 1d 1h" in shown
    assert "1 workers (1 old ones finish their streams)" in shown
    assert "down ([red]refused[/red])" in shown  # an engine's words are text, not markup
    assert "1m 5s" in shown


def test_an_edge_that_does_not_answer_is_told() -> None:
    shown = text(Report(7, time.time(), None, "it does not answer [at all]"))
    assert "pid 7" in shown
    assert "it does not answer [at all]" in shown


def test_what_has_left_the_fleet_is_told_while_something_runs_there() -> None:
    left = [{"id": "m-2", "model": "m", "address": "[::1]:80", "in_flight": count} for count in (3, 1)]
    shown = text(Report(7, time.time(), {**state(state="ready"), "leaving": left}))
    assert "m-2 ([::1]:80) has left the fleet, 3 sequences still run there\n" in shown
    assert "m-2 ([::1]:80) has left the fleet, 1 sequence still runs there\n" in shown


def test_json_has_the_same() -> None:
    content = json.loads(as_json(Report(7, 1.5, state(state="ready"))))
    assert (content["running"], content["pid"], content["state"]["fleet_version"]) == (True, 7, 7)
    assert json.loads(as_json(Report(None, None, None, "no")))["problem"] == "no"


def test_changes_in_words() -> None:
    old = {"version": 1, "models": {"m": {"policy": "a"}}, "backends": {"x": {"port": 1}, "y": {"port": 2}}}
    new = {"version": 0, "models": {"m": {"policy": "b"}}, "backends": {"y": {"port": 3, "ca": 1}, "z": {}}}
    found = compare("a;\nb;\n", "a;\nc;\n", old, new, ("lua/a.lua",))
    assert found.static
    assert found.lines() == [
        "model m: changed (policy)",
        "backend x: removed",
        "backend z: added",
        "backend y: changed (port, ca)",
        "nginx.conf: 2 lines changed",
        "  -b;",
        "  +c;",
        "lua/a.lua changed",
    ]


def test_a_version_alone_is_no_change() -> None:
    fleet = {"version": 1, "models": {}, "backends": {}}
    assert not compare("a;", "a;", fleet, {**fleet, "version": 5}, ())


def test_a_fleet_that_was_damaged_counts_as_changed() -> None:
    found = compare("a;", "a;", None, {"version": 0, "models": {}, "backends": {}}, ())
    assert found.fleet
    assert not found.static
    assert found.lines() == ["fleet.json changed"]


def test_files_that_differ() -> None:
    assert changed_files({"a": "1", "b": "1"}, {"b": "2", "c": "1"}) == ("a", "b", "c")
