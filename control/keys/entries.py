"""Keys as the edge is told of them (pure): what stands in keys.json."""

from __future__ import annotations

from typing import Any

from control.keys.load import LoadedKeys
from control.keys.schema import Key

#: Hash in hexadecimal → what the edge knows of it.
Entries = dict[str, dict[str, Any]]


def entries(keys: LoadedKeys) -> Entries:
    """The keys as the edge has them: the previous secret of a rotated one is an entry of its own, which expires."""
    found: Entries = {}
    for name, key in keys.keys.items():
        entry = _entry(name, key)
        found[_hex(key.hash)] = entry
        if key.previous is not None:
            until = min(int(key.previous.until), int(key.expires or key.previous.until))
            found[_hex(key.previous.hash)] = {**entry, "expires": until}
    return found


def _entry(name: str, key: Key) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "enabled": key.enabled, "priority": key.priority, "weight": key.weight}
    if key.models is not None:
        entry["models"] = list(key.models)
    if key.expires is not None:
        entry["expires"] = int(key.expires)
    limits = key.limits.model_dump(exclude_none=True)
    limits = {kind: limit for kind, limit in limits.items() if limit != {}}
    if limits:
        entry["limits"] = limits
    return entry


def _hex(hashed: str) -> str:
    return hashed.removeprefix("sha256:")
