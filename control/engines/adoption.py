"""Is a container that somebody else started what fleet.yaml asks for? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from control.engines.containers import ContainerSpec
from control.engines.plan import EVERYWHERE, differences

#: What must be the same.
_KEYS = ("image", "entrypoint", "command", "listen", "gpus", "volumes", "ipc")


def unlike(row: Mapping[str, Any], spec: ContainerSpec) -> list[str]:
    """What differs between a container (as Docker describes it) and the spec, in words; empty when it will do.

    Image, program, arguments, GPUs, port and volumes must be the same, and the variables that the fleet sets. Limits
    and further variables may differ; its port may be open on more addresses, its volumes writable.
    """
    if row["State"]["Status"] != "running":
        return [f"it does not run ({row['State']['Status']})"]
    has, wants = facts_of(row), spec.facts()
    asked = {name: value for name, value in wants["environment"].items() if name in spec.engine.engine.environment}
    environment = dict(entry.partition("=")[::2] for entry in row["Config"].get("Env") or ())
    wants["volumes"] = sorted(volume.removesuffix(":rw") for volume in wants["volumes"])
    if has["listen"] in (f"{everywhere}:{spec.engine.port}" for everywhere in EVERYWHERE):
        has["listen"] = wants["listen"]
    old = {key: has[key] for key in _KEYS} | {"environment": {name: environment.get(name) for name in asked}}
    new = {key: wants[key] for key in _KEYS} | {"environment": asked}
    return differences(old, new)


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A container as Docker describes it, in the words of ``ContainerSpec.facts``."""
    config, host = row["Config"], row.get("HostConfig") or {}
    words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
    split = 2 if words[:2] == ["vllm", "serve"] else 1
    return {
        "image": config.get("Image", ""),
        "entrypoint": words[:split],
        "command": words[split:],
        "listen": next(_listens(host), ""),
        "gpus": [_gpu(name) for request in host.get("DeviceRequests") or () for name in request.get("DeviceIDs") or ()],
        "volumes": sorted(_volumes(row)),
        "ipc": host.get("IpcMode", ""),
    }


def _listens(host: Mapping[str, Any]) -> Iterator[str]:
    for entries in (host.get("PortBindings") or {}).values():
        for entry in entries or ():
            yield f"{entry.get('HostIp') or '0.0.0.0'}:{entry.get('HostPort')}"


def _volumes(row: Mapping[str, Any]) -> Iterator[str]:
    for mount in row.get("Mounts") or ():
        source = mount.get("Name") or mount.get("Source", "")
        yield f"{source}:{mount.get('Destination', '')}"


def _gpu(name: str) -> int | str:
    return int(name) if name.isdecimal() else name
