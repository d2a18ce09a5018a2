"""Backends with everything worked out: ids, addresses, absolute paths, the names that they answer to."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from control.fleet.address import split_url
from control.fleet.arguments import sequences_of
from control.fleet.host_schema import Host
from control.fleet.load import LoadedFleet
from control.fleet.schema import Backend, Engine, Model, PackagedModel


@dataclass(frozen=True)
class ResolvedBackend:
    """One engine as the edge and the supervisor see it.

    ``machine``: its entry in ``hosts``, None for others' engines; ``gpus`` of that machine. ``host`` is a name or an IP
    address without brackets. ``ours``: Signalbox starts it, by ``engine``, from ``source`` (a model folder or a
    packaged model; not for containers, see ``containers.py``); for others both are None. ``name`` is what the engine
    calls the model, ``served`` all names that it answers to. ``limit``: sequences that the edge keeps in flight there,
    None: no bound. Paths are absolute.
    """

    id: str
    model: str
    scheme: str
    host: str
    port: int
    ours: bool
    name: str
    served: tuple[str, ...]
    key_file: Path | None = None
    key_env: str | None = None
    ca: Path | None = None
    limit: int | None = None
    weight: int = 1
    tier: int = 1
    pool: str | None = None
    engine: Engine | None = None
    source: Path | PackagedModel | None = None
    machine: str | None = None
    gpus: tuple[int | str, ...] = ()

    @property
    def url(self) -> str:
        """Scheme, host and port, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def resolve_backends(loaded: LoadedFleet) -> list[ResolvedBackend]:
    """All backends of the fleet in the order of the file. The same file gives the same ids."""
    models = loaded.fleet.models
    taken = {backend.id for model in models.values() for backend in model.backends if backend.id}
    resolved = []
    for name, model in models.items():
        for number, backend in enumerate(model.backends, start=1):
            identity = backend.id or _free_id(name, number, taken)
            taken.add(identity)
            resolved.append(_resolve(loaded, identity, name, model, backend))
    return resolved


def addresses(host: str) -> list[str]:
    """What ``host`` resolves to now, IPv4 first; empty when it does not resolve. May wait for a name server."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in ordered))


def _free_id(model: str, number: int, taken: set[str]) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", model)[:56]
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def _default_limit(engine: Engine | None) -> int | None:
    """Two more than run at the same time: the next ones are there when a place falls free, the others wait here."""
    running = sequences_of(engine) if engine is not None else None
    return None if running is None else running + 2


def _resolve(loaded: LoadedFleet, identity: str, name: str, model: Model, backend: Backend) -> ResolvedBackend:
    key_file = loaded.file(backend.key_file) if backend.key_file else None
    machine = loaded.fleet.hosts[backend.host] if backend.host is not None else None
    if backend.url is not None or (machine is not None and machine.theirs):
        scheme, host, port = _place(backend, machine)
        own_name = backend.model_name or name
        return ResolvedBackend(
            id=identity, model=name, scheme=scheme, host=host, port=port, ours=False,
            name=own_name, served=tuple(dict.fromkeys((own_name, *model.loras))),
            key_file=key_file, key_env=backend.key_env, ca=loaded.file(backend.ca) if backend.ca else None,
            limit=backend.limit, weight=backend.weight, tier=backend.tier, pool=backend.pool,
        )  # fmt: skip
    assert machine is not None and backend.port is not None  # the schema's own check
    # vLLM is started with every alias; a command knows only the name that it is given.
    aliases = model.aliases if model.engine is not None and model.engine.command is None else []
    source = loaded.file(model.source) if isinstance(model.source, str) else model.source
    return ResolvedBackend(
        id=identity, model=name, scheme="http", host=machine.address, port=backend.port,
        ours=True, name=name, served=(name, *aliases, *model.loras),
        key_file=key_file, key_env=backend.key_env, limit=backend.limit or _default_limit(model.engine),
        weight=backend.weight, tier=backend.tier, pool=backend.pool, engine=model.engine, source=source,
        machine=backend.host, gpus=tuple(backend.gpus or ()),
    )  # fmt: skip


def _place(backend: Backend, machine: Host | None) -> tuple[str, str, int]:
    """Scheme, host and port of an engine that is not ours: its url, or this machine's end of the tunnel to it."""
    if backend.url is not None:
        return split_url(backend.url)
    assert machine is not None and backend.port is not None  # the schema's own check
    return "http", machine.address, backend.port
