"""The part of fleet.yaml about machines that engines run on, and about engines in containers there."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from control.fleet.address import is_loopback
from control.fleet.shapes import (
    DockerUrl,
    EnvironmentName,
    FilePath,
    GpuUuid,
    HostAddress,
    ImageName,
    Strict,
    Volume,
)
from control.fleet.units import Bytes


def docker_machine(url: str) -> str:
    """The name or address of the machine that a Docker URL leads to; empty for a socket of this one."""
    if url.startswith("unix://"):
        return ""
    host = url.partition("://")[2].rpartition("@")[2]
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]


class DockerTls(Strict):
    """Files for a ``tcp://`` Docker: its certificate is always checked, and it checks ours."""

    ca: FilePath
    """The authority that signed the Docker Engine's certificate."""
    certificate: FilePath
    key: FilePath


class Host(Strict):
    """A machine that engines run on: ``local`` (processes of this one) or ``docker`` (containers)."""

    local: Literal[True] | None = None
    """This machine, with engines as plain processes."""
    address: HostAddress = "127.0.0.1"
    """Where the edge reaches the engines; their ports are open on this address only."""
    docker: DockerUrl | None = None
    """The Docker Engine: unix:///var/run/docker.sock, ssh://user@host or tcp://host:2376."""
    tls: DockerTls | None = None
    """For ``tcp://``."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """How many GPUs it has."""
    gpu_memory: Bytes | None = None
    """Memory of each GPU."""
    volumes: Annotated[list[Volume], Field(max_length=64)] = []
    """What every engine there sees: FROM:TO, read-only unless :rw follows."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.local is None) == (self.docker is None):
            raise ValueError("give either local: true (engines are processes of this machine) or docker (containers)")
        if self.docker is None:
            if any(value is not None for value in (self.tls, self.gpus, self.gpu_memory)) or self.volumes:
                raise ValueError("tls, gpus, gpu_memory and volumes are for hosts with docker")
            return self
        tcp, machine = self.docker.startswith("tcp://"), docker_machine(self.docker)
        if self.tls is not None and not tcp:
            raise ValueError("tls is for docker: tcp://")
        if tcp and self.tls is None and not is_loopback(machine):
            raise ValueError("docker: tcp:// without tls lets anybody take the machine over; give tls, or use ssh://")
        if machine and not is_loopback(machine) and "address" not in self.model_fields_set:
            raise ValueError("give address too: the IP address at which the edge reaches engines on this host")
        return self


class InContainer(Strict):
    """The settings of an engine that only containers have (part of ``Engine``)."""

    image: ImageName | None = None
    """The image that the engine runs in, on hosts with ``docker``; give a tag, so that it stays the same."""
    ipc: Literal["host", "private"] | None = None
    """Shared memory of the host (the default, as vLLM asks for) or of the container, with ``shm_size``."""
    shm_size: Bytes | None = None
    """How large /dev/shm is when ``ipc`` is private."""
    memory: Bytes | None = None
    """The most main memory that the container may use; beyond it the kernel kills the engine."""
    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """The most CPUs that the container may use."""
    volumes: Annotated[list[Volume], Field(max_length=64)] = []
    """In addition to those of the host: FROM:TO, read-only unless :rw follows."""
    secrets: Annotated[dict[EnvironmentName, FilePath], Field(max_length=64)] = {}
    """Environment variables whose values stand in files, such as HF_TOKEN: secrets/hf.token."""
    min_ready: Annotated[int, Field(ge=0, le=1000)] = 1
    """So many backends of the model stay ready while others are replaced, if it has more than that."""

    @model_validator(mode="after")
    def _container(self) -> Self:
        if self.shm_size is not None and self.ipc == "host":
            raise ValueError("shm_size excludes ipc: host, which has the host's own shared memory")
        only = ("ipc", "shm_size", "memory", "cpus", "volumes", "secrets")
        if self.image is None and any(name in self.model_fields_set for name in only):
            raise ValueError(f"{', '.join(only)} are for engines with image")
        return self


#: One GPU of a host: its number from 0, or the UUID that ``nvidia-smi -L`` prints.
Gpu = Annotated[int, Field(ge=0, le=63)] | GpuUuid
