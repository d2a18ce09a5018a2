"""What Docker Engines and ``nvidia-smi`` said on real machines, shortened to what is read of it."""

from __future__ import annotations

from typing import Any

Info = tuple[dict[str, Any], dict[str, Any]]

_RUNC = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
_NVIDIA = {**_RUNC, "nvidia": {"path": "nvidia-container-runtime"}}


def _info(version: str, api: str, oldest: str, **info: Any) -> Info:
    """/version and /info."""
    about = {"Version": version, "ApiVersion": api, "MinAPIVersion": oldest}
    return about, {
        "ServerVersion": version, "OSType": "linux", "Architecture": "x86_64", "DockerRootDir": "/var/lib/docker",
        "Runtimes": _RUNC, "DefaultRuntime": "runc", "SecurityOptions": ["name=seccomp,profile=builtin"],
        "SystemTime": "2026-04-12T08:02:17.488043313Z", "DriverStatus": [["Backing Filesystem", "extfs"]], **info,
    }  # fmt: skip


#: Ubuntu 22.04 with NVIDIA's toolkit.
NVIDIA = _info(
    "24.0.7", "1.43", "1.12", OperatingSystem="Ubuntu 22.04.5 LTS", KernelVersion="5.15.0-125-generic", NCPU=16,
    MemTotal=33_618_669_568, Runtimes=_NVIDIA, SecurityOptions=["name=apparmor", "name=seccomp,profile=builtin",
    "name=cgroupns"],
)  # fmt: skip
#: A Tesla T4 that is known by CDI.
CDI = _info(
    "29.4.0", "1.54", "1.44", OperatingSystem="Ubuntu 24.04.3 LTS", KernelVersion="6.14.0-1018-aws", NCPU=8,
    MemTotal=33_500_000_000, CDISpecDirs=["/etc/cdi", "/var/run/cdi"], DiscoveredDevices=[
        {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
        {"Source": "cdi", "ID": "nvidia.com/gpu=GPU-86fecce1-e02a-3e95-9654-71f934a03b8d"},
        {"Source": "cdi", "ID": "nvidia.com/gpu=all"},
    ],
)  # fmt: skip
NO_NVIDIA = _info(
    "20.10.24+dfsg1", "1.41", "1.12", OperatingSystem="Debian GNU/Linux 12 (bookworm)",
    KernelVersion="6.1.0-28-amd64", NCPU=2, MemTotal=25_276_059_648,
)  # fmt: skip
#: Docker Desktop on Windows lists NVIDIA's runtime, GPU or not.
DESKTOP = _info(
    "28.3.2", "1.51", "1.24", OperatingSystem="Docker Desktop", KernelVersion="6.6.87.2-microsoft-standard-WSL2",
    Name="docker-desktop", NCPU=2, MemTotal=1_995_177_984, Runtimes=_NVIDIA, CDISpecDirs=["/etc/cdi", "/var/run/cdi"],
    DriverStatus=[["driver-type", "io.containerd.snapshotter.v1"]],
    DiscoveredDevices=[{"Source": "cdi", "ID": "docker.com/gpu=webgpu"}],
)  # fmt: skip
#: Docker Desktop on a Mac.
MAC = _info(
    "29.8.0", "1.56", "1.44", OperatingSystem="Docker Desktop", KernelVersion="7.0.12-linuxkit",
    Architecture="aarch64", NCPU=10, MemTotal=8_319_504_384,
)  # fmt: skip
#: Docker's own packages in a distribution of WSL.
WSL = _info(
    "27.3.1", "1.47", "1.24", OperatingSystem="Ubuntu 24.04.1 LTS", KernelVersion="5.15.167.4-microsoft-standard-WSL2",
    NCPU=16, MemTotal=33_000_000_000, Runtimes=_NVIDIA,
)  # fmt: skip
ROOTLESS = _info(
    "29.1.3", "1.52", "1.44", OperatingSystem="Debian GNU/Linux 13 (trixie)", KernelVersion="6.12.57-amd64", NCPU=8,
    MemTotal=67_000_000_000, SecurityOptions=["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
)  # fmt: skip
OLD = _info(
    "18.09.0", "1.39", "1.12", OperatingSystem="CentOS Linux 7 (Core)", KernelVersion="3.10.0-957.1.3.el7.x86_64",
    NCPU=2, MemTotal=3_954_000_000,
)  # fmt: skip

#: ``nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free,driver_version,compute_cap``.
TWO_4090 = (
    "0, GPU-c475e08b-0cc5-f5aa-4326-99699429b449, NVIDIA GeForce RTX 4090, 24564, 24080, 550.54.14, 8.9\n"
    "1, GPU-86fecce1-e02a-3e95-9654-71f934a03b8d, NVIDIA GeForce RTX 4090, 24564, 3072, 550.54.14, 8.9\n"
)
#: A machine whose GPU shares the main memory.
UNIFIED = "0, GPU-1f4d0e27-1111-2222-3333-444455556666, NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1\n"


def details(driver: str, cuda: str, brand: str = "GeForce") -> str:
    """The beginning of ``nvidia-smi -q``."""
    return f"""
==============NVSMI LOG==============

Timestamp                                 : Wed Apr 30 17:22:38 2025
Driver Version                            : {driver}
CUDA Version                              : {cuda}

Attached GPUs                             : 2
GPU 00000000:02:00.0
    Product Name                          : NVIDIA GeForce RTX 4090
    Product Brand                         : {brand}
    Product Architecture                  : Ada Lovelace
    Display Mode                          : Disabled
"""


_FORWARD = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws",
            "cloudgaming")  # fmt: skip


def cuda_image(version: str, *older: int) -> dict[str, str]:
    """The environment of NVIDIA's CUDA images, on which vLLM's are built; ``older``: drivers that it allows too."""
    allowed = " ".join(f"brand={brand},driver>={one},driver<{one + 1}" for one in older for brand in _FORWARD)
    major_minor = ".".join(version.split(".")[:2])
    return {"CUDA_VERSION": version, "NVIDIA_REQUIRE_CUDA": f"cuda>={major_minor} {allowed}".strip()}
