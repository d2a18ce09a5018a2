"""Engines in containers: from the fleet to what Docker is asked to create. Nothing is asked or started here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from docker.types import DeviceRequest, LogConfig, Mount

from control.engines.args import VLLM_ENVIRONMENT, EngineSpec, command_launch, vllm_arguments
from control.engines.health import read_key
from control.engines.prepare import engine_spec
from control.errors import EngineError
from control.fleet.arguments import release_of
from control.fleet.host_checks import is_hub_name, volumes
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.fleet.schema import Engine
from control.vllm.flags import Version

#: Labels say whose a container is, and what it was made from.
FLEET, BACKEND, SPEC, FACTS = "signalbox.fleet", "signalbox.backend", "signalbox.spec", "signalbox.facts"
#: Docker keeps so much of an engine's output.
LOG_OPTIONS = {"max-size": "20m", "max-file": "2"}
#: Set for engines that load their model from a folder: nothing is looked up on a hub.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
#: vLLM reads its own API key here; on the command line everybody on the host would see it.
KEY_VARIABLE = "VLLM_API_KEY"


@dataclass(frozen=True)
class ContainerSpec:
    """One engine as a container: everything that Docker is told, and how it is asked whether it is ready.

    ``host``: its name in the fleet. ``secrets``: environment variables that no label, log or page may show.
    ``volumes``: (from, to, writable). Sizes in bytes.
    """

    engine: EngineSpec
    host: str
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    gpus: tuple[int | str, ...] = ()
    volumes: tuple[tuple[str, str, bool], ...] = ()
    ipc: str = "host"
    shm_size: int | None = None
    memory: int | None = None
    cpus: float | None = None

    @property
    def id(self) -> str:
        """The backend's id."""
        return self.engine.id

    @property
    def name(self) -> str:
        """What the container is called."""
        return f"signalbox-{self.id}"

    def facts(self) -> dict[str, Any]:
        """All that makes this container what it is. Of secrets only a digest."""
        return {
            "image": self.image,
            "entrypoint": list(self.entrypoint),
            "command": list(self.command),
            "environment": dict(sorted(self.environment.items())),
            "secrets": {name: _digest(value)[:12] for name, value in sorted(self.secrets.items())},
            "listen": f"{self.engine.host}:{self.engine.port}",
            "gpus": list(self.gpus),
            "volumes": [f"{source}:{target}{':rw' if writable else ''}" for source, target, writable in self.volumes],
            "ipc": self.ipc,
            "shm_size": self.shm_size,
            "memory": self.memory,
            "cpus": self.cpus,
        }

    def hash(self) -> str:
        """Names this very spec: a container that was made from another one is replaced."""
        return _digest(json.dumps(self.facts(), sort_keys=True))[:16]

    def labels(self, fleet: str) -> dict[str, str]:
        """What marks the container as this fleet's."""
        return {FLEET: fleet, BACKEND: self.id, SPEC: self.hash(), FACTS: json.dumps(self.facts(), sort_keys=True)}

    def create_arguments(self, fleet: str, name: str) -> dict[str, Any]:
        """The arguments of ``client.containers.create``. Docker restarts nothing: the control plane does."""
        port = f"{self.engine.port}/tcp"
        arguments: dict[str, Any] = {
            "image": self.image,
            "name": name,
            "entrypoint": list(self.entrypoint),
            "command": list(self.command),
            "environment": {**self.environment, **self.secrets},
            "labels": self.labels(fleet),
            "ports": {port: (self.engine.host, self.engine.port)},
            "mounts": [mount(*volume) for volume in self.volumes],
            "log_config": LogConfig(type=LogConfig.types.JSON, config=dict(LOG_OPTIONS)),
            "restart_policy": {"Name": "no"},
            "ipc_mode": self.ipc,
            "device_requests": device_requests(self.gpus),
        }
        if self.shm_size is not None:
            arguments["shm_size"] = self.shm_size
        if self.memory is not None:  # without more swap: an engine that swaps looks hung
            arguments |= {"mem_limit": self.memory, "memswap_limit": self.memory}
        if self.cpus is not None:
            arguments["nano_cpus"] = round(self.cpus * 1e9)
        return arguments


