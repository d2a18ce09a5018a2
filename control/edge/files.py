"""The edge's files on disk: what is next, what runs, what was the last good; written atomically."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from control.edge.snapshot import Snapshot
from control.errors import EdgeError
from control.paths import StatePaths

#: The files of one promoted configuration. A restore that is cut short leaves a generation that nobody runs.
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
    """Write ``text`` so that a reader sees the old file or the new one, never a part, also after a power cut.

    Raises EdgeError when that fails (a full disk, permissions); then the old file is as it was.
    """
    write_all({path: text}, mode)


def write_all(texts: Mapping[Path, str], mode: int = 0o644) -> None:
    """Write several files: all their content first, so that a full disk changes none of them; then one rename each."""
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts}
    path = Path()
    try:
        for path, text in texts.items():
            descriptor = os.open(temporaries[path], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError as error:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise EdgeError(f"{path} could not be written: {error.strerror}", _hint(error)) from error


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on that disk, then run the same command again."
    return "Check that folder and its permissions; if another account started the edge, use that one."


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


def good(paths: StatePaths, applied: Applied | None, runs: str | None = None) -> dict[str, str | None]:
    """The last files that the edge has confirmed: those of conf/, or those of last/ after an interrupted reload.

    ``runs``: the generation that the running edge reports, if any. Files of last/ count only when they are the applied
    ones: after an interrupted start they may be older than what runs.
    """
    saved = backup(paths)
    last = {name: read(paths.last / name) for name in NAMES}
    if applied is None or None in last.values() or (runs is not None and (saved["generation"] or "").strip() == runs):
        return saved

    def confirmed(found: dict[str, str | None]) -> bool:
        return digest((found["nginx.conf"] or "").encode()) == applied.hashes.get("nginx.conf")

    return last if confirmed(last) and not confirmed(saved) else saved


def restore(paths: StatePaths, saved: dict[str, str | None]) -> None:
    """Put the files of a ``backup`` back. Files that are as they were are left alone: that needs no free disk."""
    changed = {name: text for name, text in saved.items() if text != read(paths.conf / name)}
    write_all({paths.conf / name: text for name, text in changed.items() if text is not None})
    for name, text in changed.items():
        if text is None:
            (paths.conf / name).unlink(missing_ok=True)


def keep_last(paths: StatePaths, saved: dict[str, str | None]) -> None:
    """Keep a ``backup`` in last/, where a person finds the last good files."""
    write_all({paths.last / name: text for name, text in saved.items() if text is not None})


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
