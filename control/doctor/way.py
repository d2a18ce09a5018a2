"""How a person gets to a host of the fleet: the commands that findings end in. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from control.fleet.address import is_loopback
from control.fleet.host_schema import docker_machine
from control.fleet.load import LoadedFleet
from control.tunnels.arguments import target_of


@dataclass(frozen=True)
class Way:
    """``name``: the host in fleet.yaml; ``url``: its Docker Engine; ``tls``: paths of ca, certificate and key."""

    name: str
    url: str
    tls: tuple[str, ...] = ()

    def docker(self, *words: str) -> str:
        """A command of Docker's client there."""
        tls = ""
        if self.tls:
            ca, certificate, key = map(shlex.quote, self.tls)
            tls = f" --tlsverify --tlscacert {ca} --tlscert {certificate} --tlskey {key}"
        return f"docker -H {shlex.quote(self.url)}{tls} {shlex.join(words)}"

    def there(self, command: str) -> str:
        """A shell command on that machine."""
        if self.url.startswith("unix://"):
            return command
        if self.url.startswith("ssh://"):
            return f"{target_of(self.url).command()} {shlex.quote(command)}"
        machine = docker_machine(self.url)
        return command if is_loopback(machine) else f"ssh {machine} {shlex.quote(command)}"


def way_to(loaded: LoadedFleet, name: str) -> Way:
    """The way to a host with ``docker``."""
    host = loaded.fleet.hosts[name]
    assert host.docker is not None
    files = () if host.tls is None else (host.tls.ca, host.tls.certificate, host.tls.key)
    return Way(name, host.docker, tuple(str(loaded.file(file)) for file in files))
