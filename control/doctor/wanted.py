"""What fleet.yaml wants on a Docker host, as far as the host has to fit it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from control.engines.containers import docker_backends, ipc_of
from control.fleet.host_checks import is_hub_name, volumes
from control.fleet.load import LoadedFleet
from control.fleet.schema import Engine
from control.tuning.settings import UTILIZATION


@dataclass(frozen=True)
class Wanted:
    """One engine in a container. ``share``: what vLLM takes of each GPU's memory when it starts, None where it is not
    vLLM that runs; ``parallel``: processes that share one model; ``volumes``: (from, to, writable); ``folder``: the
    model's, as the container sees it; ``environment``: what fleet.yaml adds to the image's. ``shm_size`` in bytes."""

    id: str
    model: str
    image: str
    address: str
    port: int
    gpus: tuple[int | str, ...] = ()
    share: float | None = None
    parallel: int = 1
    ipc: str = "host"
    shm_size: int | None = None
    volumes: tuple[tuple[str, str, bool], ...] = ()
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def wanted(loaded: LoadedFleet, host: str) -> list[Wanted]:
    """The engines of one host, in the order of the file."""
    found = []
    for backend in docker_backends(loaded):
        engine = backend.engine
        if backend.machine != host or engine is None or engine.image is None:
            continue
        source = loaded.fleet.models[backend.model].source
        found.append(
            Wanted(
                id=backend.id,
                model=backend.model,
                image=engine.image,
                address=backend.host,
                port=backend.port,
                gpus=backend.gpus,
                share=_share(engine),
                parallel=(engine.tensor_parallel_size or 1) * (engine.pipeline_parallel_size or 1),
                ipc=ipc_of(engine),
                shm_size=engine.shm_size,
                volumes=tuple(volumes(loaded.fleet.hosts[host], engine)),
                folder=source if isinstance(source, str) and not is_hub_name(source) else None,
                environment=engine.environment,
            )
        )
    return found


def _share(engine: Engine) -> float | None:
    if engine.command is not None:
        return None
    return engine.gpu_memory_utilization or UTILIZATION
