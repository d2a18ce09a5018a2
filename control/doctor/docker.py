"""Docker hosts of the fleet: is everything there that its engines need?"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from control.doctor import docker_needs, gpus
from control.doctor.container import Looked, look_inside, remove_left
from control.doctor.docker_engine import DockerEngine, engine, gives_gpus, gpus_unseen, read
from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.reach import not_reached, ssh_refuses
from control.doctor.wanted import Wanted, wanted
from control.doctor.way import Way, way_to
from control.edge.site import state_paths
from control.engines.docker import DockerHost
from control.engines.ownership import adopted, known_fleet_id
from control.engines.plan import EVERYWHERE, Seen
from control.errors import EngineError
from control.fleet.load import LoadedFleet

#: Seconds to connect to an engine's address.
CONNECT_SECONDS = 3.0


def docker_hosts(loaded: LoadedFleet, names: Sequence[str], containers: bool = True) -> Iterator[Finding]:
    """The hosts with ``docker`` among ``names``, side by side. ``containers``: whether one may be run there."""
    names = [name for name in names if loaded.fleet.hosts[name].docker is not None]
    if not names:
        return
    with ThreadPoolExecutor(min(16, len(names)), thread_name_prefix="doctor") as pool:
        for findings in pool.map(lambda name: _look(loaded, name, containers), names):
            yield from findings


def _look(loaded: LoadedFleet, name: str, containers: bool) -> list[Finding]:
    way, paths = way_to(loaded, name), state_paths(loaded)
    if way.url.startswith("ssh://") and (refusal := ssh_refuses(way)) is not None:
        return [refusal]
    host = DockerHost(name, loaded, known_fleet_id(paths))
    found: list[Finding] = []
    try:
        began = time.time()
        about, info = host.about()
        docker = read(about, info, (began + time.time()) / 2)
        engines = wanted(loaded, name)
        found += engine(docker, way, engines)
        rows: dict[str, dict[str, Any] | None] = {}
        for image in dict.fromkeys(one.image for one in engines):
            rows[image], finding = _image(host, way, image, docker)
            found.append(finding)
        seen = host.see(set(), adopted(paths))
        found += _fits(loaded, host, way, docker, engines, rows, seen, containers)
    except EngineError as error:
        found.append(not_reached(way, error))
    finally:
        host.close()
    return found


def _image(host: DockerHost, way: Way, name: str, docker: DockerEngine) -> tuple[dict[str, Any] | None, Finding]:
    """Docker's description of an image; without one its registry is asked for it."""
    try:
        row = host.image(name)
    except EngineError as error:  # its store is broken: the rest of the host can still be looked at
        text = f"{error.message} {error.hint}".strip()
        return None, problem(f"host {way.name}", f"{name} cannot be used: {text}", way.docker("image", "rm", name))
    refused = None
    if row is None:
        try:
            host.in_registry(name)
        except EngineError as error:
            refused = error.message.rstrip("."), error.hint
    return row, docker_needs.image(name, row, refused, way, docker.architecture)


def _fits(
    loaded: LoadedFleet, host: DockerHost, way: Way, docker: DockerEngine, engines: Sequence[Wanted],
    rows: dict[str, dict[str, Any] | None], seen: Seen, containers: bool,
) -> Iterator[Finding]:  # fmt: skip
    """What depends on what a container sees; without one, the little that can be told from here."""
    there = [name for name, row in rows.items() if row is not None]
    running = frozenset(box.backend for box in seen.ours if box.alive)
    asked = loaded.fleet.hosts[way.name]
    want_gpus = bool(asked.gpus) or any(one.gpus for one in engines)
    look = bool(there) and containers
    if want_gpus and not (look and gives_gpus(docker)) and (unseen := gpus_unseen(docker, way)) is not None:
        yield unseen
    looked = Looked()
    if look:
        remove_left(host, seen)
        looked = look_inside(host, way, docker, engines, there, want_gpus and gives_gpus(docker))
    elif engines:
        yield _not_looked(way, containers, next(iter(rows)))
    yield from looked.findings
    if looked.gpus is not None:
        yield from gpus.gpus(looked.gpus, way, engines, running, asked.gpus)
        yield from gpus.memory_said(looked.gpus, way, None if asked.gpu_memory is None else int(asked.gpu_memory))
        for name in there:
            yield from gpus.drivers(looked.gpus, way, name, _environment(rows[name]), engines)
    missing = [name for name, row in rows.items() if row is None]
    yield from docker_needs.disk(_free(looked, docker, way), missing, way)
    yield from docker_needs.address(engines, looked.inside, docker.desktop, way)
    yield from docker_needs.ports(engines, seen, looked.inside.listeners, way)
    if asked.tunnel is None:
        yield from _reached(engines, running)
    yield from docker_needs.shared_memory(engines, looked.inside, way)
    yield from docker_needs.models(engines, looked.inside, way)


def _not_looked(way: Way, containers: bool, image: str) -> Finding:
    what = "GPUs, disk, ports and models there are not looked at"
    if not containers:
        return ok(f"host {way.name}", f"{what} (--no-containers)")
    return warning(f"host {way.name}", f"{what}: none of its images is there yet", way.docker("pull", image))


def _environment(row: dict[str, Any] | None) -> dict[str, str]:
    lines = ((row or {}).get("Config") or {}).get("Env") or ()
    return {name: value for name, _, value in (str(line).partition("=") for line in lines)}


def _free(looked: Looked, docker: DockerEngine, way: Way) -> int | None:
    """Free bytes where images lie; None when nobody can tell."""
    if looked.inside.disk is not None:
        return looked.inside.disk["free"]
    if way.url.startswith("unix://") and not docker.desktop and Path(docker.root).is_dir():
        return shutil.disk_usage(docker.root).free
    return None


def _reached(engines: Sequence[Wanted], running: frozenset[str]) -> Iterator[Finding]:
    """Whether this machine gets through to addresses of engines that do not run yet: a closed port refuses at once."""
    for one in {one.address: one for one in engines if one.id not in running}.values():
        if one.address in EVERYWHERE:
            continue
        try:
            socket.create_connection((one.address, one.port), CONNECT_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            text = f"{one.address} port {one.port} is not reached from here ({why}): a firewall, or a wrong address?"
            yield warning(
                f"backend {one.id}", text, f"ip route get {one.address}; nc -vz -w 3 {one.address} {one.port}"
            )
