"""Which flags the ``vllm serve`` of a release knows: flags.json as a table (pure after its first reading)."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

#: X, Y, Z.
Version = tuple[int, int, int]

FILE = Path(__file__).parent / "flags.json"
#: In a tag such as v0.30.1, v0.30.1-x86_64 or 0.10.1.1.
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d])")


@dataclass(frozen=True)
class Flag:
    """One flag. ``form``: without a value (``switch``), ``--x`` and ``--no-x`` (``pair``), with one or more.

    ``type``: text, int, float, size (8192 or 8k), json, any (read by a function of vLLM's own). ``nargs``: how many
    values, if not one: ``+``, ``?`` or a number. ``choices``: the values that it may have, None when it is open.
    """

    name: str
    form: Literal["switch", "pair", "value", "append"]
    type: str = "text"
    nargs: str | int = 1
    choices: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    deprecated: bool = False
    #: What its help says to use instead, in vLLM's words.
    instead: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every word that vLLM takes for it."""
        names = (self.name, *self.aliases)
        off = [f"--no-{name[2:]}" for name in names if name.startswith("--")] if self.form == "pair" else []
        return (*names, *off)


@dataclass(frozen=True)
class Flags:
    """The flags of one release. ``version`` was asked for, ``known`` is the one whose flags these are."""

    version: Version
    known: Version
    by_spelling: Mapping[str, Flag]

    @property
    def newer(self) -> bool:
        """Whether the release is newer than all that are known."""
        return self.version > known_releases()[-1]

    def find(self, word: str) -> Flag | None:
        """The flag that a word of a command line names: ``--max_num_seqs``, ``-tp``, ``--no-enable-lora``."""
        return self.by_spelling.get(plain(word))

    def nearest(self, word: str) -> str | None:
        """The flag that a word was probably meant to be."""
        long = [spelling for spelling in self.by_spelling if spelling.startswith("--")]
        found = difflib.get_close_matches(plain(word)[:100], long, n=1, cutoff=0.6)
        # What old articles leave out: --chunked-prefill is --enable-chunked-prefill.
        whole = next((name for name in long if name == f"--enable-{plain(word)[2:]}"), None)
        return whole or (found[0] if found else None)


class UnknownRelease(ValueError):
    """A release that is older than all that are known."""


def plain(word: str) -> str:
    """A flag as argparse compares it: without a value, without JSON keys, with dashes."""
    name = word.partition("=")[0].partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def parse_version(text: str) -> Version | None:
    """The release that a version or an image tag names; None for ``latest``, ``nightly`` and the like."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def image_version(image: str) -> Version | None:
    """The release that an image names in its tag (``vllm/vllm-openai:v0.30.1``); None when it does not."""
    name = image.partition("@")[0]
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return parse_version(tag) if colon else None


def written(version: Version) -> str:
    """0.30.1."""
    return ".".join(map(str, version))


def known_releases() -> list[Version]:
    """All releases of flags.json, oldest first."""
    return [version for name in _data()["releases"] if (version := parse_version(name))]


def since(name: str) -> Version | None:
    """The first known release with the flag ``name``."""
    spans = _data()["flags"].get(name)
    return parse_version(spans[0]["from"]) if spans else None


def until(name: str) -> Version | None:
    """The last known release with the flag ``name``; None when the newest one has it, or none ever had."""
    spans = _data()["flags"].get(name)
    return parse_version(spans[-1]["to"]) if spans and "to" in spans[-1] else None


@cache
def flags_of(version: Version | None) -> Flags:
    """The flags of a release: the known one that is nearest below; the newest one where no version is given.

    Raises UnknownRelease for one that is older than all known ones.
    """
    known = known_releases()
    at = version or known[-1]
    below = [release for release in known if release <= at]
    if not below:
        raise UnknownRelease(f"vLLM {written(at)} is older than {written(known[0])}, the oldest whose flags are known")
    flags = [flag for name in _data()["flags"] if (flag := _flag(name, below[-1]))]
    table = {spelling: flag for flag in flags for spelling in flag.spellings}
    return Flags(at, below[-1], table)


def _flag(name: str, release: Version) -> Flag | None:
    for span in _data()["flags"][name]:
        last = parse_version(span.get("to", "")) or release
        if (parse_version(span["from"]) or release) <= release <= last:
            choices = span.get("choices")
            return Flag(
                name, span["form"], span.get("type", "text"), span.get("nargs", 1),
                None if choices is None else tuple("None" if choice is None else str(choice) for choice in choices),
                tuple(span.get("aliases", ())), span.get("deprecated", False), span.get("instead", ""),
            )  # fmt: skip
    return None


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return data
