"""Tunnels: does ssh get in, and does the engine listen at the other end? Nothing is run there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.machine import signalbox
from control.doctor.reach import command_of
from control.edge.ports import free_port
from control.edge.site import state_paths
from control.engines import processes
from control.engines.processes import Record
from control.errors import SignalboxError
from control.fleet.load import LoadedFleet
from control.tunnels.arguments import CONNECT_SECONDS, LOOPBACK, Tunnel, place
from control.tunnels.arguments import tunnels as of_fleet
from control.tunnels.failures import explain
from control.tunnels.keeper import exit_text, through

#: Seconds for a login that is only tried.
TRY_SECONDS = CONNECT_SECONDS + 5.0


def tunnels(loaded: LoadedFleet, names: Sequence[str]) -> Iterator[Finding]:
    """The tunnels to hosts in ``names``: those that run are asked, the others are tried."""
    wanted = [tunnel for tunnel in of_fleet(loaded) if tunnel.machine in names]
    with ThreadPoolExecutor(4, thread_name_prefix="doctor") as pool:  # sshd lets ten in at a time
        yield from pool.map(lambda tunnel: _look(loaded, tunnel), wanted)


def _look(loaded: LoadedFleet, tunnel: Tunnel) -> Finding:
    subject = f"tunnel {tunnel.id}"
    record = Record.load(state_paths(loaded).tunnel(tunnel.id))
    if record is not None and processes.alive(record) and (state := through(tunnel.local)) != "closed":
        if state == "open":
            return ok(
                subject, f"{place(tunnel.local)} leads to {place(tunnel.remote)} on {tunnel.machine}, which listens"
            )
        return _nobody(loaded, tunnel)
    try:
        return _tried(loaded, tunnel)
    except (OSError, SignalboxError) as error:
        return problem(subject, f"ssh cannot be tried: {error}", tunnel.target.command())


def _tried(loaded: LoadedFleet, tunnel: Tunnel) -> Finding:
    """A tunnel of our own, on another port, for a moment."""
    subject = f"tunnel {tunnel.id}"
    mine = replace(tunnel, local=(LOOPBACK, free_port()))
    with subprocess.Popen(mine.launch().argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as ssh:
        try:
            deadline = time.monotonic() + TRY_SECONDS
            state = "closed"
            while state == "closed" and ssh.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                state = through(mine.local)
        finally:
            ssh.terminate()
        said = ssh.stderr.read() if ssh.stderr is not None else ""
        code = ssh.wait()
    if state == "open":
        text = f"ssh gets in to {tunnel.target}, and {place(tunnel.remote)} listens there; but no tunnel runs"
        return warning(subject, text, f"{signalbox(loaded)} up")
    if state == "nobody" and "administratively prohibited" not in said:
        return _nobody(loaded, tunnel)
    failure = explain(said.splitlines(), tunnel, exit_text(code))
    return problem(subject, str(failure), command_of(failure, tunnel.target.command()))


def _nobody(loaded: LoadedFleet, tunnel: Tunnel) -> Finding:
    text = f"ssh gets in to {tunnel.target}, but nothing listens at {place(tunnel.remote)} there"
    theirs = loaded.fleet.hosts[tunnel.machine].theirs
    listeners = f'ss -ltn "sport = :{tunnel.remote[1]}"'
    command = f"{tunnel.target.command()} '{listeners}'" if theirs else f"{signalbox(loaded)} up {tunnel.id}"
    return problem(f"tunnel {tunnel.id}", text, command)
