"""Asking for usage and taking it out: random bodies against what vLLM makes of them, random streams, cut anywhere.

FUZZ_DOCUMENTS sets how many are tried (default 20,000), FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from tests.fuzz.documents import Documents
from tests.fuzz.judge import drive, seed_from_environment, texts

COUNT = int(os.environ.get("FUZZ_DOCUMENTS", "20000"))
TIMEOUT = 120 + COUNT // 500
FLAGS = ("true", "true", "false", "null", "0", "1", "1.0", "-0", "2", '"yes"', '"OFF"', '"\\u0031"', '"x"', "[]", "{}")
OPTIONS = ("include_usage", "include_usage", "continuous_usage_stats", "x", "include_usage ")


class Options(BaseModel):
    """As vLLM 0.32 declares them."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Request(BaseModel):
    """The part of a request that matters here."""

    model_config = ConfigDict(extra="allow")

    stream: bool | None = False
    stream_options: Options | None = None


class Bodies(Documents):
    """Bodies that ask for streams in every way."""

    def body(self) -> bytes:
        random = self.random
        members = [("stream", random.choice(FLAGS))] * (random.random() < 0.95)
        members += [("stream_options", self._options())] * random.choice((0, 1, 1, 1, 1, 2))
        members += [(random.choice(("messages", "n", "Stream")), self._value(2)) for _ in range(random.randrange(3))]
        random.shuffle(members)
        return self._members(members).encode("utf-8", "surrogatepass")

    def _members(self, members: list[tuple[str, str]]) -> str:
        white = self._white
        parts = [f"{white()}{self._string(key)}{white()}:{white()}{value}{white()}" for key, value in members]
        return "{" + (",".join(parts) or white()) + "}"

    def _options(self) -> str:
        random = self.random
        roll = random.random()
        if roll < 0.2:
            return random.choice(("null", "null", '""', "[]", "0", "true", '"{}"'))
        keys = random.choices(OPTIONS, k=random.randrange(4))
        return self._members([(key, self._value(3) if key[0] == "x" else random.choice(FLAGS)) for key in keys])


def pairs_of(value: Any) -> Any:
    """All members of an object but those that the edge may change, also those that come twice."""
    return [(key, item) for key, item in value if key not in ("include_usage", "continuous_usage_stats")]


def parsed(body: bytes) -> Request | None:
    """The request as vLLM reads it; None when it refuses it."""
    try:
        return Request.model_validate(json.loads(body))
    except ValidationError:
        return None


def splice_fault(body: bytes, sent: bytes, asks: bool) -> tuple[str, str]:
    """What kind of body it was, and what is wrong with what the engine gets."""
    before, after = parsed(body), parsed(sent)
    if before is None:
        return "refused", "" if after is None else "made valid"
    options = before.stream_options
    if not before.stream or (options and options.include_usage):
        return "left", "" if sent == body and not asks else "changed"
    if after is None or not asks:
        return "asked", "not asked"
    got = after.stream_options
    if not after.stream or got is None or not got.include_usage or got.continuous_usage_stats:
        return "asked", f"asked wrongly: {sent!r}"
    old = [item for item in json.loads(body, object_pairs_hook=pairs_of) if item[0] != "stream_options"]
    new = [item for item in json.loads(sent, object_pairs_hook=pairs_of) if item[0] != "stream_options"]
    if repr(old) != repr(new):  # NaN is not equal to itself
        return "asked", f"something else changed: {sent!r}"
    extra = options.model_extra if options else {}
    return "asked", "" if repr(extra) == repr(got.model_extra) else f"another option changed: {sent!r}"


@pytest.mark.timeout(TIMEOUT)
def test_the_engine_is_asked_exactly_when_the_client_did_not(tmp_path: Path) -> None:
    seed = seed_from_environment()
    bodies = Bodies(seed)
    given = [bodies.body() for _ in range(COUNT)]
    found = texts(drive("splice", given, tmp_path))
    kinds: Counter[str] = Counter()
    for body in given:
        code, sent, asks = next(found), next(found), next(found)
        kind, fault = splice_fault(body, sent, asks == b"1") if not code else (code.decode(), "")
        kinds[kind] += 1
        assert not fault, f"FUZZ_SEED={seed}: {fault}: {body!r}"
    print(f"seed {seed}: {dict(kinds)}")
    assert set(kinds) == {"refused", "left", "asked"}
    assert min(kinds.values()) > COUNT // 20


