"""Docker hosts of the fleet: is everything there that its engines need?"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.doctor import docker_needs, gpus
from control.doctor.container import Looked, look_inside, remove_left
from control.doctor.docker_engine import DockerEngine, engine, gives_gpus, gpus_unseen, read
from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.gpus import Gpus
from control.doctor.reach import not_reached, ssh_refuses
from control.doctor.wanted import Wanted, wanted
from control.doctor.way import Way, way_to
from control.edge.site import state_paths
from control.engines.docker import DockerHost
from control.engines.ownership import adopted, known_fleet_id
from control.engines.plan import EVERYWHERE, Seen
from control.errors import EngineError
from control.fleet.host_schema import Host
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


@dataclass(frozen=True)
class _Box:
    """One host: how it is asked, what Docker says, what fleet.yaml wants. ``rows``: the images that it needs as Docker
    describes them, None for those that are not there."""

    host: DockerHost
    way: Way
    asked: Host
    docker: DockerEngine
    engines: Sequence[Wanted]
    rows: Mapping[str, dict[str, Any] | None]
    seen: Seen

    @property
    def there(self) -> list[str]:
        """The images that are there."""
        return [name for name, row in self.rows.items() if row is not None]

    @property
    def running(self) -> frozenset[str]:
        """The backends whose containers run."""
        return frozenset(box.backend for box in self.seen.ours if box.alive)


def _look(loaded: LoadedFleet, name: str, containers: bool) -> list[Finding]:
    way, paths = way_to(loaded, name), state_paths(loaded)
    if way.url.startswith("ssh://") and (refusal := ssh_refuses(way)) is not None:
        return [refusal]
    host = DockerHost(name, loaded, known_fleet_id(paths))
    found: list[Finding] = []
    try:
        began = time.time()
        about, info = host.about()
        docker, engines = read(about, info, (began + time.time()) / 2), wanted(loaded, name)
        found += engine(docker, way, engines)
        rows: dict[str, dict[str, Any] | None] = {}
        for image in dict.fromkeys(one.image for one in engines):
            rows[image], finding = _image(host, way, image, docker)
            found.append(finding)
        seen = host.see(set(), adopted(paths))
        found += _fits(_Box(host, way, loaded.fleet.hosts[name], docker, engines, rows, seen), containers)
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


def _fits(box: _Box, containers: bool) -> Iterator[Finding]:
    """What depends on what a container sees; without one, the little that can be told from here."""
    way, engines = box.way, box.engines
    look = bool(box.there) and containers
    want_gpus = bool(box.asked.gpus) or any(one.gpus for one in engines)
    give_gpus = gives_gpus(box.docker)
    if want_gpus and not (look and give_gpus):
        yield from gpus_unseen(box.docker, way, engines)
    looked = Looked()
    if look:
        remove_left(box.host, box.seen)
        looked = look_inside(box.host, way, box.docker, engines, box.there, want_gpus and give_gpus)
    elif engines:
        yield _not_looked(way, containers, next(iter(box.rows)))
    yield from looked.findings
    if looked.gpus is not None:
        yield from _gpus(box, looked.gpus)
    missing = [name for name, row in box.rows.items() if row is None]
    yield from docker_needs.disk(_free(looked, box.docker, way), missing, way)
    yield from docker_needs.address(engines, looked.inside, box.docker.desktop, way)
    yield from docker_needs.ports(engines, box.seen, looked.inside.listeners, way)
    if box.asked.tunnel is None:
        yield from _reached(engines, box.running)
    yield from docker_needs.shared_memory(engines, looked.inside, way)
    yield from docker_needs.models(engines, looked.inside, way)


def _gpus(box: _Box, seen: Gpus) -> Iterator[Finding]:
    memory = box.asked.gpu_memory
    yield from gpus.judge(seen, box.way, box.engines, box.running, box.asked.gpus)
    yield from gpus.memory_said(seen, box.way, None if memory is None else int(memory))
    for name in box.there:
        yield from gpus.drivers(seen, box.way, name, _environment(box.rows[name]), box.engines)


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
