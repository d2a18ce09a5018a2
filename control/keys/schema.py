"""What a person may write in keys.yaml: the pydantic models, strict as those of fleet.yaml."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from control.fleet.schema import Limits
from control.fleet.shapes import PATTERN_WORDS, Identifier, ModelName, Strict

_HASH = r"^sha256:[0-9a-f]{64}$"
_ENDS = r"^[A-Za-z0-9_-]{4}$"
PATTERN_WORDS[_HASH] = "sha256: and 64 hexadecimal digits"
PATTERN_WORDS[_ENDS] = "the last four characters of the key, in quotes"

KeyHash = Annotated[str, Field(pattern=_HASH)]

_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(Z|[+-]\d{2}:\d{2})?)?")


class Moment(int):
    """Unix seconds, written as a date (the end of that day, UTC) or as a date and time (UTC unless it says else)."""

    json_schema: ClassVar[JsonSchemaValue] = {
        "description": "A date such as 2027-01-31 (the end of that day, UTC), or 2027-01-31T12:00:00Z.",
        "type": "string",
    }

    @classmethod
    def parse(cls, value: object) -> Self:
        """The moment that ``value`` means; ``PydanticCustomError`` says why there is none."""
        if isinstance(value, cls):
            return value
        match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
        try:
            if match is not None:
                return cls(_seconds(match))
        except (ValueError, OverflowError):  # the 31st of February, the year 9999 plus a day
            pass
        wanted = "a date such as 2027-01-31, or a date and time such as 2027-01-31T12:00:00Z"
        raise PydanticCustomError("unit", "{text}", {"text": f"must be {wanted}, not {str(value)[:40]!r}"})

    def text(self) -> str:
        """The date and time in UTC, as keys.yaml has it."""
        return datetime.fromtimestamp(int(self), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.parse)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return dict(cls.json_schema)


def _seconds(match: re.Match[str]) -> int:
    day, time, zone = match.groups()
    if time is None:
        return int((datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)).timestamp())
    return int(datetime.fromisoformat(f"{day}T{time}{zone or 'Z'}").timestamp())


class KeyLimits(Limits):
    """Limits of one key: in all, and of single models."""

    models: dict[ModelName, Limits] = Field(default_factory=dict, max_length=1000)


class Previous(Strict):
    """The key before a rotation, which still lets in for a while."""

    hash: KeyHash
    until: Moment


class Key(Strict):
    """One API key. The name of the entry stands in logs."""

    hash: KeyHash
    ends: Annotated[str, Field(pattern=_ENDS)] | None = None
    """The last four characters, to recognise it."""
    models: Annotated[list[ModelName], Field(min_length=1, max_length=1000)] | None = None
    """What it may use; without it everything."""
    priority: Literal["normal", "high", "low"] = "normal"
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    limits: KeyLimits = KeyLimits()
    expires: Moment | None = None
    enabled: bool = True
    previous: Previous | None = None


class KeysFile(Strict):
    """The whole of keys.yaml."""

    keys: Annotated[dict[Identifier, Key], Field(max_length=20_000)]
    """Names, and the hash of each one's key."""
