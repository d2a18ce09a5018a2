"""Random JSON documents for the differential fuzz of json_scan: valid, odd, mutated and cut short."""

from __future__ import annotations

import json
from random import Random

WHITE = ("", "", "", "", " ", "\n", "\t", "\r\n", "  ", " \n\t\r ")
KEYS = ("model", "stream", "Model", "mode", "model ", "messages", "a", "", "x\\y", 'q"', "n", "é", "model\x00")
WORDS = (
    "m", "org/name", "", "é", "漢字", "😀", '"', "\\", "\\\\", "/", '"model":"decoy"', '","model":"decoy","', "}", "]",
    "{", "[", ":", ",", "\x7f", "\u2028", "\ud800", "\udc00", "\udc00\ud800", "\x00", "\x1f", "a" * 70, "\\u006dodel",
    "' '",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "16.0", "1e5", "-1.5E+3", "1E-400", "1e999", "9007199254740993", "1" * 40, "NaN", "Infinity",
    "-Infinity",
)  # fmt: skip
JUNK = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b"u", b"\\u00",
        b'"model"', b'"model":"other",', b"\xef\xbb\xbf", b"0", b"\xc2\xa0", b"/**/", b"'")  # fmt: skip


class Documents:
    """A stream of random documents that depends on nothing but its seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def next(self) -> bytes:
        """Return one document; about three quarters are objects that json.loads accepts."""
        random = self.random
        roll = random.random()
        if roll < 0.02:
            text = self._value(0)
        elif roll < 0.03:
            text = self._large()
        else:
            text = self._object(0, random.choice((0, 1, 2, 3, 5, 9)))
        body = (self._white() + text + self._white()).encode("utf-8", "surrogatepass")
        roll = random.random()
        if roll < 0.01:
            encoding = random.choice(("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"))
            return body.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass")
        if roll < 0.22:
            return self._mutated(body)
        if roll < 0.27:
            return body[: random.randrange(len(body) + 1)]
        return body

    def _white(self) -> str:
        return self.random.choice(WHITE)

    def _string(self, text: str) -> str:
        """Write a text as a JSON string, each character escaped or not at random."""
        random = self.random
        escape_rate = random.choice((0.0, 0.0, 0.3, 1.0))
        out = []
        for char in text:
            code = ord(char)
            if code < 0x20 or char in '"\\':
                out.append(json.dumps(char)[1:-1] if random.random() < 0.7 else f"\\u{code:04x}")
            elif random.random() >= escape_rate:
                out.append(char)
            elif char == "/":
                out.append("\\/")
            elif code > 0xFFFF:
                out.append(json.dumps(char)[1:-1])
            else:
                out.append(random.choice((f"\\u{code:04x}", f"\\u{code:04X}")))
        return '"' + "".join(out) + '"'

    def _value(self, depth: int) -> str:
        random = self.random
        roll = random.random()
        if depth < 4 and roll < 0.15:
            return self._object(depth + 1, random.randrange(4))
        if depth < 4 and roll < 0.3:
            items = [self._white() + self._value(depth + 1) + self._white() for _ in range(random.randrange(4))]
            return "[" + (",".join(items) or self._white()) + "]"
        if roll < 0.5:
            return random.choice(NUMBERS)
        if roll < 0.6:
            return random.choice(("true", "false", "null"))
        return self._string("".join(random.choices(WORDS, k=random.choice((0, 1, 1, 2, 3)))))

    def _object(self, depth: int, count: int) -> str:
        random = self.random
        members = []
        for _ in range(count):
            key = random.choice(KEYS if random.random() < 0.9 else WORDS)
            members.append(
                f"{self._white()}{self._string(key)}{self._white()}:{self._white()}{self._value(depth)}{self._white()}"
            )
        return "{" + (",".join(members) or self._white()) + "}"

    def _large(self) -> str:
        """Write an object near the limits on keys and depth."""
        random = self.random
        model = '"model":' + self._value(3)
        if random.random() < 0.5:
            keys = [f'"k{i % 300}":{i}' for i in range(random.choice((254, 255, 256, 257, 300)))]
            keys.insert(random.randrange(len(keys) + 1), model)
            return "{" + ",".join(keys) + "}"
        levels = random.choice((509, 510, 511, 512, 513, 600))
        opened = [random.choice(("[", '{"model":')) for _ in range(levels)]
        closed = ["]" if text == "[" else "}" for text in reversed(opened)]
        return '{"deep":' + "".join(opened) + "0" + "".join(closed) + "," + model + "}"

    def _mutated(self, body: bytes) -> bytes:
        random = self.random
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            at = random.randrange(len(body) + 1)
            roll = random.random()
            if roll < 0.4:
                body = body[:at] + random.choice(JUNK) + body[at:]
            elif roll < 0.7:
                body = body[:at] + body[at + random.choice((1, 1, 2, 5)) :]
            elif roll < 0.85:
                body = body[:at] + bytes((random.randrange(256),)) + body[at + 1 :]
            else:
                other = random.randrange(len(body) + 1)
                body = body[: min(at, other)] + body[max(at, other) :] + body[min(at, other) : max(at, other)]
        return body
