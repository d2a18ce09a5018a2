"""From the fleet to the ssh that keeps one backend in reach. Pure: nothing is asked or started here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from control.engines.args import Launch
from control.fleet.load import LoadedFleet
from control.fleet.resolve import resolve_backends

#: Seconds to connect, and between two questions whether the other side is still there (ssh_config(5)).
CONNECT_SECONDS, ALIVE_SECONDS, ALIVE_COUNT = 10, 5, 3
#: Where engines that already run listen on their machine.
LOOPBACK = "127.0.0.1"
#: What must not depend on the user's own configuration. Host keys, keys, jump hosts and names do.
OPTIONS = {
    "BatchMode": "yes",  # nobody is there to answer a question
    "ExitOnForwardFailure": "yes",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": str(ALIVE_SECONDS),
    "ServerAliveCountMax": str(ALIVE_COUNT),
    "ControlMaster": "no",  # a connection that is shared with others would outlive this ssh, and its forwarding too
    "ControlPath": "none",
    "ForwardAgent": "no",  # the other machine gets nothing of this one
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "LogLevel": "INFO",  # its messages are how we know why
}
_TARGET = re.compile(r"ssh://(?:([^@]*)@)?([^@:]+)(?::([0-9]+))?")


@dataclass(frozen=True)
class Target:
    """The machine that ssh logs in to. ``host`` may be a name of ssh_config, which fills in ``user`` and ``port``."""

    host: str
    user: str = ""
    port: int | None = None

    def words(self) -> tuple[str, ...]:
        """The same as arguments of ssh, without the host."""
        user = ("-l", self.user) if self.user else ()
        return (*user, "-p", str(self.port)) if self.port is not None else user

    def __str__(self) -> str:
        name = f"{self.user}@{self.host}" if self.user else self.host
        return f"{name}:{self.port}" if self.port is not None else name

    def command(self, program: str = "ssh") -> str:
        """What a person types to get there; ``program``: ssh or ssh-copy-id."""
        port = f"-p {self.port} " if self.port is not None else ""
        return f"{program} {port}{self.user}@{self.host}" if self.user else f"{program} {port}{self.host}"


@dataclass(frozen=True)
class Tunnel:
    """The way to one backend. ``machine``: its host in the fleet; ``local`` is this machine's end, ``remote`` where the
    engine listens on the other one. ``drain_seconds``: how long answers may run on before the tunnel is ended."""

    id: str
    machine: str
    target: Target
    local: tuple[str, int]
    remote: tuple[str, int]
    drain_seconds: float = 600.0

    def launch(self) -> Launch:
        """The ssh of this tunnel: no shell, no terminal, nothing but the one forwarding."""
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        forward = f"{place(self.local)}:{place(self.remote)}"
        return Launch(("ssh", "-N", "-T", *options, *self.target.words(), "-L", forward, "--", self.target.host))


def place(address: tuple[str, int]) -> str:
    """``HOST:PORT``, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def target_of(url: str) -> Target:
    """Takes ``ssh://user@host:port`` apart."""
    match = _TARGET.fullmatch(url)
    assert match is not None, url  # the schema's own pattern
    user, host, port = match.groups()
    return Target(host, user or "", int(port) if port else None)


def tunnels(loaded: LoadedFleet) -> list[Tunnel]:
    """One for each backend on a host with ``tunnel``, in the order of the file."""
    written = [backend for model in loaded.fleet.models.values() for backend in model.backends]
    found = []
    for backend, resolved in zip(written, resolve_backends(loaded), strict=True):
        host = loaded.fleet.hosts[backend.host] if backend.host is not None else None
        if backend.host is None or host is None or host.tunnel is None:
            continue
        way = host.docker if host.docker is not None else host.tunnel
        # The port of a container of ours is open on the host's address only, which is loopback there too.
        remote = LOOPBACK if host.theirs else resolved.host
        engine = resolved.engine
        found.append(
            Tunnel(
                id=resolved.id,
                machine=backend.host,
                target=target_of(way),
                local=(resolved.host, resolved.port),
                remote=(remote, resolved.port),
                drain_seconds=int(engine.drain_timeout) / 1000 if engine is not None else 600.0,
            )
        )
    return found
