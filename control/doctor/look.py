"""All looks at this machine, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import click

from control.doctor.backends import backends
from control.doctor.docker import docker_hosts
from control.doctor.findings import Finding, Level
from control.doctor.machine import certificates, disk, nginx, open_files, ports, running, secret_files
from control.doctor.models import models
from control.doctor.redis import redis
from control.fleet.load import LoadedFleet

LOOKS: tuple[Callable[[LoadedFleet], Iterator[Finding]], ...] = (
    nginx, running, ports, disk, open_files, certificates, secret_files, models, redis, docker_hosts, backends,
)  # fmt: skip
_COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "red"}


def look(loaded: LoadedFleet) -> list[Finding]:
    """Everything, in the order in which it is best mended. Asks engines; changes nothing."""
    return [finding for one in LOOKS for finding in one(loaded)]


def show(findings: list[Finding]) -> None:
    """Print each finding, and below it the command to run."""
    for finding in findings:
        head = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level])
        click.echo(f"{head} {finding.subject}: {finding.text}")
        if finding.command:
            click.echo(f"         $ {finding.command}")


def as_json(findings: list[Finding]) -> str:
    """For programs."""
    return json.dumps([finding.__dict__ for finding in findings], indent=1)
