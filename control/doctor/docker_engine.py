"""What a Docker Engine says of itself, and what is wrong with it for engines with GPUs. Pure.

The fields are those of ``GET /version`` and ``GET /info`` of the Docker Engine API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from docker.constants import DEFAULT_DOCKER_API_VERSION

from control.doctor.cuda import Version, dotted, version
from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.wanted import Wanted
from control.doctor.way import Way

#: Containers get GPUs (DeviceRequests) since this version of the API, Docker 19.03.
OLDEST: Version = (1, 40)
#: What the SDK was written for.
SDK: Version = version(DEFAULT_DOCKER_API_VERSION)
#: Seconds that two clocks may differ.
CLOCK = 60.0
#: Bytes of memory below which the virtual machine of Docker Desktop or WSL has little for a model to be loaded.
LITTLE_MEMORY = 16 * 1024**3
#: Folders of Windows as WSL and Docker Desktop show them.
_WINDOWS = re.compile(r"/(mnt|host_mnt|run/desktop/mnt/host)/[a-z](/|$)")
#: NVIDIA's own package repository has it; its installation guide says how to add that.
TOOLKIT = (
    "sudo apt-get install -y nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker && "
    "sudo systemctl restart docker"
)


@dataclass(frozen=True)
class DockerEngine:
    """``gpus``: what CDI lists of NVIDIA's (numbers, UUIDs, ``all``); ``clock``: seconds ahead of ours; bytes of
    ``memory``; ``containerd``: images lie in containerd's store."""

    version: str
    api: Version
    oldest_api: Version
    system: str
    kernel: str
    architecture: str
    memory: int
    root: str
    security: tuple[str, ...]
    runtimes: tuple[str, ...]
    gpus: tuple[str, ...]
    cdi: bool
    containerd: bool
    clock: float | None

    @property
    def desktop(self) -> bool:
        """Docker Desktop: containers run in a virtual machine, and ports are opened outside of it."""
        return self.system == "Docker Desktop"

    @property
    def wsl(self) -> bool:
        """Windows' Subsystem for Linux, with Docker Desktop or without."""
        return "microsoft" in self.kernel.lower()

    @property
    def rootless(self) -> bool:
        """Docker runs as a user who is not root."""
        return any(option.partition(",")[0] == "name=rootless" for option in self.security)


def read(about: Mapping[str, Any], info: Mapping[str, Any], now: float) -> DockerEngine:
    """``about``: /version, ``info``: /info, at ``now`` (Unix seconds). Fields that an engine lacks are empty."""
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    status = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2)
    return DockerEngine(
        version=str(about.get("Version") or info.get("ServerVersion") or "?"),
        api=version(str(about.get("ApiVersion", ""))),
        oldest_api=version(str(about.get("MinAPIVersion", ""))),
        system=str(info.get("OperatingSystem", "")),
        kernel=str(info.get("KernelVersion", "")),
        architecture=str(info.get("Architecture", "")),
        memory=int(info.get("MemTotal") or 0),
        root=str(info.get("DockerRootDir", "")),
        security=tuple(map(str, info.get("SecurityOptions") or ())),
        runtimes=tuple(info.get("Runtimes") or ()),
        gpus=tuple(name.partition("=")[2] for name in devices if name.startswith("nvidia.com/gpu=")),
        cdi=bool(info.get("CDISpecDirs")),
        containerd=str(status.get("driver-type", "")).startswith("io.containerd.snapshotter"),
        clock=_ahead(str(info.get("SystemTime", "")), now),
    )


def _ahead(text: str, now: float) -> float | None:
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        return None
    return datetime.fromisoformat(match[1] + match[2].replace("Z", "+00:00")).timestamp() - now


def engine(found: DockerEngine, way: Way, engines: Sequence[Wanted]) -> Iterator[Finding]:
    """All that can be said without a container."""
    subject = f"host {way.name}"
    gpus = any(one.gpus for one in engines)
    yield _api(found, way, gpus)
    if found.clock is not None and abs(found.clock) > CLOCK:
        text = f"its clock and ours differ by {found.clock:.0f} s"
        yield warning(subject, text, way.there("timedatectl; sudo timedatectl set-ntp true"))
    if found.desktop or found.wsl:
        yield from _virtual(found, way, engines)


