"""The part of fleet.yaml about machines that engines run on, and about engines in containers there."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from control.fleet.address import ip, is_loopback
from control.fleet.shapes import (
    DockerUrl,
    EnvironmentName,
    FilePath,
    GpuUuid,
    HostAddress,
    ImageName,
    MetricsUrl,
    Strict,
    TunnelWay,
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
    """A machine that engines run on: ``local`` (processes of this one), ``docker`` (containers) or, where they run
    already, ``tunnel``."""

    local: Literal[True] | None = None
    """This machine, with engines as plain processes."""
    address: HostAddress = "127.0.0.1"
    """Where the edge reaches the engines; their ports are open on this address only."""
    docker: DockerUrl | None = None
    """The Docker Engine: unix:///var/run/docker.sock, ssh://user@host or tcp://host:2376."""
    tls: DockerTls | None = None
    """For ``tcp://``."""
    tunnel: TunnelWay | None = None
    """``ssh``: the engines listen on loopback there, and the edge reaches them through SSH at ``address`` (a loopback
    address of this machine, with the same port). Without docker ssh://user@host: engines that already run there."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """How many GPUs it has."""
    gpu_memory: Bytes | None = None
    """Memory of each GPU."""
    dcgm: MetricsUrl | None = None
    """NVIDIA's DCGM exporter there, such as http://192.168.1.10:9400/metrics: what the GPUs do is read from it. Without
    it, nvidia-smi in the engines' containers is asked."""
    volumes: Annotated[list[Volume], Field(max_length=64)] = []
    """What every engine there sees: FROM:TO, read-only unless :rw follows."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.tunnel is not None:
            self._check_tunnel(self.tunnel)
        elif (self.local is None) == (self.docker is None):
            raise ValueError(
                "give either local: true (engines are processes of this machine), docker (containers) or, for engines "
                "that already run there, tunnel: ssh://user@host"
            )
        if self.docker is None:
            if any(value is not None for value in (self.tls, self.gpus, self.gpu_memory, self.dcgm)) or self.volumes:
                raise ValueError("tls, gpus, gpu_memory, dcgm and volumes are for hosts with docker")
            return self
        tcp, machine = self.docker.startswith("tcp://"), docker_machine(self.docker)
        if self.tls is not None and not tcp:
            raise ValueError("tls is for docker: tcp://")
        if tcp and self.tls is None and not is_loopback(machine):
            raise ValueError("docker: tcp:// without tls lets anybody take the machine over; give tls, or use ssh://")
        if machine and not is_loopback(machine) and "address" not in self.model_fields_set and self.tunnel is None:
            raise ValueError("give address too: the IP address at which the edge reaches engines on this host")
        return self

    def _check_tunnel(self, way: str) -> None:
        docker = self.docker or ""
        if self.local is not None:
            raise ValueError("tunnel is for other machines, and local: true is this one")
        if way == "ssh" and not docker.startswith("ssh://"):
            raise ValueError("tunnel: ssh goes the way of docker: ssh://...; without it write tunnel: ssh://user@host")
        if way != "ssh" and docker:
            raise ValueError("with docker: ssh://... write tunnel: ssh; it goes the same way")
        if ip(self.address) is None or not is_loopback(self.address):
            raise ValueError(
                "with tunnel, address is the tunnel's end on this machine: a loopback address such as 127.0.0.2"
            )

    @property
    def theirs(self) -> bool:
        """Whether the engines there already run and are not ours to start."""
        return self.local is None and self.docker is None


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