class Streams(Documents):
    """Streams of events, usage events and what looks like them."""

    def stream(self) -> bytes:
        random = self.random
        end = random.choice(("\n", "\n", "\r\n"))
        text = "".join(self._block() for _ in range(random.randrange(1, 6))).replace("\n", end)
        data = text.encode("utf-8", "surrogatepass")
        return data[: random.randrange(len(data) + 1)] if random.random() < 0.2 else data

    def cuts(self, size: int) -> list[int]:
        random = self.random
        if random.random() < 0.1:
            return list(range(1, size))
        return sorted(random.randrange(size + 1) for _ in range(random.choice((0, 1, 2, 5))))

    def _block(self) -> str:
        random = self.random
        roll = random.random()
        if roll < 0.1:
            return random.choice((": keep-alive\n\n", ":\n", ": x\n", "\n", "retry: 1\n\n", "data\n\n"))
        if roll < 0.2:
            return "data: [DONE]\n\n"
        text = random.choice(("data:", "data: ")) + self._event() + "\n"
        if random.random() < 0.1:
            text = random.choice((f"event: x\n{text}", f"{text}id: 1\n", text + text, f": c\n{text}", text.upper()))
        return text + "\n"

    def _event(self) -> str:
        random = self.random
        members = [f'"choices"{self._white()}:{self._white()}{self._choices()}'] * random.choice((0, *[1] * 8, 2))
        members += [f'"usage"{self._white()}:{self._white()}{self._usage()}'] * random.choice((0, 1, 1, 1, 1, 1))
        members += [f"{self._string(random.choice(('id', 'x', 'error')))}:{self._value(2)}"] * random.choice((0, 1))
        random.shuffle(members)
        text = self._white() + "{" + ",".join(members) + "}" + self._white()
        if random.random() < 0.05:
            text = text[: random.randrange(len(text))]
        return re.sub(r"[\r\n]", " ", text)  # outside of strings: inside they are escaped

    def _choices(self) -> str:
        inside = '[{"delta":' + self._string('"choices":[],"usage":{"prompt_tokens":1}') + "}]"
        return self.random.choice(("[]", "[]", "[]", "[]", "[ ]", "[[]]", "{}", "null", '"[]"', inside, self._value(2)))

    def _usage(self) -> str:
        tokens = f'{{"prompt_tokens":{self.random.randrange(99)},"completion_tokens_details":{{"a":[{{}}]}}}}'
        return self.random.choice((tokens, tokens, tokens, tokens, "{}", "null", "[]", '"{}"', self._value(2)))


def is_usage(data: bytes) -> Any:
    """The usage object of an event that has no choices; None for all others."""
    try:
        value = json.loads(data, object_pairs_hook=list)
    except ValueError:
        return None
    if not isinstance(value, list) or not data.strip(b" \t\r").startswith(b"{"):
        return None
    once = {key: item for key, item in value if key in ("choices", "usage", "error")}
    names = [key for key, _ in value if key in once]
    loaded = json.loads(data)
    fits = loaded.get("choices") == [] and isinstance(loaded.get("usage"), dict)
    return loaded["usage"] if fits and sorted(names) == ["choices", "usage"] else None


def without_usage(stream: bytes) -> tuple[bytes, Any]:
    """The stream as the client must get it, and the last usage object that was in it."""
    out, event, usage = b"", [], None
    for line in re.findall(rb"[^\n]*\n|[^\n]+", stream):
        text = line.rstrip(b"\r\n")
        if not event and (not text or text.startswith(b":")):
            out += line
            continue
        event.append(line)
        if text or not line.endswith(b"\n"):
            continue
        taken = is_usage(event[0][5:]) if len(event) == 2 and event[0].startswith(b"data:") else None
        out += b"" if taken is not None else b"".join(event)
        usage = taken if taken is not None else usage
        event = []
    return out + b"".join(event), usage


@pytest.mark.timeout(TIMEOUT)
def test_exactly_the_usage_events_are_taken_out(tmp_path: Path) -> None:
    seed = seed_from_environment()
    streams = Streams(seed)
    given = [streams.stream() for _ in range(COUNT // 2)]
    fields = [field for one in given for field in (one, ",".join(map(str, streams.cuts(len(one)))).encode())]
    found = texts(drive("stream", fields, tmp_path))
    taken = 0
    for number, stream in enumerate(given):
        passed, usage = next(found), next(found)
        expected, counted = without_usage(stream)
        where = f"FUZZ_SEED={seed}: {stream!r} cut at {fields[2 * number + 1]!r}"
        assert passed == expected, where
        assert repr(json.loads(usage) if usage else None) == repr(counted), where
        taken += counted is not None
    print(f"seed {seed}: {taken} of {len(given)} streams had a usage event")
    assert len(given) // 5 < taken < len(given)


@pytest.mark.parametrize(
    ("body", "sent", "asks"),
    [
        (b'{"stream":true}', b'{"stream":true}', False),
        (b'{"stream":true}', b'{"stream":true,"stream_options":{"include_usage":false}}', True),
        (b'{"stream":true,"a":1}', b'{"stream":true,"stream_options":{"include_usage":true},"a":2}', True),
        (b'{"stream":false}', b'{"stream":false,"stream_options":null}', False),
        (b'{"stream":true,"stream_options":[]}', b'{"stream":true,"stream_options":{"include_usage":true}}', True),
    ],
)
def test_the_judge_sees_wrong_splices(body: bytes, sent: bytes, asks: bool) -> None:
    assert splice_fault(body, sent, asks)[1]
