"""The edge's files on disk: what is next, what runs, what was the last good; written atomically."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from control.edge.snapshot import Snapshot
from control.errors import EdgeError
from control.paths import StatePaths

#: The files of one promoted configuration.
NAMES = ("nginx.conf", "fleet.json", "generation")


@dataclass(frozen=True)
class Applied:
    """What the running edge was last seen to have taken (conf/applied.json). ``hashes``: file name to SHA-256.

    It is written only after the edge has confirmed, so a control plane that dies half-way through a reload leaves a
    difference that the next reload sees.
    """

    admin: str
    listen: list[str]
    generation: int
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, paths: StatePaths) -> Applied | None:
        """The record, or None when nothing was applied yet (or the record is damaged: then all counts as changed)."""
        try:
            content = json.loads((paths.conf / "applied.json").read_text())
            return cls(
                admin=str(content["admin"]),
                listen=[str(address) for address in content["listen"]],
                generation=int(content["generation"]),
                hashes={str(name): str(value) for name, value in content["hashes"].items()},
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, paths: StatePaths) -> None:
        """Write the record atomically; only its owner may read it, as it has a hash of the TLS key."""
        write(paths.conf / "applied.json", json.dumps(asdict(self), indent=1) + "\n", mode=0o600)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write ``text`` so that a reader sees the old file or the new one, never a part, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path) -> str | None:
    """The text of ``path``, or None when there is no such file."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def read_snapshot(path: Path) -> Snapshot | None:
    """The fleet.json at ``path``; None when it is not there or is damaged (then the whole fleet counts as changed)."""
    text = read(path)
    try:
        content: Any = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def generation(paths: StatePaths) -> int:
    """The counter in conf/generation; 0 before the first start."""
    text = read(paths.conf / "generation")
    return int(text) if text is not None and text.strip().isdigit() else 0


def backup(paths: StatePaths) -> dict[str, str | None]:
    """The files of conf/ as they are, for ``restore``."""
    return {name: read(paths.conf / name) for name in NAMES}


def good(paths: StatePaths, applied: Applied | None) -> dict[str, str | None]:
    """The last files that the edge has confirmed: those of conf/, or those of last/ after an interrupted reload."""
    saved = backup(paths)
    text = saved["nginx.conf"]
    confirmed = applied is None or (text is not None and digest(text.encode()) == applied.hashes.get("nginx.conf"))
    last = {name: read(paths.last / name) for name in NAMES}
    return saved if confirmed or None in last.values() else last


def restore(paths: StatePaths, saved: dict[str, str | None]) -> None:
    """Put the files of a ``backup`` back."""
    for name, text in saved.items():
        if text is None:
            (paths.conf / name).unlink(missing_ok=True)
        else:
            write(paths.conf / name, text)


def keep_last(paths: StatePaths, saved: dict[str, str | None]) -> None:
    """Keep a ``backup`` in last/, where a person finds the last good files."""
    for name, text in saved.items():
        if text is not None:
            write(paths.last / name, text)


def digest(content: bytes) -> str:
    """SHA-256, as it stands in applied.json."""
    return hashlib.sha256(content).hexdigest()


def hashes(nginx_conf: str, lua: Path, files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of all that nginx reads when it loads: nginx.conf, the Lua below ``lua``, certificates, keys, CAs.

    A renewed certificate has the same path, so nginx.conf alone would not show that a reload is needed.
    Raises EdgeError when a file cannot be read.
    """
    found = {"nginx.conf": digest(nginx_conf.encode())}
    named = {f"lua/{path.relative_to(lua)}": path for path in lua.rglob("*.lua")} | {str(path): path for path in files}
    for name in sorted(named):
        try:
            found[name] = digest(named[name].read_bytes())
        except OSError as error:
            raise EdgeError(
                f"{named[name]} cannot be read: {error.strerror}", "Check the path in fleet.yaml and its permissions."
            ) from error
    return found
