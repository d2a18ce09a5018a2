"""A Redis of a test's own: its own port and folder, nothing written to disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.net import free_port, wait_until

#: Without it half of what several edges share would go untested without a word.
needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is missing: `make setup-test-fast` installs it"
)


class Redis:
    """``with Redis() as redis``: an empty one at ``redis.url`` until the block ends."""

    def __init__(self, password: str | None = None, host: str = "127.0.0.1", **options: str) -> None:
        """``options`` become command-line options: ``tls_port="1234"``."""
        self.host = host
        self.port = free_port()
        self.password = password
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def __enter__(self) -> Redis:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> Redis:
        command = ["redis-server", "--port", str(self.port), "--bind", self.host, "--save", "", "--dir",
                   str(self.folder), "--logfile", str(self.folder / "log")]  # fmt: skip
        for name, value in self.options.items():
            command += ["--" + name.replace("_", "-"), value]
        if self.password:
            command += ["--requirepass", self.password]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until("Redis to answer", lambda: self.call("PING") == "PONG", 10)
        return self

    def kill(self) -> None:
        """End it at once; all that it knew is gone."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop the process: connections are accepted by the kernel, nothing answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def call(self, *words: str | int) -> Any:
        """One command over a connection of its own: a text, number or list; errors as OSError."""
        with socket.create_connection((self.host, self.port), timeout=5) as link, link.makefile("rb") as answers:
            if self.password:
                link.sendall(_encode("AUTH", self.password))
                _read(answers)
            link.sendall(_encode(*words))
            return _read(answers)

    def names(self, pattern: str = "*") -> list[str]:
        found: list[str] = self.call("KEYS", pattern)
        return sorted(found)


def _encode(*words: str | int) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _read(answers: Any) -> Any:
    line = answers.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:].decode()
    if kind == b"-":
        raise OSError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else answers.read(int(rest) + 2)[:-2].decode()
    if kind == b"*":
        return [_read(answers) for _ in range(int(rest))]
    return rest
