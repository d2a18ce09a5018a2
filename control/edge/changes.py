"""What differs between what runs and what was rendered, in words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.edge.snapshot import Snapshot, without_version


@dataclass(frozen=True)
class Changes:
    """Differences of one reload. ``diff`` is a unified diff of nginx.conf; ``files``: other files that nginx loads."""

    diff: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    rules: bool = False
    fleet: bool = False
    first: bool = False  # nothing was ever applied, so that all is new

    @property
    def static(self) -> bool:
        """Whether nginx must load anew; else telling the edge its fleet is enough."""
        return bool(self.diff or self.files)

    def __bool__(self) -> bool:
        return self.static or self.fleet

    def lines(self) -> list[str]:
        """The changes, one line each; of nginx.conf's diff only the changed lines."""
        if self.first:
            return []
        lines = [f"model {text}" for text in self.models] + [f"backend {text}" for text in self.backends]
        if self.rules:
            lines.append("rules changed")
        if self.fleet and not lines:
            lines.append("fleet.json changed")
        if self.diff:
            changed = [line for line in self.diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
            lines.append(f"nginx.conf: {len(changed)} lines changed")
            lines += [f"  {line}" for line in changed[:40]]
            if len(changed) > 40:
                lines.append(f"  ... and {len(changed) - 40} more (see edge/last and edge/conf)")
        lines += [f"{name} changed" for name in self.files[:20]]
        if len(self.files) > 20:
            lines.append(f"... and {len(self.files) - 20} more files")
        return lines


def compare(
    old_conf: str, new_conf: str, old_fleet: Snapshot | None, new_fleet: Snapshot, files: tuple[str, ...]
) -> Changes:
    """The differences between what runs (old) and what was rendered (new)."""
    diff = difflib.unified_diff(
        old_conf.splitlines(), new_conf.splitlines(), "conf/nginx.conf", "next/nginx.conf", lineterm="", n=1
    )
    old = old_fleet or {}
    return Changes(
        first=not old_conf,
        diff=tuple(diff),
        files=files,
        models=_members(old.get("models", {}), new_fleet["models"]),
        backends=_members(old.get("backends", {}), new_fleet["backends"]),
        rules=old.get("rules", []) != new_fleet.get("rules", []),
        fleet=without_version(old) != without_version(new_fleet),
    )


def changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Names whose hash differs, or that are only on one side."""
    return tuple(name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))


def _members(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [f"{name}: removed" for name in old if name not in new]
    lines += [f"{name}: added" for name in new if name not in old]
    for name in new:
        if name in old and old[name] != new[name]:
            keys = [key for key in {**old[name], **new[name]} if old[name].get(key) != new[name].get(key)]
            lines.append(f"{name}: changed ({', '.join(keys)})")
    return tuple(lines)
