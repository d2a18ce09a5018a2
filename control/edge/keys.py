"""keys.json: what the edge is told of API keys. Keys are no part of a promoted configuration: they are never put back,
since a reload that fails must not let in again who was shut out meanwhile. Whether keys are asked for at all is; that
stands in fleet.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.edge import files
from control.edge.admin import AdminClient, EdgeRefused
from control.edge.process import present
from control.edge.site import client, locked
from control.keys.entries import Entries, entries
from control.keys.load import LoadedKeys
from control.paths import StatePaths


@dataclass(frozen=True)
class Told:
    """What came of telling the edge its keys. ``changes`` are in words; empty: it knew all."""

    version: int
    changes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The changes and what happened, for a person."""
        return [*self.changes, f"The edge took keys {self.version} without a reload."] if self.changes else []


def encode(content: Entries, version: int) -> str:
    """The text of keys.json: one line per entry."""
    lines = ",\n".join(f" {json.dumps(hashed)}: {json.dumps(entry)}" for hashed, entry in content.items())
    return f'{{"version": {version}, "keys": {{\n{lines}\n}}}}\n'


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between two contents of keys.json, by the names of the keys."""
    before, after = _by_name(old), _by_name(new)
    lines = [f"key {name}: removed" for name in before if name not in after]
    lines += [f"key {name}: added" for name in after if name not in before]
    lines += [f"key {name}: changed" for name in after if name in before and before[name] != after[name]]
    return tuple(lines[:20]) + ((f"... and {len(lines) - 20} more keys",) if len(lines) > 20 else ())


def write(paths: StatePaths, keys: Entries | None) -> Told:
    """Write conf/keys.json when it says something else than ``keys``; None leaves it as it is, or makes an empty one.

    Raises EdgeError when it cannot be written; then the old file is as it was.
    """
    old = _read(paths.keys_json)
    version = int(old["version"]) if old else 0
    content = keys or {}
    if old is not None and (keys is None or old["keys"] == content):
        return Told(version, ())
    files.write(paths.keys_json, encode(content, version + 1), mode=0o600)
    return Told(version + 1, differences(old["keys"] if old else {}, content))


def pending(paths: StatePaths, keys: Entries | None) -> tuple[str, ...]:
    """What ``write`` would change, in words."""
    old = _read(paths.keys_json)
    return differences(old["keys"] if old else {}, keys) if keys is not None else ()


def tell(paths: StatePaths, keys: Entries | None, edge: AdminClient, state: Mapping[str, Any]) -> Told:
    """Write conf/keys.json and make the running edge take it, when it has not; ``state`` is its /state.

    The lock must be held. Raises EdgeError; after a refusal the file is as it was.
    """
    before = files.read(paths.keys_json)
    told = write(paths, keys)
    known = state.get("keys_version")
    if known is None or keys is None or (int(known) == told.version and not told.changes):
        return Told(told.version, ())  # an edge of an older release reads the file when it is reloaded
    if int(known) >= told.version:  # somebody else told the edge meanwhile: ours must count as newer
        told = Told(int(known) + 1, told.changes)
        files.write(paths.keys_json, encode(keys, told.version), mode=0o600)
    try:
        edge.put_keys(files.read(paths.keys_json) or "")
    except EdgeRefused:
        if before is not None:
            files.write(paths.keys_json, before, mode=0o600)
        raise
    return Told(told.version, told.changes or ("keys: told again",))


def tell_running(paths: StatePaths, keys: LoadedKeys) -> str:
    """Make the edge take ``keys`` if one runs; what came of it, for a person. Raises EdgeError."""
    if not present(paths):
        return "No edge runs: it counts from the next start on."
    with locked(paths):
        edge = client(paths)
        try:
            told = tell(paths, entries(keys), edge, edge.state())
        finally:
            edge.close()
    fleet = files.read_snapshot(paths.conf / "fleet.json")
    if fleet is not None and not fleet.get("keys"):
        return "The running edge does not ask for keys yet: `signalbox reload` makes it, once fleet.yaml says so."
    return f"The edge took it at once (keys {told.version}), without a reload."


def _by_name(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for hashed, entry in content.items():
        found.setdefault(str(entry["name"]), {})[hashed] = entry
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """The keys.json at ``path``; None when it is not there or is damaged (then all counts as changed)."""
    content = files.read_snapshot(path)
    if content is None or not isinstance(content.get("version"), int) or not isinstance(content.get("keys"), dict):
        return None
    return content