def _api(found: DockerEngine, way: Way, gpus: bool) -> Finding:
    subject, api = f"host {way.name}", dotted(found.api)
    about = f"Docker {found.version} on {found.system or 'an unknown system'}, API {api}"
    if found.api < OLDEST:
        text = f"{about}: containers get GPUs from API {dotted(OLDEST)} on (Docker 19.03). Bring Docker up to date"
        return (problem if gpus else warning)(subject, text, way.docker("version"))
    if found.oldest_api > SDK:
        text = f"{about}: it no longer speaks {dotted(SDK)}, for which this machine's Docker SDK was written"
        return warning(subject, text, "pip install --upgrade docker  # in the venv of signalbox")
    return ok(subject, about + (", rootless" if found.rootless else ""))


def gives_gpus(found: DockerEngine) -> bool:
    """Whether it is worth asking for GPUs at all."""
    return found.api >= OLDEST and not (found.desktop and not found.wsl)


def gpus_unseen(found: DockerEngine, way: Way, engines: Sequence[Wanted]) -> Iterator[Finding]:
    """What is wrong with GPUs, as far as Docker's own words go, for when no container has asked for one.

    They are hints: Docker Desktop lists the runtime without a GPU, and containers may get GPUs where none is listed.
    """
    subject = f"host {way.name}"
    if found.desktop and not found.wsl:
        text = "Docker Desktop gives GPUs to containers on Windows with WSL 2 only. `gpus: []` starts without one"
        yield problem(subject, text, way.docker("info"))
    elif "nvidia" not in found.runtimes and not found.gpus:
        cdi = " (it looks for CDI devices, but knows none of NVIDIA's)" if found.cdi else ""
        text = f"its Docker Engine lists no NVIDIA runtime{cdi}. If NVIDIA's container toolkit is missing, install it"
        yield warning(subject, text, way.there(TOOLKIT))
    known = {name for name in found.gpus if name != "all"}
    for one in engines:
        lost = [str(gpu) for gpu in one.gpus if known and str(gpu) not in known]
        if lost:
            text = f"Docker on {way.name} knows no GPU {', '.join(lost)} (CDI lists {', '.join(sorted(known))})"
            yield problem(f"backend {one.id}", f"{text}: correct gpus in fleet.yaml", way.there("nvidia-ctk cdi list"))


def gpus_refused(found: DockerEngine, way: Way, said: str) -> Finding:
    """Docker started no container with GPUs, and ``said`` why."""
    text, command = f"containers get no GPU: {said}", "nvidia-smi"
    if found.wsl and found.desktop:
        # Docker Desktop brings the toolkit along; the driver is that of Windows.
        text += ". Update NVIDIA's driver for Windows and WSL (no driver of Linux belongs into WSL)"
        return problem(f"host {way.name}", text, "wsl --update  # on Windows; then restart Docker Desktop")
    if "could not select device driver" in said:
        text += ". NVIDIA's container toolkit is missing there, or Docker was not restarted after it was installed"
        command = TOOLKIT
    elif found.rootless:
        text += ". Docker without root needs no-cgroups in the toolkit's configuration"
        command = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
    return problem(f"host {way.name}", text, way.there(command))


def _virtual(found: DockerEngine, way: Way, engines: Sequence[Wanted]) -> Iterator[Finding]:
    """The traps of a Docker Engine in a virtual machine."""
    subject, what = f"host {way.name}", "Docker Desktop" if found.desktop else "WSL"
    gib = found.memory / 1024**3
    if 0 < found.memory < LITTLE_MEMORY:
        where = "[wsl2] memory=... in %UserProfile%\\.wslconfig" if found.wsl else "Docker Desktop, Settings, Resources"
        text = f"the virtual machine of {what} has {gib:.0f} GiB of memory, half of the computer's unless set: {where}"
        command = "wsl --shutdown  # on Windows, after the change" if found.wsl else way.docker("info")
        yield warning(subject, text, command)
    sources = dict.fromkeys(source for one in engines for source, _, _ in one.volumes if _WINDOWS.match(source))
    for source in sources:
        text = f"{source} is a folder of Windows: models load many times slower from there than from Linux' own disk"
        yield warning(subject, text, way.there(f"cp -r {source} ~/models  # then name that folder in volumes"))
    outside = dict.fromkeys(one.address for one in engines if not one.address.startswith(("127.", "::1")))
    if found.wsl and not found.desktop and outside:
        text = (
            f"ports of WSL open on Windows' localhost only, so {', '.join(outside)} is not reached from other machines "
            "unless networkingMode=mirrored stands in .wslconfig; or use tunnel: ssh"
        )
        yield warning(subject, text, "wsl --shutdown  # on Windows, after the change")
