"""Run the edge's body scanners over random documents and compare each answer with Python's own readers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from tests.fuzz.documents import Documents
from tests.fuzz.forms import Form, Forms

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("model", "stream")
MAX_KEYS = 256
MAX_DEPTH = 512
BATCH = 20_000

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it reports every broken form


@dataclass
class Found:
    """What a scanner found for one key: byte offsets, kind, and the value if it is a string that decodes."""

    first: int
    last: int
    kind: str
    value: bytes


@dataclass
class Answer:
    """A scanner's answer: a refusal's code, or what it found by key."""

    code: str
    found: dict[str, Found] = field(default_factory=dict)


@dataclass
class Tally:
    """Counts of one run; `mismatches` holds one text for every document that breaks the property."""

    seed: int
    documents: int = 0
    valid: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    seconds: float = 0.0


def luajit() -> str:
    """Return the LuaJIT to run: LUAJIT, or the one on PATH."""
    return os.environ.get("LUAJIT", "luajit")


def seed_from_environment() -> int:
    """Return FUZZ_SEED, or a fresh seed."""
    return int(os.environ.get("FUZZ_SEED") or int.from_bytes(os.urandom(4), "little"))


def drive(kind: str, fields: list[bytes], folder: Path) -> bytes:
    """Run drive.lua for `kind` over length-prefixed fields; return its output."""
    source, target = folder / "documents", folder / "answers"
    source.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in fields))
    subprocess.run([luajit(), "tests/fuzz/drive.lua", kind, source, target], cwd=ROOT, check=True, timeout=110)
    return target.read_bytes()


def texts(output: bytes) -> Iterator[bytes]:
    """Read the length-prefixed texts of the driver's output."""
    position = 0
    while position < len(output):
        (length,) = struct.unpack_from("<I", output, position)
        position += 4 + length
        yield output[position - length : position]


def scan(kind: str, fields: list[bytes], folder: Path) -> Iterator[Answer]:
    """Run the scanner of `kind` (json or multipart) over length-prefixed fields."""
    found = texts(drive(kind, fields, folder))
    for code in found:
        answer = Answer(code.decode())
        if not answer.code:
            for key in KEYS:
                first, last, kind, value = next(found), next(found), next(found).decode(), next(found)
                if first:
                    answer.found[key] = Found(int(first), int(last), kind, value)
        yield answer


# JSON


class Members(dict[str, Any]):
    """A decoded object that remembers all its keys, also those that come twice."""

    names: list[str]


def members(pairs: list[tuple[str, Any]]) -> Members:
    """Make a Members of one object's pairs."""
    made = Members(pairs)
    made.names = [name for name, _ in pairs]
    return made


def depth(value: object) -> int:
    """Return how many levels of objects and arrays a decoded value has."""
    level, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, dict | list)]:
        level += 1
        layer = [child for item in layer for child in (item.values() if isinstance(item, dict) else item)]
    return level


def same(one: object, other: object) -> bool:
    """Compare decoded values by their texts: NaN is itself, 1 is neither True nor 1.0, and deep ones cost no stack."""
    return repr(one) == repr(other)


def refusal_is_named(body: bytes, decoded: Members, code: str) -> bool:
    """Say whether the docs name this refusal for this object, which json.loads accepts."""
    if code == "duplicate_key":
        return any(decoded.names.count(key) > 1 for key in KEYS)
    if code == "too_many_keys":
        return len(decoded.names) > MAX_KEYS
    if code == "too_deep":
        # Of keys that come twice only the last is in the decoded object, so brackets decide for those.
        doubled = len(set(decoded.names)) < len(decoded.names)
        return depth(decoded) > MAX_DEPTH or (doubled and body.count(b"{") + body.count(b"[") > MAX_DEPTH)
    return code == "invalid_json" and (json.detect_encoding(body) != "utf-8" or body.startswith(b"\xef\xbb\xbf"))


def value_fault(body: bytes, expected: object, found: Found) -> str:
    """Say what is wrong with a found value, or return an empty text."""
    raw = body[found.first : found.last + 1]
    try:
        decoded = json.loads(raw.decode("utf-8", "surrogatepass"))
    except ValueError:
        return f"the raw value {raw!r} is no JSON value"
    if not same(decoded, expected):
        return f"the raw value {raw!r} is not {expected!r}"
    if isinstance(expected, str):
        if found.kind == "undecodable":
            return "" if any("\ud800" <= char <= "\udfff" for char in expected) else f"{expected!r} does not decode"
        if found.kind != "string" or found.value != expected.encode("utf-8", "surrogatepass"):
            return f"the decoded value {found.value!r} is not {expected!r}"
        return ""
    kinds = {bool: str(expected).lower(), type(None): "null", dict: "object", Members: "object", list: "array"}
    if raw in (b"NaN", b"Infinity"):
        return ""  # Python's words for numbers that JSON has not: "invalid" for us, but in the right place
    wanted_kind = kinds.get(type(expected), "number")
    return "" if found.kind == wanted_kind else f"the kind is {found.kind}, not {wanted_kind}"


