"""Single files out of a wheel on the package index, without downloading the wheel: pip finds it, ranges read it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile

import requests

from control.errors import InstallError
from control.vllm.released.modules import Read

PACKAGE = "vllm"
#: What came before had another engine, and few will miss it.
OLDEST = (0, 8, 0)
#: All these releases have a wheel for it.
PYTHON = "3.11"
#: Bytes: a wheel's list of files lies at its end, and is read at once; other reads take at least this much.
TAIL, PIECE = 700_000, 200_000
TIMEOUT = 60


def versions() -> list[str]:
    """The releases on the index as X.Y.Z, oldest first; later builds of the same release are left out."""
    found = re.search(r"^Available versions: (.+)$", _pip("index", "versions", PACKAGE), re.MULTILINE)
    if found is None:
        raise InstallError(f"pip lists no versions of {PACKAGE}.", f"Try: {sys.executable} -m pip index versions")
    numbers = [tuple(map(int, name.split("."))) for name in re.findall(r"(?<![\w.])\d+\.\d+\.\d+(?![\w.])", found[1])]
    return [".".join(map(str, number)) for number in sorted(numbers) if number >= OLDEST]


def open_wheel(version: str) -> tuple[str, Read]:
    """The wheel's file name, and what reads files out of it. Raises InstallError when there is none."""
    report = _pip(
        *("install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet"),
        *("--python-version", PYTHON, "--target", tempfile.gettempdir(), "--use-feature=fast-deps"),
        *("--report", "-", f"{PACKAGE}=={version}"),
    )
    url = json.loads(report)["install"][0]["download_info"]["url"]
    archive = zipfile.ZipFile(io.BufferedReader(_Ranges(url), PIECE))
    names = set(archive.namelist())

    def read(path: str) -> str | None:
        return archive.read(path).decode() if path in names else None

    return url.rpartition("/")[2], read


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise InstallError(f"pip failed: {done.stderr.strip()[-500:]}", f"Try it yourself: {' '.join(command)}")
    return done.stdout


class _Ranges(io.RawIOBase):
    """A file on a server that can send parts of it. Raises ``requests.RequestException``."""

    def __init__(self, url: str) -> None:
        self._session = requests.Session()
        self._url = url
        self._at = 0
        head = self._session.head(url, allow_redirects=True, timeout=TIMEOUT)
        head.raise_for_status()
        self._size = int(head.headers["content-length"])
        self._tail_at = max(0, self._size - TAIL)
        self._tail = self._get(self._tail_at, self._size)

    def _get(self, begin: int, end: int) -> bytes:
        answer = self._session.get(self._url, headers={"Range": f"bytes={begin}-{end - 1}"}, timeout=TIMEOUT)
        answer.raise_for_status()
        if answer.status_code != requests.codes.partial_content:
            raise requests.RequestException("the index sends no parts of files")
        return answer.content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]
        end = min(self._size, self._at + len(buffer))
        if self._at >= end:
            return 0
        inside = self._at >= self._tail_at
        data = self._tail[self._at - self._tail_at : end - self._tail_at] if inside else self._get(self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
