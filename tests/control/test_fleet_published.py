"""fleet.schema.json, fleet.yaml and the examples: current, and all of them right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from control.errors import FleetError
from control.fleet.load import load
from control.fleet.published import FILE_NAME, schema_json
from control.fleet.resolve import resolve_backends
from control.paths import REPOSITORY
from tests.support.fleet_yaml import FULL, SMALL, changed

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
ALL = [REPOSITORY / "fleet.yaml", *EXAMPLES]
NEEDED = {
    "rented.yaml": ("certs/edge.pem", "certs/edge.key", "certs/rented-ca.pem", "secrets/gpu-1.key"),
    "second-edge.yaml": ("certs/edge.pem", "certs/edge.key", "secrets/redis.pw"),
    "deploy.yaml": ("secrets/redis.pw",),
    "docker-hosts.yaml": ("secrets/hf.token",),
    "two-edges.yaml": ("certs/edge.pem", "certs/edge.key", "secrets/redis.pw"),
}


def validator() -> Any:
    schema = json.loads(schema_json())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_current() -> None:
    written = (REPOSITORY / FILE_NAME).read_text(encoding="utf-8")
    assert written == schema_json(), f"run: python -m control.fleet.published > {FILE_NAME}"


def test_the_schema_names_itself_without_an_address() -> None:
    schema = json.loads(schema_json())
    assert schema["title"] == "Signalbox fleet"
    assert schema["$id"] == "urn:signalbox:fleet.schema.json"
    assert schema["description"]
    for name, part in schema["$defs"].items():
        assert part.get("description"), name
        assert "``" not in part["description"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_fleet_here_fits_the_schema_and_names_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    depth = len(path.relative_to(REPOSITORY).parts) - 1
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={'../' * depth}{FILE_NAME}"
    validator().validate(yaml.safe_load(text))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_fleet_here_loads_once_its_files_are_there(tmp_path: Path, path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    needed = NEEDED.get(path.name, ())
    if needed:
        with pytest.raises(FleetError) as caught:
            load(copy)
        assert len(caught.value.problems) == len(needed)
        assert all("there is no file" in problem.message for problem in caught.value.problems)
    for name in needed:
        assert name in path.read_text(encoding="utf-8").partition("edge:")[0], "the comment says what to create"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    loaded = load(copy, edge_only=True)
    assert bool(resolve_backends(loaded)) == (path.name != "second-edge.yaml")


def test_the_scripted_example_is_the_default_fleet_with_other_engines() -> None:
    real, scripted = load(REPOSITORY / "fleet.yaml"), load(REPOSITORY / "examples/scripted.yaml")
    assert real.fleet.edge == scripted.fleet.edge
    assert real.fleet.control.listen == scripted.fleet.control.listen
    assert [backend.port for backend in resolve_backends(real)] == [8101, 8102]
    assert [backend.port for backend in resolve_backends(scripted)] == [8101, 8102]
    assert [backend.name for backend in resolve_backends(scripted)] == ["scripted", "scripted"]


def test_the_schema_accepts_what_load_accepts() -> None:
    validator().validate(SMALL)
    validator().validate(FULL)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("edge", "lisen"), "127.0.0.1:1"),
        (("edge", "listen"), "127.0.0.1:1; x"),
        (("edge", "max_body"), "64MB"),
        (("edge", "max_body"), 0),
        (("edge", "timeouts", "body"), 60),
        (("edge", "timeouts", "body"), "60"),
        (("edge", "keys"), "keys.yaml;"),
        (("models", "a;b"), FULL["models"]["rented"]),
        (("models", "rented", "backends"), []),
        (("models", "packaged", "source", "gguf"), "../x.gguf"),
    ],
)
def test_an_editor_sees_the_mistake(path: tuple[str | int, ...], value: Any) -> None:
    assert not validator().is_valid(changed(FULL, path, value))
