"""The commands as a person types them, in a process of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.control.edge_site import Place, place, run


@pytest.fixture
def edge() -> Iterator[Place]:
    with place() as here:
        yield here


@pytest.mark.slow
def test_a_day_of_an_edge(edge: Place) -> None:
    assert "fleet.yaml is right: 1 models, 1 backends" in run(edge, "check").stdout
    assert "Nothing was applied before" in run(edge, "render").stdout
    assert "not running" in run(edge, "status", code=1).stdout
    started = run(edge, "start").stdout
    assert "The edge runs (pid " in started
    assert f"Clients: http://{edge.listen}/v1" in started
    assert "already running" in run(edge, "start", code=1).stderr
    shown = run(edge, "status").stdout
    assert "generation 1, fleet 1, 2 workers" in shown
    assert "m-1" in shown
    content = json.loads(run(edge, "status", "--json").stdout)
    assert content["running"] is True
    assert content["state"]["backends"][0]["id"] == "m-1"
    assert "Nothing changed" in run(edge, "reload").stdout
    edge.write(max_body="1m")
    reloaded = run(edge, "reload").stdout
    assert "client_max_body_size 1048576" in reloaded
    assert "Reloaded: all workers are of generation 2, fleet 1." in reloaded
    assert "The edge finished its streams." in run(edge, "stop").stdout
    assert "The edge was not running." in run(edge, "stop").stdout
    assert json.loads(run(edge, "status", "--json", code=1).stdout)["running"] is False
    assert edge.processes() == []


@pytest.mark.parametrize("command", ["check", "render", "start", "reload", "stop", "status"])
def test_broken_yaml_is_one_message(edge: Place, command: str) -> None:
    edge.fleet_file.write_text("edge:\n  lissten: 127.0.0.1:8080\nmodels: {}\n")
    done = run(edge, command, code=2)
    assert "fleet.yaml:2: edge.lissten" in done.stderr
    assert done.stdout == ""


def test_a_missing_fleet(edge: Place) -> None:
    done = run(edge, "-f", "nowhere.yaml", "check", code=2)
    assert "nowhere.yaml" in done.stderr


def test_a_missing_binary(edge: Place) -> None:
    edge.write(binary="nowhere/nginx")
    done = run(edge, "start", code=1)
    assert "edge.binary names" in done.stderr
    assert "apt-get install" in done.stderr


def test_a_state_folder_that_cannot_be_made(edge: Place) -> None:
    (edge.folder / ".signalbox").write_text("a file")
    done = run(edge, "start", code=1)
    assert ".signalbox" in done.stderr


def test_schema_is_json(edge: Place) -> None:
    assert "models" in json.loads(run(edge, "schema").stdout)["properties"]


def test_help_names_every_command(edge: Place) -> None:
    text = run(edge, "--help").stdout
    for command in ("check", "render", "start", "stop", "reload", "status", "schema"):
        assert f"\n  {command} " in text
