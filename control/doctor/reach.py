"""Why a Docker Engine is not reached, and the command that helps."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from control.doctor.findings import Finding, problem
from control.doctor.way import Way
from control.errors import EngineError
from control.fleet.host_schema import docker_machine
from control.tunnels.arguments import LOOPBACK, OPTIONS, Tunnel, target_of
from control.tunnels.failures import Failure, explain

#: Seconds that ssh may take to get in and run ``docker``.
SSH_SECONDS = 25
#: What a cure says to run.
_COMMAND = re.compile(r"ssh-keygen -R '[^']+'|chmod 600 \S+|ssh-copy-id [^`]+")


def ssh_refuses(way: Way) -> Finding | None:
    """Why the SDK's own ssh would not get through. It is asked first, and may ask nobody: a question would hang."""
    target = target_of(way.url)
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    command = ["ssh", "-T", *options, *target.words(), "--", target.host, "docker system dial-stdio"]
    subject = f"host {way.name}"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SSH_SECONDS)
    except FileNotFoundError:
        return problem(subject, "this machine has no ssh", "apt-get install openssh-client")
    except subprocess.TimeoutExpired:
        return problem(subject, f"ssh to {target} is not through after {SSH_SECONDS} s", target.command() + " -v")
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace")
    if done.returncode == 127 or "command not found" in said:
        text = f"ssh gets in to {target}, but docker is not on the PATH there (of a login without a terminal)"
        return problem(subject, text, way.there("command -v docker; echo $PATH"))
    if "permission denied while trying to connect" in said.lower():
        text = f"ssh gets in to {target}, but this user may not use Docker there: add it to the group docker"
        return problem(subject, text, way.there("sudo usermod -aG docker $USER"))
    if "Cannot connect to the Docker daemon" in said or "dial unix" in said:
        text = f"ssh gets in to {target}, but Docker does not run there"
        return problem(subject, text, way.there("sudo systemctl start docker; systemctl status docker"))
    place = (LOOPBACK, 0)
    failure = explain(
        said.splitlines(), Tunnel(way.name, way.name, target, place, place), f"exit code {done.returncode}"
    )
    return problem(subject, str(failure), command_of(failure, target.command()))


def command_of(failure: Failure, otherwise: str) -> str:
    """What the cure says to run."""
    match = _COMMAND.search(failure.cure)
    return match[0].strip() if match else otherwise


def not_reached(way: Way, error: EngineError) -> Finding:
    """The finding for an ``error`` of DockerHost, which has the reason already."""
    subject, text = f"host {way.name}", f"{error.message} {error.hint}".strip()
    command = way.docker("version")
    if way.url.startswith("unix://"):
        socket = Path(way.url.removeprefix("unix://"))
        if "Permission" in error.message:
            command = "sudo usermod -aG docker $USER  # then log in again"
        elif not socket.exists() or "refused" in error.message:
            command = f"systemctl status docker; ls -l {shlex.quote(str(socket))}"
    elif way.tls and "certificate" in error.message.lower():
        place = f"{docker_machine(way.url)}:{way.url.rpartition(':')[2]}"
        ca, certificate, key = map(shlex.quote, way.tls)
        command = f"openssl s_client -connect {place} -CAfile {ca} -cert {certificate} -key {key} </dev/null"
    return problem(subject, text, command)
