"""No string of fleet.yaml brings syntax into nginx.conf: every text field of the schema and every kind of key."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from control.errors import FleetError
from control.fleet.load import load
from control.fleet.messages import _arms
from control.fleet.schema import Fleet
from control.fleet.shapes import PATTERN_WORDS
from tests.support.fleet_yaml import FULL, changed, make_files, write

Place = tuple[str | int, ...]

INJECTIONS = [
    "\n", "x\ny", "\r", "\t", "\x00", "\x1b[0m", "\x7f", ";", "x; return 200", "'", '"', "`", "\\", "\\n", "$", "$host",
    "${x}", "#", "x # y", "{", "}", "{{ 1 }}", "{% raw %}", "}} {{",
]  # fmt: skip
CONTROL = [text for text in INJECTIONS if not text.isprintable()]


def texts(value: Any, path: Place = ()) -> Iterator[Place]:
    """The paths of all text values of ``value``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))
    elif isinstance(value, str):
        yield path


def is_argument(path: Place) -> bool:
    """Words that a started process gets, without a shell; nginx never sees them."""
    return "engine" in path and bool({"command", "extra_args", "environment"} & set(path))


#: What FULL writes out and what may also be one word.
SHORT: dict[Place, str] = {("edge", "state"): "redis://10.0.0.5:6379/0"}
PATHS = [*texts(FULL), *SHORT]
NAMED: list[tuple[Place, str]] = [
    (("hosts",), "here"),
    (("models",), "rented"),
    (("models", "org/own:1", "engine", "environment"), "OMP_NUM_THREADS"),
]


def accepted(data: dict[str, Any]) -> bool:
    try:
        Fleet.model_validate(data)
    except ValidationError:
        return False
    return True


def test_the_full_fleet_has_every_text_field() -> None:
    """Walks the published schema, so that a new field cannot be forgotten here."""
    schema = Fleet.model_json_schema()
    used = {tuple(str(part) for part in path) for path in PATHS}
    generic = {tuple(part for part in path if not part.isdigit())[-2:] for path in used}
    wanted: set[tuple[str, str]] = set()
    for name, definition in {**schema["$defs"], "Fleet": schema}.items():
        for key, field in definition["properties"].items():
            arms = [arm for outer in _arms(field) for arm in _arms(outer.get("items", outer))]
            if any(arm.get("type") == "string" for arm in arms):
                wanted.add((name, key))
    keys = {key for _, key in wanted}
    assert keys == {path[-1] for path in generic if path[-1] in keys}
    assert len(wanted) > 30
    assert accepted(FULL)
    for path, value in SHORT.items():
        assert accepted(changed(FULL, path, value)), path


def test_every_pattern_is_said_in_words() -> None:
    def patterns(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str) and "examples" not in value and value.get("type") == "string":
                yield value["pattern"]
            yield from (found for item in value.values() for found in patterns(item))
            yield from (key for key in value.get("patternProperties", {}))
        elif isinstance(value, list):
            yield from (found for item in value for found in patterns(item))

    found = set(patterns(Fleet.model_json_schema()))
    units = {
        pattern for pattern in found if pattern.startswith("^[0-9]{1,18}")
    }  # sizes and durations explain themselves
    assert found - units <= set(PATTERN_WORDS)
    assert len(found) > 10


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_no_text_field_takes_it(path: Place) -> None:
    original: Any = FULL
    for part in path:
        original = original[part]
    original = SHORT.get(path, original)
    for injection in CONTROL if is_argument(path) else INJECTIONS:
        for value in (injection, f"{original}{injection}", f"{injection}{original}"):
            assert not accepted(changed(FULL, path, value)), (path, value)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_no_name_takes_it(path: Place, name: str) -> None:
    for injection in INJECTIONS:
        for value in (injection, f"{name}{injection}", f"{injection}{name}"):
            data = copy.deepcopy(FULL)
            place: Any = data
            for part in path:
                place = place[part]
            place[value] = copy.deepcopy(place[name])
            assert not accepted(data), (path, value)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_from_the_file_it_ends_in_one_clear_message(tmp_path: Path, path: Place) -> None:
    make_files(tmp_path)
    with pytest.raises(FleetError) as caught:
        load(write(tmp_path, changed(FULL, path, "a\n; {{ 7*7 }} '\"")))
    message = str(caught.value)
    assert len(caught.value.problems) == 1, message
    assert "\n" not in message
    assert "^[" not in message
    assert caught.value.problems[0].line > 1
