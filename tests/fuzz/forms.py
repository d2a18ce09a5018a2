"""Random multipart forms for the differential fuzz of multipart.lua: honest, odd, mutated and cut short."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

NAMES = ("model", "stream", "file", "prompt", "Model", "model ", "mod", "")
BOUNDARIES = ("B", "----WebKitFormBoundary7MA4YWxkTrZu0gW", "----=_Part_1.2", "x" * 70, "0aF'()+_./:?-")
VALUES = (b"", b"m", b"org/name", b"true", b"\r\n", b"-", b"--", b"a\r\nb", b"\xc3\xa9", b"\r\n--", b"m" * 512,
          b"m" * 513, b"\xff", b"\xf0\x9f\x98\x80", b"\r", b"\n", b"\x00")  # fmt: skip
HEADERS = (
    b"Content-Type: text/plain", b"content-type: text/plain; charset=utf-16", b"Content-Transfer-Encoding: 8bit",
    b"Content-Transfer-Encoding: base64", b"X-A: b", b"Content-Length: 1",
    b'Content-Disposition: form-data; name="model"',
    b" folded", b"X\n-B: c", b"X-C:", b": d", b"X-D: \xff",
)  # fmt: skip
FILENAMES = (
    '"a.wav"',
    '""',
    "a.wav",
    '"a;b.wav"',
    '"a\\"b.wav"',
    '"C:\\x\\y.wav"',
    '"a\\\\"',
    '"é.wav"',
    '"a\\"; name=\\"model"',
)
PARAMETERS = (
    '; name="model"', "; name=model", "; name*=utf-8''model", '; name*0="model"', '; NAME="model"', '; name="mode\\l"',
    '; name="x"', "; x=y", ";", '; name = "model"', ';name="mod\\"el"', '; filename="', '; name="model',
    "; filename*=utf-8''a",
    '; a="\\\\"', "; name=mo\"d\"el", "; name='model'", '; x="', '; name="model";', "\xa0",
)  # fmt: skip
JUNK = (b"\r", b"\n", b"\r\n", b"-", b"--", b'"', b"\\", b";", b"=", b" ", b"\t", b"\x00", b":", b"name", b"*",
        b"\r\n\r\n", b'; name="model"', b"\xff", b"\xc2\xa0")  # fmt: skip


@dataclass(frozen=True)
class Form:
    """One form; `honest` ones must be read, and their model is `model`."""

    content_type: bytes
    body: bytes
    honest: bool
    model: bytes | None = None


class Forms:
    """A stream of random forms that depends on nothing but its seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def next(self) -> Form:
        """Return one form; about a third are honest."""
        roll = self.random.random()
        if roll < 0.33:
            return self._honest()
        if roll < 0.35:
            return self._honest(doubled=True)
        form = self._odd() if roll < 0.7 else self._honest()
        if roll < 0.5:
            return form
        body, content_type = self._mutated(form.body), form.content_type
        if self.random.random() < 0.1:
            content_type = self._mutated(content_type)
        return Form(content_type.replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b""), body, honest=False)

    def _honest(self, doubled: bool = False) -> Form:
        """Write a form as HTTP libraries do; a doubled model is the one thing that may be wrong with it."""
        random = self.random
        boundary = random.choice(BOUNDARIES)
        parts = [self._file(boundary) for _ in range(random.choice((0, 1, 1, 2)))]
        parts += [self._field("prompt", b"hello\r\n--not"), self._field("x", b"")][: random.randrange(3)]
        model = random.choice(VALUES[:11]) if random.random() < 0.8 else None
        if model is not None:
            parts += [self._field("model", model)] * (2 if doubled else 1)
        random.shuffle(parts)
        mark = boundary.encode()
        if any(b"\r\n--" + mark in part for part in parts) or not parts:
            return self._honest()
        body = b"".join(b"--" + mark + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + mark + b"--\r\n"
        quoted = f'"{boundary}"' if random.random() < 0.5 else boundary
        return Form(f"multipart/form-data; boundary={quoted}".encode(), body, honest=not doubled, model=model)

    def _field(self, name: str, value: bytes) -> bytes:
        extra = b"Content-Type: text/plain; charset=utf-8\r\n" if self.random.random() < 0.2 else b""
        return f'Content-Disposition: form-data; name="{name}"\r\n'.encode() + extra + b"\r\n" + value

    def _file(self, boundary: str) -> bytes:
        random = self.random
        filename = random.choice(FILENAMES[:6])
        near = ("\r\n--" + boundary)[: random.randrange(len(boundary) + 4)].encode()
        content = random.randbytes(random.choice((0, 1, 60, 128, 300))) + near * random.randrange(3) + b"\r"
        return f'Content-Disposition: form-data; name="file"; filename={filename}\r\n'.encode() + b"\r\n" + content

    def _mostly(self, plain: bytes, *odd: bytes) -> bytes:
        """Choose one of the odd ways one time in twelve, else the plain one."""
        return self.random.choice(odd) if self.random.random() < 1 / 12 else plain

    def _odd(self) -> Form:
        """Write a form in which each thing is plain most of the time, so that few are wrong at once."""
        random = self.random
        boundary = random.choice(BOUNDARIES)
        mark = b"--" + boundary.encode()
        count = random.choice((63, 64, 65)) if random.random() < 0.01 else random.choice((1, 1, 2, 3))
        body = self._mostly(b"", b"\r\n", b"preamble\r\n", b"\r\n-", b"\n")
        for _ in range(count):
            headers = [self._disposition(few=count > 3)]
            headers += random.choices(HEADERS, k=1) if count < 4 and random.random() < 0.2 else []
            random.shuffle(headers)
            end = self._mostly(b"\r\n", b"\n", b" \r\n", b"\r") if count < 4 else b"\r\n"
            body += mark + end + b"\r\n".join(headers) + b"\r\n\r\n" + random.choice(VALUES) + b"\r\n"
        body += mark + self._mostly(b"--\r\n", b"--", b"-", b"", b"--\r\nepilogue", b"--\n", b"--" + mark)
        charset = self._mostly(b"", b"; charset=utf-8", b"; charset=utf-16", b"; charset=utf-7", b"; charset*=x''y")
        quoted = f'"{boundary}"' if random.random() < 0.5 else boundary
        return Form(b"multipart/form-data" + charset + f"; boundary={quoted}".encode(), body, honest=False)

    def _disposition(self, few: bool) -> bytes:
        random = self.random
        if few:
            return f'Content-Disposition: form-data; name="{random.choice(NAMES[2:])}"'.encode()
        name = self._mostly(b"Content-Disposition: ", b"content-disposition:", b"Content-Disposition:\t", b"X: ")
        kind = self._mostly(b"form-data", b"Form-Data", b"attachment", b"", b'"form-data"', b"form-data ")
        parameters = [f'; name="{random.choice(NAMES)}"'] if random.random() < 0.8 else []
        parameters += [f"; filename={random.choice(FILENAMES)}"] if random.random() < 0.3 else []
        parameters += [random.choice(PARAMETERS)] if random.random() < 0.3 or not parameters else []
        random.shuffle(parameters)
        return name + kind + "".join(parameters).encode("latin-1")

    def _mutated(self, body: bytes) -> bytes:
        random = self.random
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.randrange(len(body) + 1)
            roll = random.random()
            if roll < 0.5:
                body = body[:at] + random.choice(JUNK) + body[at:]
            elif roll < 0.8:
                body = body[:at] + body[at + random.choice((1, 1, 2, 5)) :]
            elif roll < 0.9:
                body = body[:at] + bytes((random.randrange(256),)) + body[at + 1 :]
            else:
                body = body[:at]
        return body
