"""Sizes and durations with units, as fleet.yaml has them: ``64m``, ``24GiB``, ``600s``, ``250ms``."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,18})([A-Za-z]*)")
_FRACTION_OF_SECONDS = re.compile(r"([0-9]{1,9})\.([0-9]{1,3})[sS]")


def _refuse(message: str) -> PydanticCustomError:
    """A pydantic error that carries exactly this text (braces in it are no format fields)."""
    return PydanticCustomError("unit", "{text}", {"text": message})


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Quantity(int):
    """A whole number above 0 that is written with a unit. Subclasses say which units there are."""

    factors: ClassVar[dict[str, int]]
    largest: ClassVar[int]
    largest_text: ClassVar[str]
    wanted: ClassVar[str]
    json_schema: ClassVar[JsonSchemaValue]

    @classmethod
    def parse(cls, value: object) -> Self:
        """The quantity that ``value`` (text or a number) means; ``PydanticCustomError`` says why there is none."""
        if isinstance(value, cls):
            return cls._bounded(int(value), value)
        if isinstance(value, int) and not isinstance(value, bool):
            return cls._plain(value)
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise _refuse(f"must be {cls.wanted}, not {_quoted(value)}")
        number, unit = int(match[1]), match[2]
        if not unit:
            return cls._plain(number)
        return cls._bounded(number * cls._factor(unit, value), value)

    @classmethod
    def _plain(cls, number: int) -> Self:
        return cls._bounded(number, number)

    @classmethod
    def _factor(cls, unit: str, value: object) -> int:
        factor = cls.factors.get(unit.lower())
        if factor is None:
            raise _refuse(f"has the unknown unit {_quoted(unit)} in {_quoted(value)}; it must be {cls.wanted}")
        return factor

    @classmethod
    def _bounded(cls, number: int, value: object) -> Self:
        if number <= 0:
            raise _refuse(f"must be more than 0, not {_quoted(value)}")
        if number > cls.largest:
            raise _refuse(f"must be at most {cls.largest_text}, not {_quoted(value)}")
        return cls(number)

    def text(self) -> str:
        """The shortest exact way to write it with a unit. (``str()`` stays that of the number.)"""
        for unit, factor in sorted(self.factors.items(), key=lambda item: -item[1]):
            if self % factor == 0:
                return f"{int(self) // factor}{unit}"
        return str(int(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        as_text = core_schema.plain_serializer_function_ser_schema(cls.text, when_used="json")
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=as_text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return dict(cls.json_schema)


class Bytes(_Quantity):
    """A size in bytes. Units are powers of 1024, as nginx and vLLM have them."""

    factors: ClassVar[dict[str, int]] = {
        "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4,
        "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
    }  # fmt: skip
    largest: ClassVar[int] = 1024**5
    largest_text: ClassVar[str] = "1024TiB"
    wanted: ClassVar[str] = "a size such as 64m, 512KiB or 24GiB"
    json_schema: ClassVar[JsonSchemaValue] = {
        "description": "A size: a number with k, m, g, t, KiB, MiB, GiB or TiB (all powers of 1024), or plain bytes.",
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 1024**5},
            {"type": "string", "pattern": "^[0-9]{1,18}([kKmMgGtT]([iI][bB])?)?$"},
        ],
        "examples": ["64m", "24GiB"],
    }

    @classmethod
    def _factor(cls, unit: str, value: object) -> int:
        if re.fullmatch(r"[kmgt]b", unit.lower()):
            exact = f"{str(value)[: -len(unit)]}{unit[0].upper()}iB"
            raise _refuse(f"is {_quoted(value)}, which some read as powers of 1000; write {exact} (powers of 1024)")
        return super()._factor(unit, value)


class Milliseconds(_Quantity):
    """A duration in milliseconds."""

    factors: ClassVar[dict[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    largest: ClassVar[int] = 7 * 24 * 3_600_000  # nginx counts timers in 32 bits of milliseconds: 24 days
    largest_text: ClassVar[str] = "168h"
    wanted: ClassVar[str] = "a duration such as 250ms, 2s, 1.5s, 10m or 1h"
    json_schema: ClassVar[JsonSchemaValue] = {
        "description": "A duration: a number with ms, s (also 1.5s), m or h.",
        "type": "string",
        "pattern": r"^([0-9]{1,18}([mM]?[sS]|[mM]|[hH])|[0-9]{1,9}\.[0-9]{1,3}[sS])$",
        "examples": ["250ms", "2s", "1.5s", "10m", "1h"],
    }

    @classmethod
    def parse(cls, value: object) -> Self:
        """As of every quantity; seconds may have a fraction, to the millisecond."""
        match = _FRACTION_OF_SECONDS.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return super().parse(value)
        return cls._bounded(int(match[1]) * 1000 + int(match[2].ljust(3, "0")), value)

    @classmethod
    def _plain(cls, number: int) -> Self:
        if number == 0:
            raise _refuse("must be more than 0, not 0")
        raise _refuse(f"needs a unit: write {number}s or {number}ms, for example")
