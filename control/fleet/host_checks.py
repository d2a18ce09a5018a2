"""Rules across hosts, engines in containers and the backends that they serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from control.fleet.address import ip
from control.fleet.host_schema import Host
from control.fleet.messages import Finding
from control.fleet.schema import Backend, Engine, Fleet, Model, PackagedModel
from control.fleet.source import KeyPath

#: The share of a GPU's memory that vLLM takes when nothing is said (0.92 in 0.32, 0.9 in older ones).
DEFAULT_SHARE = 0.9
PORTS = range(1, 65536)


def check_hosts(fleet: Fleet) -> Iterator[Finding]:
    """What is wrong between ``hosts`` and the engines that shall run there."""
    for name, host in fleet.hosts.items():
        if host.tunnel is not None and (port := host.tunnel.rpartition(":")[2]).isdecimal() and int(port) not in PORTS:
            yield Finding(("hosts", name, "tunnel"), f"the port must be from 1 to 65535, not {port}.")
        if host.docker is not None and ip(host.address) is None:
            message = f"Docker opens ports on IP addresses only, and {host.address!r} is a name."
            yield Finding(("hosts", name, "address"), message, "Write the host's IP address.")
    for name, model in fleet.models.items():
        for index, backend in enumerate(model.backends):
            host_of = fleet.hosts.get(backend.host) if backend.host is not None else None
            if host_of is None:
                continue
            path: KeyPath = ("models", name, "backends", index)
            yield from _kind(path, name, model, backend, host_of)
            if host_of.docker is not None:
                yield from _gpus(path, backend, host_of)
                if model.engine is not None:
                    yield from _source(path, name, model, model.engine, host_of)
    yield from _shared_gpus(fleet)


def gpu_shares(fleet: Fleet) -> dict[tuple[str, int | str], list[tuple[str, int, float]]]:
    """Host and GPU → (model, number of the backend, share of the GPU's memory) of each engine that is started there.

    Engines with a ``kv_cache_memory`` take what they need, which nobody knows here: they are left out.
    """
    found: dict[tuple[str, int | str], list[tuple[str, int, float]]] = {}
    for name, model in fleet.models.items():
        engine = model.engine
        if engine is None or engine.image is None or engine.command is not None or engine.kv_cache_memory is not None:
            continue
        for index, backend in enumerate(model.backends):
            for gpu in backend.gpus or ():
                share = engine.gpu_memory_utilization or DEFAULT_SHARE
                found.setdefault((str(backend.host), gpu), []).append((name, index, share))
    return found


def _shared_gpus(fleet: Fleet) -> Iterator[Finding]:
    """Engines on one GPU that together want more of its memory than there is."""
    for (host, gpu), engines in gpu_shares(fleet).items():
        total = 0.0
        for number, (name, index, share) in enumerate(engines):
            total += share
            if number and total > 1.0001:
                message = f"engines on GPU {gpu} of {host} want {total:.0%} of its memory together."
                hint = "Set gpu_memory_utilization of each so that the sum stays below 1."
                yield Finding(("models", name, "backends", index), message, hint, (("models",),), warning=True)


def volumes(host: Host, engine: Engine) -> list[tuple[str, str, bool]]:
    """What the engine's container sees of its host: (from, to, writable). At one place the engine's counts."""
    found = {}
    for text in (*host.volumes, *engine.volumes):
        source, target, *mode = text.split(":")
        found[target] = (source, target, mode == ["rw"])
    return list(found.values())


def on_host(volumes: Sequence[tuple[str, str, bool]], folder: str) -> str:
    """Where a folder of the container lies on its host: that of the volume with the longest name above it."""
    best = max(
        (one for one in volumes if folder == one[1] or folder.startswith(one[1].rstrip("/") + "/")),
        key=lambda one: len(one[1]),
        default=None,
    )
    return folder if best is None else best[0].rstrip("/") + folder[len(best[1].rstrip("/")) :]


def is_hub_name(source: str) -> bool:
    """Whether ``source`` of an engine in a container is a name on a model hub, not a folder in the container."""
    return not source.startswith("/")


def _kind(path: KeyPath, name: str, model: Model, backend: Backend, host: Host) -> Iterator[Finding]:
    """Containers need an image, and images a Docker host."""
    engine, about = model.engine, (("hosts", str(backend.host)), ("models", name, "engine"))
    if host.docker is None and backend.gpus is not None:
        yield Finding((*path, "gpus"), f"gpus are for hosts with docker, and {backend.host} has none.", "", about)
    if engine is None:
        return
    if host.docker is not None and engine.image is None:
        message = f"{backend.host} runs containers, but the model's engine has no image."
        yield Finding((*path, "host"), message, f"Add 'image:' to models.{name}.engine.", about)
    elif host.local is not None and engine.image is not None:
        message = f"the engine has an image, but {backend.host} runs processes, not containers."
        hint = "Give a host with docker, such as 'hosts: {gpu-a: {docker: \"unix:///var/run/docker.sock\"}}'."
        yield Finding((*path, "host"), message, hint, about)


def _gpus(path: KeyPath, backend: Backend, host: Host) -> Iterator[Finding]:
    about = (("hosts", str(backend.host), "gpus"),)
    if backend.gpus is None:
        if host.gpus:
            message = f"{backend.host} has {_count(host.gpus)}, but nothing says which this engine gets."
            yield Finding(path, message, "Add 'gpus: [0]' to the backend, or 'gpus: []' for none.", about)
        return
    for index, gpu in enumerate(backend.gpus):
        place = (*path, "gpus", index)
        if gpu in backend.gpus[:index]:
            yield Finding(place, f"the GPU {gpu} stands here twice.", "Remove it.")
        elif isinstance(gpu, int) and host.gpus is not None and gpu >= host.gpus:
            message = f"{backend.host} has {_count(host.gpus)}, so there is no GPU {gpu}."
            yield Finding(place, message, "They count from 0.", about)
    if len({type(gpu) for gpu in backend.gpus}) > 1:
        yield Finding((*path, "gpus"), "numbers and UUIDs cannot be mixed.", "Use one of them for all.")


def _count(gpus: int) -> str:
    return {0: "no GPU", 1: "one GPU"}.get(gpus, f"{gpus} GPUs")


def _source(path: KeyPath, name: str, model: Model, engine: Engine, host: Host) -> Iterator[Finding]:
    """The model's folder must be visible in the container."""
    place: KeyPath = ("models", name, "source")
    about = (path, ("hosts", str(model.backends[int(path[-1])].host)), ("models", name, "engine"))
    if isinstance(model.source, PackagedModel):
        message = "a model out of a package is made on this machine; a container does not see it."
        hint = "Give a folder on the Docker host (with a volume that carries it), or a model's name on the hub."
        yield Finding(place, message, hint, about)
    elif model.source is None and engine.command is None:
        yield Finding(path, "this engine has no model to serve.", f"Add 'source:' to the model {name}.", (place,))
    elif model.source is not None and not is_hub_name(model.source):
        targets = [target for _, target, _ in volumes(host, engine)]
        if not any(PurePosixPath(model.source).is_relative_to(target) for target in targets):
            has = f"it has {', '.join(targets)}" if targets else "it has none"
            message = f"no volume of the container carries {model.source} ({has})."
            hint = "Add one to the host or the engine: 'volumes: [\"/data/models:/models\"]'."
            yield Finding(place, message, hint, about)