def ipc_of(engine: Engine) -> str:
    """Whose shared memory the engine gets: the host's, as vLLM asks for, unless something else is said."""
    return engine.ipc or ("private" if engine.shm_size is not None else "host")


def device_requests(gpus: tuple[int | str, ...]) -> list[DeviceRequest]:
    """The GPUs by number or UUID, as texts; never with a count, which Docker refuses beside ids."""
    if not gpus:
        return []
    return [DeviceRequest(driver="nvidia", device_ids=[str(gpu) for gpu in gpus], capabilities=[["gpu"]])]


def container_specs(loaded: LoadedFleet, versions: Mapping[str, Version] = MappingProxyType({})) -> list[ContainerSpec]:
    """Every backend of the fleet that runs in a container, in the order of the file.

    ``versions``: the releases that images were found to have, by backend (``image_version.py``).

    Raises EngineError when a secret cannot be read, or arguments cannot be made.
    """
    return [container_spec(backend, loaded, versions.get(backend.id)) for backend in docker_backends(loaded)]


def docker_backends(loaded: LoadedFleet) -> list[ResolvedBackend]:
    """Every backend on a host with ``docker``; asks nothing and reads no file."""
    hosts = loaded.fleet.hosts
    return [
        backend
        for backend in resolve_backends(loaded)
        if backend.machine is not None and hosts[backend.machine].docker is not None
    ]


def container_spec(backend: ResolvedBackend, loaded: LoadedFleet, version: Version | None = None) -> ContainerSpec:
    """The container of one backend; ``version``: see ``container_specs``. Raises EngineError."""
    engine, machine = backend.engine, backend.machine
    assert engine is not None and engine.image is not None and machine is not None  # the fleet's own checks
    written = loaded.fleet.models[backend.model].source
    source = written if isinstance(written, str) else None
    spec = replace(engine_spec(backend, loaded), model_folder=Path(source) if source else None)
    entrypoint, command = _words(spec, version)
    environment = dict(VLLM_ENVIRONMENT)
    if source is not None and is_hub_name(source):
        for name in _OFFLINE:
            del environment[name]
    return ContainerSpec(
        engine=spec,
        host=machine,
        image=engine.image,
        entrypoint=entrypoint,
        command=command,
        environment={**environment, **engine.environment},
        secrets=_secrets(spec, {name: loaded.file(file) for name, file in engine.secrets.items()}),
        gpus=backend.gpus,
        volumes=tuple(volumes(loaded.fleet.hosts[machine], engine)),
        ipc=ipc_of(engine),
        shm_size=engine.shm_size,
        memory=engine.memory,
        cpus=engine.cpus,
    )


def _words(spec: EngineSpec, version: Version | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entrypoint and command. Both are always given: images of different versions have different entrypoints."""
    inside = replace(spec, host="::" if ":" in spec.host else "0.0.0.0")  # the container's own; Docker opens the port
    if spec.engine.command is not None:
        first, *rest = command_launch(inside, "python3", Path("/")).argv
        return (first,), tuple(rest)
    return ("vllm", "serve"), tuple(vllm_arguments(inside, release_of(spec.engine) or version))


def _secrets(spec: EngineSpec, files: Mapping[str, Path]) -> dict[str, str]:
    secrets = {name: _read_secret(name, file) for name, file in files.items()}
    if key := read_key(spec):
        secrets.setdefault(KEY_VARIABLE, key)
    return secrets


def _read_secret(name: str, file: Path) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EngineError(f"The secret {name} cannot be read from {file}: {reason}.", "Correct the file.") from error
    if not text or "\n" in text or "\0" in text:
        raise EngineError(f"The file {file} holds no secret for {name}.", "Put it alone on the first line.")
    return text


def mount(source: str, target: str, writable: bool) -> Mount:
    """As a mount, not a bind: Docker then refuses a folder that is not there instead of making an empty one."""
    kind: Literal["bind", "volume"] = "bind" if source.startswith("/") else "volume"
    return Mount(target=target, source=source, type=kind, read_only=not writable)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
