"""Hosts with Docker: does each answer? (What is on them is not looked at yet.)"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from control.doctor.findings import Finding, ok, problem
from control.edge.site import state_paths
from control.engines.hosts import Hosts
from control.fleet.load import LoadedFleet


def docker_hosts(loaded: LoadedFleet) -> Iterator[Finding]:
    """All hosts with ``docker``, asked side by side."""
    if all(host.docker is None for host in loaded.fleet.hosts.values()):
        return
    with Hosts(loaded, state_paths(loaded)) as hosts:
        seen, problems = hosts.see()
    for name in hosts.by_name:
        if name in problems:
            url = shlex.quote(str(loaded.fleet.hosts[name].docker))
            yield problem(f"host {name}", problems[name].message, f"docker -H {url} version")
        elif name in seen:
            yield ok(f"host {name}", "its Docker Engine answers")
