"""``extra_args`` against the flags of a release: what vLLM would refuse, and what Signalbox sets itself. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control.vllm.flags import Flag, Flags, plain, since, until, written
from control.vllm.replaced import INSTEAD
from control.vllm.settings import OWNED

#: An optimization level in one word.
_LEVEL = re.compile(r"-O=?\d")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
#: Type → the values that it may have, and what they are called.
_SHAPES = {
    "int": (re.compile(r"-?\d+"), "a whole number"),
    "float": (re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)"), "a number"),
    "size": (re.compile(r"\d+|\d+[KMGT]|\d+(\.\d+)?[kmgt]|auto|-1"), "a whole number such as 8192 or 8k"),
}


@dataclass(frozen=True)
class Complaint:
    """One thing wrong with the word at ``index`` (from 0). ``warning``: vLLM takes it all the same."""

    index: int
    message: str
    hint: str = ""
    warning: bool = False


def complaints(arguments: Sequence[str], flags: Flags) -> list[Complaint]:
    """Everything that is wrong with ``extra_args``, in their order; nothing but warnings when vLLM would take them."""
    return list(_all(list(arguments), flags))


def _all(words: list[str], flags: Flags) -> Iterator[Complaint]:
    at = 0
    while at < len(words):
        word = words[at]
        if not _is_flag(word):
            hint = "A switch takes no value: --x turns it on, --no-x turns it off." if _is_truth(word) else ""
            yield Complaint(at, f"{word!r} belongs to no flag.", hint or "A flag begins with '--'.")
            at += 1
            continue
        values = next((index for index in range(at + 1, len(words)) if _is_flag(words[index])), len(words)) - at - 1
        flag = _short_level(word, flags) or flags.find(word)
        if flag is None:
            yield _unknown(at, word, flags)
        elif flag.name in OWNED:
            yield Complaint(at, f"{plain(word)} is set by Signalbox.", OWNED[flag.name])
        else:
            if flag.deprecated:
                yield _deprecated(at, flag, flags)
            taken = _taken(flag, word, values)
            yield from _values(at, word, words[at + 1 : at + 1 + taken], flag, flags)
            at += taken - values
        at += values + 1


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _is_truth(word: str) -> bool:
    return word.lower() in ("true", "false")


def _short_level(word: str, flags: Flags) -> Flag | None:
    """``-O3`` and ``-O 3``: the only short flag that newer releases replace by a long one before they look at it."""
    if not re.fullmatch(r"-O(=?\d)?", word):
        return None
    return flags.find("--optimization-level") or flags.find("-O")


def _taken(flag: Flag, word: str, values: int) -> int:
    """How many of the ``values`` words after ``word`` are its values."""
    if flag.form in ("switch", "pair") or "=" in word or _LEVEL.fullmatch(word):
        return 0
    most = {"+": values, "*": values, "?": 1}.get(str(flag.nargs), flag.nargs)
    return min(values, int(most))


def _unknown(at: int, word: str, flags: Flags) -> Complaint:
    name, release = plain(word), written(flags.version)
    last, first = until(name), since(name)
    if last is not None and last < flags.version:
        hint = INSTEAD.get(name, "Remove it.")
        return Complaint(at, f"vLLM {release} has no {name}: it was there until {written(last)}.", hint)
    if first is not None and first > flags.version:
        return Complaint(at, f"vLLM {release} has no {name}: it came with {written(first)}.", "Remove it.")
    near = flags.nearest(word)
    own = f" {OWNED[flag.name]}" if near and (flag := flags.find(near)) and flag.name in OWNED else ""
    hint = f"Did you mean {near!r}?{own}" if near else "`vllm serve --help=all` lists all."
    return Complaint(at, f"vLLM {release} has no flag {name!r}.", hint)


def _deprecated(at: int, flag: Flag, flags: Flags) -> Complaint:
    """vLLM takes it, and a later release will not."""
    last, release = until(flag.name), written(flags.version)
    gone = f"releases after {written(last)} do not have it" if last is not None else "a later release will not have it"
    hint = INSTEAD.get(flag.name) or (f"vLLM says: {flag.instead}" if flag.instead else "Remove it if you can.")
    return Complaint(at, f"{flag.name} is deprecated in vLLM {release}: {gone}.", hint, warning=True)


def _values(at: int, word: str, following: list[str], flag: Flag, flags: Flags) -> Iterator[Complaint]:
    _, equals, inline = word.partition("=")
    values = [inline] if equals else following
    name = plain(word)
    if flag.form in ("switch", "pair"):
        if equals:
            other = f" {name} alone turns it on" + (f", --no-{name[2:]} off." if flag.form == "pair" else ".")
            yield Complaint(at, f"{name} takes no value.", other.strip())
        return
    if _LEVEL.fullmatch(word):
        return
    wanted = flag.nargs if isinstance(flag.nargs, int) else 0 if flag.nargs == "?" else 1
    if len(values) < wanted:
        noun = "a value" if wanted == 1 else f"{wanted} values"
        yield Complaint(at, f"{name} needs {noun}.", "Write it as the next entry of the list.")
        return
    if "." in word.partition("=")[0]:  # one key of a JSON value; vLLM takes text too
        return
    for offset, value in enumerate(values):
        yield from _value(at if equals else at + 1 + offset, name, value, flag, flags)


def _value(at: int, name: str, value: str, flag: Flag, flags: Flags) -> Iterator[Complaint]:
    if flag.choices is not None:
        if value not in flag.choices:
            known = ", ".join(choice for choice in flag.choices if choice != "None")
            yield Complaint(at, f"{name} of vLLM {written(flags.version)} does not know {value!r}.", f"Known: {known}.")
    elif flag.type in _SHAPES and value not in ("", "None"):
        shape, words = _SHAPES[flag.type]
        if not shape.fullmatch(value.strip()):
            yield Complaint(at, f"{name} needs {words}, not {value!r}.")
    elif flag.type == "json" and value not in ("", "None") and not _is_json(value, flags):
        yield Complaint(at, f"{name} needs JSON, not {value!r}.", """For example: '{"key": "value"}'.""")


def _is_json(value: str, flags: Flags) -> bool:
    """What vLLM takes for JSON: before 0.10 also a=1,b=2, and later on numbers such as 80m."""
    if flags.version < (0, 10, 0) and re.fullmatch(r"\w+=\d+(,\w+=\d+)*", value):
        return True
    try:
        json.loads(re.sub(r"(?<=\d)[kKmMgGtT]\b", "", value))
    except ValueError:
        return False
    return True
