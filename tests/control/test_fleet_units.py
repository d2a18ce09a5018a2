"""Sizes and durations: what is accepted, what is refused, and with which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from control.fleet.units import Bytes, Milliseconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("64m", 64 * 1024**2), ("64M", 64 * 1024**2), ("64MiB", 64 * 1024**2), ("64mib", 64 * 1024**2),
        ("512k", 512 * 1024), ("24GiB", 24 * 1024**3), ("1t", 1024**4), ("1024TiB", 1024**5),
        (1, 1), (65536, 65536), ("65536", 65536),
    ],
)  # fmt: skip
def test_bytes(written: object, expected: int) -> None:
    value = TypeAdapter(Bytes).validate_python(written)
    assert value == expected
    assert isinstance(value, Bytes)
    assert str(value) == str(expected), "a size in a template or an argument list is a plain number"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("600s", 600_000),
        ("2s", 2_000),
        ("1.5s", 1_500),
        ("0.06s", 60),
        ("0.001S", 1),
        ("250ms", 250),
        ("10m", 600_000),
        ("1h", 3_600_000),
        ("168h", 604_800_000),
    ],
)
def test_milliseconds(written: object, expected: int) -> None:
    assert TypeAdapter(Milliseconds).validate_python(written) == expected


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        (Bytes, "64MB", "write 64MiB"),
        (Bytes, "64x", "unknown unit 'x'"),
        (Bytes, "", "must be a size such as"),
        (Bytes, "1.5GiB", "must be a size such as"),
        (Bytes, 1.5, "must be a size such as"),
        (Bytes, True, "not True"),
        (Bytes, None, "not None"),
        (Bytes, [1], "must be a size"),
        (Bytes, -1, "more than 0"),
        (Bytes, "-1m", "must be a size"),
        (Bytes, 0, "more than 0"),
        (Bytes, "0m", "more than 0"),
        (Bytes, "1025TiB", "at most 1024TiB"),
        (Bytes, "999999999999999999t", "at most 1024TiB"),
        (Bytes, "9" * 5000, "must be a size"),
        (Bytes, 10**30, "at most 1024TiB"),
        (Bytes, "64m\n", "must be a size"),
        (Bytes, "64 m", "must be a size"),
        (Bytes, "\u0661m", "must be a size"),
        (Bytes, "{text}", "'{text}'"),
        (Milliseconds, 600, "needs a unit: write 600s"),
        (Milliseconds, "600", "needs a unit: write 600s"),
        (Milliseconds, 0, "more than 0"),
        (Milliseconds, "0s", "more than 0"),
        (Milliseconds, "0.000s", "more than 0"),
        (Milliseconds, "1.5m", "must be a duration"),
        (Milliseconds, "1.0005s", "must be a duration"),
        (Milliseconds, "-2s", "must be a duration such as"),
        (Milliseconds, "3d", "unknown unit 'd'"),
        (Milliseconds, "169h", "at most 168h"),
        (Milliseconds, "2s;", "must be a duration"),
        (Milliseconds, False, "not False"),
    ],
)
def test_refused(kind: type, written: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(written)
    assert words in caught.value.errors()[0]["msg"]


@given(st.integers(1, 1024**5))
def test_bytes_round_trip(number: int) -> None:
    assert Bytes.parse(Bytes(number).text()) == number


@given(st.integers(1, 604_800_000))
def test_milliseconds_round_trip(number: int) -> None:
    assert Milliseconds.parse(Milliseconds(number).text()) == number


@given(st.one_of(st.text(), st.floats(), st.integers(), st.none(), st.binary(), st.lists(st.integers())))
def test_anything_is_a_quantity_or_a_validation_error(value: object) -> None:
    for kind in (Bytes, Milliseconds):
        try:
            assert 0 < TypeAdapter(kind).validate_python(value) <= kind.largest
        except ValidationError as error:
            assert len(error.errors()[0]["msg"]) < 250