def splice_fault(body: bytes, decoded: Members, found: Found) -> str:
    """Replace the model by byte range, and say what else changed, or return an empty text."""
    spliced = json.loads(body[: found.first] + b'"spliced"' + body[found.last + 1 :], object_pairs_hook=members)
    return "" if same(spliced, {**decoded, "model": "spliced"}) else "splicing the model changed more"


def judge_json(body: bytes, answer: Answer, tally: Tally) -> None:
    """Compare a scanner's answer with json.loads and count it."""
    tally.documents += 1
    try:
        decoded = json.loads(body, object_pairs_hook=members)
    except (ValueError, RecursionError):
        tally.refusals["(json.loads refuses) " + (answer.code or "accepted")] += 1
        return
    fault = ""
    if not isinstance(decoded, Members):
        fault = "" if answer.code == "invalid_json" else "it is no object, and was accepted"
    elif answer.code:
        tally.valid += 1
        tally.refusals[answer.code] += 1
        fault = "" if refusal_is_named(body, decoded, answer.code) else f"refused with {answer.code}"
    else:
        tally.valid += 1
        if found := {key for key in KEYS if key in decoded} ^ answer.found.keys():
            fault = f"found or missed wrongly: {found}"
        elif any(decoded.names.count(key) > 1 for key in KEYS):
            fault = "a key comes twice, and was accepted"
        for key in answer.found.keys() & decoded.keys():
            fault = fault or value_fault(body, decoded[key], answer.found[key])
            tally.refusals["undecodable"] += answer.found[key].kind == "undecodable"
        if not fault and "model" in answer.found and tally.documents % 4 == 0:
            fault = splice_fault(body, decoded, answer.found["model"])
    if fault:
        tally.mismatches.append(f"{fault}: {body!r}")


def fuzz_json(count: int, seed: int, folder: Path) -> Tally:
    """Compare json_scan with json.loads on `count` documents."""
    tally, documents, begin = Tally(seed), Documents(seed), time.monotonic()
    while tally.documents < count:
        bodies = [documents.next() for _ in range(min(BATCH, count - tally.documents))]
        for body, answer in zip(bodies, scan("json", bodies, folder), strict=True):
            judge_json(body, answer, tally)
    tally.seconds = time.monotonic() - begin
    return tally


# Forms


async def starlette_fields(form: Form, cut: int) -> list[tuple[str, Any]] | None:
    """Read a form as vLLM does, its body in two chunks; None if it is refused."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield form.body[:cut]
        yield form.body[cut:]
        yield b""

    headers = Headers(raw=[(b"content-type", form.content_type)])
    try:
        return (await MultiPartParser(headers, stream()).parse()).multi_items()
    except (MultiPartException, AttributeError, UnicodeError):
        return None


def form_fault(form: Form, answer: Answer, fields: list[tuple[str, Any]] | None) -> str:
    """Say what is wrong with the answer for one form, or return an empty text."""
    if form.honest:
        found = answer.found.get("model")
        if answer.code or (found.value if found else None) != form.model:
            return f"an honest form was read as {answer}"
    if answer.code or fields is None:
        return ""
    for key in KEYS:
        values = [value for name, value in fields if name == key]
        found = answer.found.get(key)
        expected = [found.value.decode()] if found else []
        if values != expected:
            return f"{key} is {expected} for us and {values} for the engine"
        if found and form.body[found.first : found.last + 1] != found.value:
            return f"the offsets of {key} are wrong"
    return ""


async def judge_forms(forms: list[Form], found: Iterator[Answer], tally: Tally) -> None:
    """Compare answers with Starlette's and count them."""
    random = Random(tally.seed + tally.documents)
    for form, answer in zip(forms, found, strict=True):
        fields = await starlette_fields(form, random.randrange(len(form.body) + 1))
        tally.documents += 1
        tally.valid += fields is not None
        if answer.code:
            tally.refusals[answer.code if fields is not None else "(Starlette refuses) " + answer.code] += 1
        elif fields is None:
            tally.refusals["(Starlette refuses) accepted"] += 1
        if fault := form_fault(form, answer, fields):
            tally.mismatches.append(f"{fault}: {form}")


def fuzz_forms(count: int, seed: int, folder: Path) -> Tally:
    """Compare multipart.lua with Starlette's form parser on `count` forms."""
    tally, forms, begin = Tally(seed), Forms(seed), time.monotonic()
    while tally.documents < count:
        batch = [forms.next() for _ in range(min(BATCH, count - tally.documents))]
        texts = [text for form in batch for text in (form.content_type, form.body)]
        asyncio.run(judge_forms(batch, scan("multipart", texts, folder), tally))
    tally.seconds = time.monotonic() - begin
    return tally
