"""A short-lived container on a Docker host, in an image that is there already: runs ``inside.py``, and is removed."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest

from control.doctor import inside
from control.doctor.docker_engine import DockerEngine, gpus_refused
from control.doctor.docker_needs import Inside
from control.doctor.findings import Finding, problem, warning
from control.doctor.gpus import Gpus, failed, read
from control.doctor.wanted import Wanted
from control.doctor.way import Way
from control.engines.containers import mount
from control.engines.docker import DockerHost
from control.engines.plan import Seen
from control.errors import EngineError

#: Marks our containers, with the time of their start, so that one that a killed doctor has left is removed later.
LABEL, PREFIX = "signalbox.doctor", "signalbox-doctor-"
#: Seconds after which a container can only be left over.
LEFT_OVER = 10 * inside.LONGEST
_NO_FOLDER = re.compile(r"bind source path does not exist: (/[^\s'\"]+?)[.'\"]*(?:\s|$)")
_NO_PYTHON = re.compile(r"python3\W.*(executable file not found|no such file or directory)", re.IGNORECASE | re.DOTALL)
#: Docker without root, or with mapped users, may not share the host's network or memory.
_NOT_SHARED = re.compile(r"user namespaces|share the host's|namespace sharing", re.IGNORECASE)


@dataclass(frozen=True)
class Ask:
    """What one container is given. ``host``: the host's network and shared memory, so that they can be seen."""

    image: str
    volumes: tuple[tuple[str, str, bool], ...]
    models: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    gpus: bool = False
    host: bool = True

    def arguments(self) -> dict[str, Any]:
        """Of ``containers.create``. All GPUs are asked for: their numbers are those of the host then."""
        asked = {"addresses": self.addresses, "models": self.models, "gpus": self.gpus}
        requests = [DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])] if self.gpus else []
        return {
            "image": self.image,
            "name": f"{PREFIX}{secrets.token_hex(4)}",
            "entrypoint": ["python3", "-I", "-c", Path(inside.__file__).read_text(), json.dumps(asked)],
            "command": [],
            "labels": {LABEL: str(int(time.time()))},
            # GPUs are asked for as engines ask. "utility" is nvidia-smi; an image that is too new for the driver still
            # tells which driver that is.
            "environment": {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NVIDIA_DISABLE_REQUIRE": "1"},
            "mounts": [mount(source, target, False) for source, target, _ in self.volumes],
            "network_mode": "host" if self.host else "none",
            "ipc_mode": "host" if self.host else "private",
            "device_requests": requests,
        }


@dataclass
class Looked:
    """What containers have seen, and what did not work on the way."""

    inside: Inside = field(default_factory=Inside)
    gpus: Gpus | None = None
    findings: list[Finding] = field(default_factory=list)


def look_inside(
    host: DockerHost, way: Way, docker: DockerEngine, engines: Sequence[Wanted], images: Sequence[str], gpus: bool
) -> Looked:
    """One container, and one more for each other set of volumes; ``images``: those there are. Raises EngineError."""
    looked = Looked()
    addresses = tuple(dict.fromkeys(one.address for one in engines))
    for image, volumes, models in _groups(engines, images):
        ask = Ask(image, _there(host, volumes), models, addresses, gpus)
        answer, ask = _run(host, way, docker, ask, looked.findings)
        gpus = gpus and answer is None and ask.gpus  # once they were seen, or refused, nobody asks again
        if answer is None:
            continue
        looked.inside = _together(looked.inside, answer, ask.host)
        if answer["gpus"] is not None:
            looked.gpus = _gpus(answer["gpus"], way, looked.findings)
    return looked


def remove_left(host: DockerHost, seen: Seen) -> None:
    """Remove what a killed doctor has left there; one that is at work has some minutes. Raises EngineError."""
    for other in seen.foreign:
        row = host.describe(other.id) if other.name.startswith(PREFIX) else {}
        started = str((row.get("Config", {}).get("Labels") or {}).get(LABEL, ""))
        if started.isdecimal() and int(started) < time.time() - LEFT_OVER:
            host.remove(other.id)


def _groups(
    engines: Sequence[Wanted], images: Sequence[str]
) -> list[tuple[str, tuple[tuple[str, str, bool], ...], tuple[str, ...]]]:
    """(image, volumes, folders of models). Engines that see the same share a container; there is always a first one."""
    found: dict[tuple[str, tuple[tuple[str, str, bool], ...]], dict[str, None]] = {}
    for one in engines:
        key = (one.image if one.image in images else images[0], one.volumes)
        if not found or one.folder is not None:
            found.setdefault(key, {}).update({one.folder: None} if one.folder is not None else {})
    return [(image, volumes, tuple(folders)) for (image, volumes), folders in found.items()]


def _there(host: DockerHost, volumes: Sequence[tuple[str, str, bool]]) -> tuple[tuple[str, str, bool], ...]:
    """Without volumes of Docker's own that do not exist yet: to mount them would make them."""
    return tuple(volume for volume in volumes if volume[0].startswith("/") or host.has_volume(volume[0]))


def _run(
    host: DockerHost, way: Way, docker: DockerEngine, ask: Ask, findings: list[Finding]
) -> tuple[dict[str, Any] | None, Ask]:
    """What the container says; what it cannot be given is told, and left out at the next try."""
    while True:
        try:
            output = host.run_once(ask.arguments())
        except EngineError as error:
            smaller = without(ask, error, way, docker, findings)
            if smaller is None:
                return None, ask
            ask = smaller
            continue
        text = output.decode(errors="replace")
        _, mark, answer = text.rpartition(inside.MARK)
        if mark:
            found: dict[str, Any] = json.loads(answer.partition("\n")[0])
            return found, ask
        last = (text.strip().splitlines() or ["it printed nothing"])[-1][:300]
        findings.append(_not_looked(way, ask.image, last))
        return None, ask


def without(ask: Ask, error: EngineError, way: Way, docker: DockerEngine, findings: list[Finding]) -> Ask | None:
    """The same without what Docker could not give; None when there is nothing left to leave out."""
    text, subject = f"{error.message} {error.hint}".strip(), f"host {way.name}"
    missing = _NO_FOLDER.search(error.message)
    # Docker Desktop names the folder as its own machine sees it: then it may be any of them.
    gone = [one for one in ask.volumes if missing and one[0] == missing[1]] or [
        one for one in ask.volumes if missing and one[0].startswith("/")
    ]
    if missing is not None and gone:
        said = f"the folder {missing[1]} of its volumes does not exist there: correct volumes in fleet.yaml, or make it"
        findings.append(problem(subject, said, way.there(f"ls -ld {missing[1]}")))
        volumes = tuple(one for one in ask.volumes if one not in gone)
        kept = tuple(one for one in ask.models if not any(_below(one, target) for _, target, _ in gone))
        return replace(ask, volumes=volumes, models=kept)
    if _NO_PYTHON.search(error.message):
        findings.append(_not_looked(way, ask.image, "the image has no python3"))
        return None
    if ask.host and _NOT_SHARED.search(error.message):
        return replace(ask, host=False)
    if ask.gpus:
        said = error.message.removeprefix(f"Docker on {way.name} says: ").rstrip(".")
        findings.append(gpus_refused(docker, way, said))
        return replace(ask, gpus=False)
    if ask.host:
        return replace(ask, host=False)
    findings.append(_not_looked(way, ask.image, text))
    return None


def _below(folder: str, target: str) -> bool:
    return folder == target or folder.startswith(target.rstrip("/") + "/")


def _not_looked(way: Way, image: str, why: str) -> Finding:
    text = f"GPUs, disk, ports and models could not be looked at from within {image}: {why}"
    return warning(f"host {way.name}", text, way.docker("run", "--rm", "--entrypoint", "python3", image, "--version"))


def _together(before: Inside, answer: dict[str, Any], host: bool) -> Inside:
    """What was known, and what one more container has seen."""
    models = {**before.models, **answer["models"]}
    if before.disk is not None:
        return replace(before, models=models)
    listeners = tuple((str(address), int(port)) for address, port in answer["listeners"])
    return Inside(
        answer["disk"], answer["shm"] if host else None, listeners if host else None, tuple(answer["ours"]), models
    )


def _gpus(said: dict[str, str], way: Way, findings: list[Finding]) -> Gpus | None:
    if said["error"]:
        findings.append(failed(said["error"], way))
        return None
    return read(said["text"], said["details"])
