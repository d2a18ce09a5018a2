"""YAML as plain data with lines; broken YAML in plain words; bounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from control.errors import FleetError, Problem
from control.fleet.source import MAX_BYTES, Source, dotted, parse, read

FILE = Path("fleet.yaml")


def refused(text: str) -> Problem:
    with pytest.raises(FleetError) as caught:
        parse(text, FILE)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_data_and_lines() -> None:
    source = parse(
        "# note\nedge:\n  listen: a:1\n\nmodels:\n  org/m:\n    backends:\n      - url: x\n      - {url: y}\n", FILE
    )
    assert source.data == {"edge": {"listen": "a:1"}, "models": {"org/m": {"backends": [{"url": "x"}, {"url": "y"}]}}}
    assert source.lines[("edge", "listen")] == 3
    assert source.lines[("models", "org/m", "backends", 0, "url")] == 8
    assert source.lines[("models", "org/m", "backends", 1)] == 9
    assert source.problems == []


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"), ("on", "on"), ("True", True), ("false", False), ("010", "010"), ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"), ("0.32.0", "0.32.0"), ("0.32", 0.32), ("1e3", 1000.0), ("-7", -7), ("1_0", "1_0"),
        ("0x10", "0x10"), ("~", None), ("", None), ("null", None), ("'7'", "7"), ("9" * 30, "9" * 30), ("=", "="),
        (".inf", ".inf"), ("!!str 7", "7"), ("!!int '7'", 7),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(written: str, value: object) -> None:
    found = parse(f"a: {written}\n", FILE).data["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 0, "the file is empty"),
        ("# only a comment\n", 1, 0, "the file is empty"),
        ("\n\n- a\n", 3, 0, "must be a mapping ('key: value' lines), not a list"),
        ("text\n", 1, 0, "not plain text"),
        ("a: 1\n\tb: 2\n", 2, 1, "there is a tab here"),
        ("a: b: c\n", 1, 5, "check the indentation"),
        ("a:\n  b: 1\n c: 2\n", 3, 2, "the indentation does not fit"),
        ("a: [1, 2\nb: 3\n", 2, 2, "a ',' or a closing bracket is missing"),
        ("a: 'x\nb: 2\n", 3, 1, "inside a quoted text"),
        ("a: @x\n", 1, 4, "put the value in quotes"),
        ("a: %x\n", 1, 4, "put the value in quotes"),
        ("a: *x\n", 1, 4, "'*name' without an '&name'"),
        ("a: \"\\q\"\n", 1, 6, "a backslash in double quotes"),
        ("a: \"\\UFFFFFFFF\"\n", 1, 7, "escape"),
        ("a: 1\n---\nb: 1\n", 2, 1, "more than one document"),
        ("a: \x01\n", 1, 4, "U+0001"),
        ("a: 1\nb: 'x\u2028y'\n", 2, 6, "U+2028"),
        ("a: 1\nb: \ud800", 2, 4, "U+D800"),
        ("a: |x\n", 1, 5, "not valid YAML"),
        ("a: " + "[" * 100_000, 1, 35, "more than 32 levels deep"),
        ("- " * 100_000, 1, 65, "more than 32 levels deep"),
        ("a: &a [*a]\n", 1, 4, "endless or too large"),
        ("a: &a {b: *a}\n", 1, 4, "endless or too large"),
    ],
)  # fmt: skip
def test_what_is_no_fleet_yaml(text: str, line: int, column: int, words: str) -> None:
    problem = refused(text)
    assert words in problem.message
    assert (problem.line, problem.column) == (line, column)
    assert str(problem).startswith(f"fleet.yaml:{line}:{column}: " if column else f"fleet.yaml:{line}: ")
    assert "\n" not in str(problem)
    assert len(str(problem)) < 600


def test_billion_laughs_end_quickly() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 20):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    started = time.monotonic()
    assert "endless or too large" in refused(text).message
    assert time.monotonic() - started < 5


def collected(text: str) -> tuple[Source, list[str]]:
    source = parse(text, FILE)
    return source, [str(problem) for problem in source.problems]


def test_duplicate_keys_name_both_lines_and_all_are_told() -> None:
    source, told = collected("a:\n  x: 1\n  y: 2\n  x: 3\nb: 1\na: 2\n")
    assert told == [
        "fleet.yaml:4: a.x: this key is given twice: in line 2 and in line 4. Keep one of them.",
        "fleet.yaml:6: a: this key is given twice: in line 1 and in line 6. Keep one of them.",
    ]
    assert source.data == {"a": {"x": 1, "y": 2}, "b": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!python/object/apply:os.system [x]\n", "the YAML tag '!!python/object/apply:os.system' is not allowed"),
        ("a: !!python/name:os.system ''\n", "is not allowed"),
        ("a: !mine x\n", "the YAML tag '!mine' is not allowed"),
        ("a: !!binary aGk=\n", "'!!binary' is not allowed"),
        ("a: !!set {x, y}\n", "'!!set' is not allowed"),
        ("a: !!int x\n", "'!!int' does not fit"),
        ("a: !!bool x\n", "'!!bool' does not fit"),
        ("a: !!map x\n", "'!!map' is not allowed"),
        ("? [x]\n: 1\n", "a list or mapping cannot be a key"),
        ("'': 1\n", "a key is empty"),
        ("a: \"\\ud800\"\n", "half a character"),
        ("\"\\udfff\": 1\n", "half a character"),
        ("a: {<<: 3}\n", "'<<' needs a mapping"),
    ],
)  # fmt: skip
def test_collected_problems(text: str, words: str) -> None:
    _, told = collected(text)
    assert len(told) == 1
    assert words in told[0]


def test_anchors_and_merge_keys() -> None:
    source, told = collected("a: &x {p: 1, q: 2}\nb:\n  q: 3\n  <<: *x\nc: *x\n")
    assert told == []
    assert source.data["b"] == {"p": 1, "q": 3}
    assert source.data["c"] == {"p": 1, "q": 2}
    assert source.lines[("b", "q")] == 3
    assert source.lines[("b", "p")] == 1


def test_dotted() -> None:
    assert dotted(()) == ""
    assert dotted(("models", "a", "backends", 0, "url")) == "models.a.backends[0].url"
    assert "\n" not in dotted(("a\nb",))


def test_reading(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes("a: ü\n".encode())
    assert read(good) == "a: ü\n"
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * MAX_BYTES)
    assert len(read(big)) == MAX_BYTES
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\nb: \xfc\n")
    utf16 = tmp_path / "utf16.yaml"
    utf16.write_bytes("a: 1\n".encode("utf-16"))
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path, line, words in (
        (tmp_path / "none.yaml", 1, "there is no such file"),
        (good / "below.yaml", 1, "cannot be read"),
        (tmp_path, 1, "a folder"),
        (pipe, 1, "a folder or a device"),
        (loop, 1, "cannot be read"),
        (tmp_path / ("x" * 300), 1, "cannot be read"),
        (Path("nul\0.yaml"), 1, "cannot be read"),
        (big, 1, "larger than 1 MiB"),
        (latin, 2, "not UTF-8"),
        (utf16, 1, "not UTF-8"),
    ):
        with pytest.raises(FleetError) as caught:
            read(path)
        assert words in caught.value.problems[0].message, path
        assert caught.value.problems[0].line == line
        assert caught.value.problems[0].suggestion
