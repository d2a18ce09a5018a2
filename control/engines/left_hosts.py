"""Docker hosts on which this fleet has containers: remembered, so that those that leave fleet.yaml are still found."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from control.fleet.host_schema import Host
from control.paths import StatePaths


def remember(paths: StatePaths, name: str, host: Host) -> None:
    """This host has, or is about to get, containers of ours. Raises OSError."""
    file = _file(paths, name, host)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        told = host.model_dump(mode="json", include={"docker", "tls", "address", "tunnel"}, exclude_none=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"name": name, "host": told}, indent=1) + "\n")
        new.replace(file)


def forget(paths: StatePaths, name: str, host: Host) -> None:
    """Nothing of ours is left there."""
    _file(paths, name, host).unlink(missing_ok=True)


def left(paths: StatePaths, present: Mapping[str, Host]) -> dict[str, Host]:
    """The remembered hosts that ``present`` (those of fleet.yaml) has not any more, by the name that they had."""
    reached = {host.docker for host in present.values()}
    found: dict[str, Host] = {}
    for file in sorted((paths.root / "hosts").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ValidationError):
            content = json.loads(file.read_text())
            name, host = str(content["name"]), Host.model_validate(content["host"])
            if host.docker not in reached:
                while name in present or name in found:  # its name has moved on to another machine
                    name = f"{name} (before)"
                found[name] = host
    return found


def how_to_forget(paths: StatePaths) -> str:
    """What a person does whose machine is gone for good."""
    return f"If that machine is gone for good, remove its file from {paths.root / 'hosts'}."


def _file(paths: StatePaths, name: str, host: Host) -> Path:
    name = name.removesuffix(" (before)")
    return paths.root / "hosts" / f"{name}-{hashlib.sha256(str(host.docker).encode()).hexdigest()[:8]}.json"
