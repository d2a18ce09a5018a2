"""pydantic's errors in plain words, at the line of the key that they are about."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from control.fleet.schema import Fleet
from control.fleet.shapes import PATTERN_WORDS
from control.fleet.source import KeyPath, holds

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping ('key: value' lines)",
    "model_type": "a mapping ('key: value' lines)",
}


@dataclass(frozen=True)
class Finding:
    """One thing wrong at ``path``. ``about``: every place that the statement rests on (``path`` is always one).

    ``warning``: it should be known, but the fleet can be used.
    """

    path: KeyPath
    message: str
    suggestion: str = ""
    about: tuple[KeyPath, ...] = ()
    warning: bool = False


def shown(value: object) -> str:
    """A value as an error message quotes it: one line, not long."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was probably meant to be."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower()[:300], by_lower, n=1, cutoff=0.65)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """``Did you mean 'x'?``, or ``otherwise`` when nothing is near."""
    match = nearest(word, known)
    return f"Did you mean {match!r}?" if match else otherwise


def translate(errors: list[ErrorDetails], data: Mapping[str, object], model: type[BaseModel] = Fleet) -> list[Finding]:
    """One finding for each place in ``data`` that pydantic complains of; the arms of a union become one sentence.

    ``model`` is what ``data`` should have been.
    """
    grouped: dict[KeyPath, list[ErrorDetails]] = {}
    for error in errors:
        grouped.setdefault(_path_of(error, data), []).append(error)
    return [_finding(path, group, model) for path, group in grouped.items()]


def _path_of(error: ErrorDetails, data: object) -> KeyPath:
    """Where in ``data`` the error is: pydantic's location without the tags of union arms."""
    path: KeyPath = ()
    place: Any = data
    last = len(error["loc"]) - 1
    for index, part in enumerate(error["loc"]):
        if index == last and (error["type"] == "missing" or part == "[key]"):
            return (*path, part) if error["type"] == "missing" else path
        if holds(place, part):
            place = place[part]
            path = (*path, part)
    return path


def _finding(path: KeyPath, errors: list[ErrorDetails], model: type[BaseModel]) -> Finding:
    error = errors[0]
    kind, value = error["type"], error.get("input")
    if error["loc"] and error["loc"][-1] == "[key]":
        return Finding(path, f"this name is not allowed: it must be {_wanted(error, path, model)}.")
    if kind == "extra_forbidden":
        known = _keys_at(path[:-1], model)
        otherwise = f"Known here: {', '.join(known)}."
        return Finding(path, f"unknown key {shown(path[-1])}.", did_you_mean(str(path[-1]), known, otherwise))
    if kind == "missing":
        return Finding(path, f"the key {shown(path[-1])} is missing.", "Add it.")
    if kind in ("unit", "value_error"):
        text = str(error.get("ctx", {}).get("text" if kind == "unit" else "error"))
        text = "is empty" if kind == "unit" and value is None else text
        return Finding(path, f"{text}.", "Write a value, or remove the key." if text == "is empty" else "")
    if kind in ("too_short", "too_long", "string_too_long"):
        return Finding(path, _size(error))
    wanted = " or ".join(dict.fromkeys(_wanted(error, path, model) for error in errors))
    if value is None:
        return Finding(path, f"is empty, but must be {wanted}.", "Write a value, or remove the key.")
    return Finding(path, f"must be {wanted}, not {shown(value)}.", _suggestion(path, kind, value, model))


def _size(error: ErrorDetails) -> str:
    ctx = error.get("ctx", {})
    if error["type"] == "too_short":
        return f"must have at least {ctx.get('min_length')} entry."
    noun = "characters" if error["type"] == "string_too_long" else "entries"
    return f"is too long: at most {ctx.get('max_length')} {noun} are allowed."


def _wanted(error: ErrorDetails, path: KeyPath, model: type[BaseModel]) -> str:
    """What should stand there, as it follows "must be"."""
    ctx = error.get("ctx", {})
    kind = error["type"]
    if kind == "string_pattern_mismatch":
        return PATTERN_WORDS.get(str(ctx.get("pattern")), "text of another form")
    if kind == "greater_than_equal":
        return f"at least {ctx.get('ge')}"
    if kind == "less_than_equal":
        return f"at most {ctx.get('le')}"
    if kind == "literal_error":
        choices = [shown(choice) for choice in _choices_at(path, model)]
        return " or ".join(part for part in (", ".join(choices[:-1]), *choices[-1:]) if part)
    return _KINDS.get(kind) or f"something else ({error['msg']})"


def _suggestion(path: KeyPath, kind: str, value: object, model: type[BaseModel]) -> str:
    if isinstance(value, str):
        return did_you_mean(value, [choice for choice in _choices_at(path, model) if isinstance(choice, str)])
    if kind == "string_type" and not isinstance(value, dict | list):
        return f'Put it in quotes: "{shown(value)}".'
    return ""


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _arms(schema: dict[str, Any], model: type[BaseModel] = Fleet) -> list[dict[str, Any]]:
    """The schema itself, or what it refers to, or the arms of its union."""
    if "$ref" in schema:
        return _arms(_schema(model)["$defs"][schema["$ref"].rsplit("/", 1)[1]], model)
    arms = schema.get("anyOf", []) + schema.get("oneOf", [])
    return [deep for arm in arms for deep in _arms(arm, model)] if arms else [schema]


def _schemas_at(path: KeyPath, model: type[BaseModel]) -> list[dict[str, Any]]:
    found = _arms(_schema(model), model)
    for part in path:
        below: list[dict[str, Any]] = []
        for schema in found:
            if isinstance(part, int):
                below += [schema["items"]] if "items" in schema else []
            elif part in schema.get("properties", {}):
                below.append(schema["properties"][part])
            else:
                below += schema.get("patternProperties", {}).values()
        found = [arm for schema in below for arm in _arms(schema, model)]
    return found


def _keys_at(path: KeyPath, model: type[BaseModel]) -> list[str]:
    """The keys that may stand in the mapping at ``path``."""
    return [key for schema in _schemas_at(path, model) for key in schema.get("properties", {})]


def _choices_at(path: KeyPath, model: type[BaseModel]) -> list[object]:
    """The fixed values that ``path`` may have, when it is a choice."""
    found = _schemas_at(path, model)
    return [choice for schema in found for choice in schema.get("enum", [schema["const"]] if "const" in schema else [])]
