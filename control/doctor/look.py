"""All looks at this machine and the hosts of the fleet, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from control.doctor.backends import backends
from control.doctor.docker import docker_hosts
from control.doctor.findings import Finding, Level
from control.doctor.machine import certificates, disk, nginx, open_files, ports, running, secret_files
from control.doctor.models import models
from control.doctor.redis import redis
from control.doctor.tunnels import tunnels
from control.errors import EngineError
from control.fleet.load import LoadedFleet

_MACHINE: tuple[Callable[[LoadedFleet], Iterator[Finding]], ...] = (
    nginx, running, ports, disk, open_files, certificates, secret_files, models, redis,
)  # fmt: skip
_COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}


def look(loaded: LoadedFleet, host: str | None = None, containers: bool = True) -> Iterator[Finding]:
    """Everything, or what concerns one ``host`` of the fleet, in the order in which it is best mended.

    Changes nothing; ``containers``: whether Docker hosts are looked at from within a container, too. Raises EngineError
    for a host that is not in the fleet.
    """
    hosts = loaded.fleet.hosts
    if host is not None and host not in hosts:
        known = f"It has {', '.join(hosts)}." if hosts else "It has none."
        raise EngineError(f"There is no host {host} in {loaded.path}.", known)
    return _look(loaded, [*hosts] if host is None else [host], host is None, containers)


def _look(loaded: LoadedFleet, names: Sequence[str], everything: bool, containers: bool) -> Iterator[Finding]:
    for one in _MACHINE if everything else ():
        yield from one(loaded)
    if not everything and loaded.fleet.hosts[names[0]].local:
        yield from models(loaded)
    yield from docker_hosts(loaded, names, containers)
    yield from tunnels(loaded, names)
    yield from backends(loaded, None if everything else names)


def show(findings: Iterable[Finding]) -> bool:
    """Print each finding as it comes, and below it the command to run; whether there is a problem."""
    problems = False
    for finding in findings:
        problems = problems or finding.level == "problem"
        head = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
        click.echo(f"{head} {finding.subject}: {finding.text}")
        if finding.command:
            click.echo(f"         $ {finding.command}")
    return problems


def as_json(findings: list[Finding]) -> str:
    """For programs."""
    return json.dumps([finding.__dict__ for finding in findings], indent=1)
