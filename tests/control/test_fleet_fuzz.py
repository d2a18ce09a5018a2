"""Whatever fleet.yaml holds: ``load`` returns a fleet or raises ``FleetError``, never anything else."""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.errors import FleetError
from control.fleet.load import LoadedFleet, load
from control.fleet.resolve import resolve_backends
from control.fleet.schema import Fleet
from tests.support.fleet_yaml import FULL, make_files

settings.register_profile("fleet", deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
fleet_settings = settings.get_profile("fleet")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        yield Path(name)


def attempt(folder: Path, content: bytes) -> LoadedFleet | None:
    path = folder / "fleet.yaml"
    path.write_bytes(content)
    try:
        loaded = load(path)
    except FleetError as error:
        assert error.problems
        last = len(re.split(rb"\r\n|\r|\n", content))
        lines = [problem.line for problem in error.problems]
        assert lines == sorted(lines)
        for problem in error.problems:
            assert 1 <= problem.line <= last
            assert problem.message
            str(problem).encode()
            assert str(problem).isprintable()
        return None
    ids = [backend.id for backend in resolve_backends(loaded)]
    assert len(ids) == len(set(ids))
    return loaded


def schema_words() -> list[str]:
    found = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update(value.get("properties", {}))
            found.update(str(choice) for choice in (*value.get("enum", ()), value.get("const", "auto")))
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(Fleet.model_json_schema())
    return sorted(found)


WORDS = schema_words()
PIECES = [
    ": ", ":\n", "\n", "\n  ", "\n    ", "- ", "[", "]", "{", "}", ", ", "&a ", "*a", "<<: ", "!!int ", "!!python/x ",
    "! ", "'", '"', '"\\u', "|\n", ">\n", "? ", "# ", "---\n", "...\n", "%YAML 1.1\n", "@", "`", "\t", "~", "-1",
    "1e400", "0x1F", "9" * 40, "64m", "2s", "http://a", "0.0.0.0:80", "\ufeff", "\r", "\x85", "\u2028", "\U0001f600",
    "{{ x }}",
]  # fmt: skip


@fleet_settings
@given(content=st.binary(max_size=200))
def test_bytes(folder: Path, content: bytes) -> None:
    attempt(folder, content)


@fleet_settings
@given(content=st.text(max_size=200))
def test_text(folder: Path, content: str) -> None:
    attempt(folder, content.encode())


@settings(fleet_settings, max_examples=400)
@given(pieces=st.lists(st.sampled_from(PIECES + WORDS), max_size=60))
def test_pieces_of_yaml(folder: Path, pieces: list[str]) -> None:
    attempt(folder, "".join(pieces).encode())


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(WORDS + PIECES),
    st.dates(), st.binary(max_size=8),
)  # fmt: skip
NAMES = st.one_of(st.sampled_from(WORDS), st.text(max_size=10), st.integers(), st.booleans(), st.none())
STRUCTURES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6), max_leaves=25
)


@fleet_settings
@given(structure=STRUCTURES)
def test_structures(folder: Path, structure: Any) -> None:
    attempt(folder, yaml.safe_dump(structure, allow_unicode=True).encode("utf-8", "surrogatepass"))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


PLACES = list(places(FULL))


@settings(fleet_settings, max_examples=150)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), STRUCTURES), min_size=1, max_size=3))
def test_a_right_fleet_with_some_values_changed(folder: Path, changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    data = copy.deepcopy(FULL)
    for path, value in changes:
        place: Any = data
        try:
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
        except (LookupError, TypeError):
            continue  # an earlier change took this place away
    attempt(folder, yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(fleet_settings, max_examples=150)
@given(cut=st.integers(0, 3000), insert=st.sampled_from(PIECES))
def test_a_right_fleet_with_something_put_in(folder: Path, cut: int, insert: str) -> None:
    text = yaml.safe_dump(FULL)
    attempt(folder, (text[:cut] + insert + text[cut:]).encode())


def test_the_fleet_that_is_changed_is_right(folder: Path) -> None:
    assert attempt(folder, yaml.safe_dump(FULL).encode()) is not None
