"""What an engine needs around it on a Docker host: image, disk, port, address, model folder, shared memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.wanted import Wanted
from control.doctor.way import Way
from control.engines.plan import EVERYWHERE, Seen
from control.fleet.host_checks import on_host

GIB = 1024**3
#: Bytes of free disk for an image of vLLM that is still to be pulled: its layers, packed and unpacked.
IMAGE_DISK = 40 * GIB
#: Below this logs and caches of the engines soon fail.
LEAST_DISK = 2 * GIB
#: Bytes of shared memory for processes that share one model, and for any engine.
SHARED, LEAST_SHARED = GIB, 64 * 1024**2
#: Docker's /dev/shm for a container that is told nothing.
USUAL_SHM = 64 * 1024**2
#: Names of processors: those of images (Go's) for those of hosts (the kernel's).
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True)
class Inside:
    """What was seen from within a container (``inside.look``). ``shared`` is None where the container had its own."""

    disk: Mapping[str, int] | None = None
    shared: Mapping[str, int] | None = None
    #: None when the container could not see the host's network.
    listeners: tuple[tuple[str, int], ...] | None = None
    ours: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def image(
    name: str, row: Mapping[str, Any] | None, refused: tuple[str, str] | None, way: Way, architecture: str
) -> Finding:
    """``row``: as Docker describes the image, None when it is not there; ``refused``: why the registry does not give
    it, and the cure; ``architecture``: the host's."""
    subject = f"host {way.name}"
    if row is None and refused is None:
        return warning(subject, f"{name} is not there yet; the registry has it", way.docker("pull", name))
    if row is None:
        assert refused is not None
        text, cure = refused
        return problem(
            subject, f"{name} is not there, and not to be had: {text}. {cure}".strip(), way.docker("pull", name)
        )
    built, host = str(row.get("Architecture", "")), _PROCESSORS.get(architecture, architecture)
    if built and host and built != host:
        text = f"{name} was built for processors of another kind ({built}, and the host is {host})"
        return problem(subject, text, way.docker("pull", "--platform", f"linux/{host}", name))
    return ok(subject, f"{name} is there ({int(row.get('Size') or 0) / GIB:.1f} GiB)")


def disk(free: int | None, missing: Sequence[str], way: Way) -> Iterator[Finding]:
    """``free`` bytes where images lie; ``missing``: images that are still to be pulled."""
    subject, look = f"host {way.name}", way.docker("system", "df")
    if free is None:
        return
    text = f"{free / GIB:.1f} GiB are free where Docker keeps images"
    if free < LEAST_DISK:
        yield problem(subject, f"only {text}: `docker image prune` frees some", look)
    elif missing and free < IMAGE_DISK:
        text = f"only {text}; an image of vLLM, packed and unpacked, takes up to {IMAGE_DISK / GIB:.0f} GiB"
        yield warning(subject, f"{text}. `docker image prune` frees some", look)
    else:
        yield ok(subject, text)


def ports(
    engines: Sequence[Wanted], seen: Seen, listeners: Sequence[tuple[str, int]] | None, way: Way
) -> Iterator[Finding]:
    """Who has the port of an engine that does not run; and containers of ours that everybody reaches."""
    running = {found.backend for found in seen.ours if found.alive}
    for one in engines:
        if one.id in running:
            continue
        subject, place = f"backend {one.id}", f"port {one.port} of {way.name}"
        other = next(
            (box for box in seen.foreign if any(_meets(one, address, port) for address, port in box.ports)), None
        )
        mine = next((box for box in seen.ours if box.alive and box.listen and _meets(one, *box.listen)), None)
        if other is not None:
            yield problem(subject, f"{place} is taken by {other.words()}", way.docker("stop", other.name))
        elif mine is not None:
            text = f"{place} is taken by the container of {mine.backend}: `signalbox up` changes them in turn"
            yield warning(subject, text, "signalbox diff")
        elif any(_meets(one, address, port) for address, port in listeners or ()):
            text = f"{place} is taken by a program there that is no container"
            yield problem(subject, text, way.there(f"ss -ltnp 'sport = :{one.port}'"))
    yield from _open(seen, way)


def _meets(one: Wanted, address: str, port: int) -> bool:
    return port == one.port and (one.address in EVERYWHERE or address in EVERYWHERE or address == one.address)


def _open(seen: Seen, way: Way) -> Iterator[Finding]:
    """vLLM's management paths, /invocations among them, ask for no key."""
    for box in seen.ours:
        if box.alive and box.listen is not None and box.listen[0] in EVERYWHERE:
            text = (
                f"its container {box.name} opens port {box.listen[1]} on all addresses of {way.name}, past its "
                "firewall: who reaches it may use and manage the engine (a key guards few of vLLM's paths)"
            )
            yield warning(f"backend {box.backend}", text, way.docker("port", box.name))
    for other in seen.foreign:
        wide = [port for address, port in other.ports if address in EVERYWHERE]
        if wide and "vllm" in other.image and other.state == "running":
            text = f"port {wide[0]} is open on all addresses, so others may use and manage that vLLM: {other.words()}"
            yield warning(f"host {way.name}", text, way.docker("port", other.name))


def address(engines: Sequence[Wanted], inside: Inside, desktop: bool, way: Way) -> Iterator[Finding]:
    """Docker opens ports on addresses of its own machine only. Docker Desktop opens them outside of what it shows."""
    if inside.listeners is None or desktop:
        return
    for one in dict.fromkeys(engine.address for engine in engines):
        if one not in inside.ours and one not in EVERYWHERE:
            text = f"address {one} is no address of that machine, so no port can be opened on it"
            yield problem(f"host {way.name}", text, way.there("ip -brief address"))


def models(engines: Sequence[Wanted], inside: Inside, way: Way) -> Iterator[Finding]:
    """The folders of models, as an engine's container sees them."""
    for one in {engine.model: engine for engine in engines}.values():
        if one.folder is None or one.folder not in inside.models:
            continue
        subject, seen = f"model {one.model} on {way.name}", inside.models[one.folder]
        lacks, there = list(seen.get("lacks", ())), on_host(one.volumes, one.folder)
        if not lacks:
            yield ok(subject, f"{there} is complete ({int(seen.get('bytes', 0)) / GIB:.1f} GiB of weights)")
            continue
        shown = ", ".join(lacks[:5]) + (f" and {len(lacks) - 5} more" if len(lacks) > 5 else "")
        yield problem(subject, f"{there}: {shown}. Put the whole folder there again", way.there(f"ls -lL {there}"))


def shared_memory(engines: Sequence[Wanted], inside: Inside, way: Way) -> Iterator[Finding]:
    """Processes that share a model pass tensors through /dev/shm (NCCL, and vLLM's own messages)."""
    for one in engines:
        needed = SHARED if one.parallel > 1 else LEAST_SHARED
        if one.ipc == "private":
            if (one.shm_size or USUAL_SHM) < needed:
                text = f"its {one.parallel} processes share {(one.shm_size or USUAL_SHM) // 1024**2} MiB of memory"
                yield warning(
                    f"backend {one.id}", f"{text}: set shm_size: 8GiB, or ipc: host", "signalbox check  # after it"
                )
        elif inside.shared is not None and inside.shared["free"] < needed:
            free = inside.shared["free"] // 1024**2
            text = f"/dev/shm of {way.name} has {free} MiB free, and the engine needs {needed // 1024**2}"
            yield problem(f"backend {one.id}", text, way.there("df -h /dev/shm; ls -l /dev/shm"))
