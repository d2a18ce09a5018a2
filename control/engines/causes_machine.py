"""Failures of the machine under the engine: driver, GPUs, shared memory, disk, port, program. Pure."""

from __future__ import annotations

import re
from re import Match

from control.engines.diagnosis import Cause, Explain, Situation

_UPDATE = "Update the driver of that machine, or take an image of vLLM that was built for its CUDA."


def _old_driver(match: Match[str], situation: Situation) -> tuple[str, str]:
    number = int(match["version"])
    cuda = f"{number // 1000}.{number % 1000 // 10}"
    return (
        f"The GPU's driver is too old for this vLLM: it knows CUDA {cuda} at most.",
        f"Update the driver of that machine, or take an image that was built for CUDA {cuda}.",
    )


def _old_driver_for_image(match: Match[str], situation: Situation) -> tuple[str, str]:
    return (
        f"The image needs a driver for CUDA {match['cuda']} or newer, and that machine's is older.",
        "Update its driver, or take an image that was built for an older CUDA.",
    )


def _gpus(match: Match[str], situation: Situation) -> tuple[str, str]:
    return (
        f"The engine is to run on {match['asked']} GPUs, but sees {match['there']}.",
        f"Set tensor_parallel_size (times pipeline_parallel_size) to {match['there']} at most, or give it more GPUs.",
    )


def _port(match: Match[str], situation: Situation) -> tuple[str, str]:
    port = situation.spec.port
    return (
        f"Port {port} is taken by another program.",
        f"Stop it (`ss -ltnp 'sport = :{port}'` names it), or give {situation.spec.id} another port in fleet.yaml.",
    )


def _shared_memory(match: Match[str], situation: Situation) -> tuple[str, str]:
    found = match.groupdict()
    sizes = f": it takes {found['needed']} MiB, and {found['free']} MiB are free" if found.get("needed") else ""
    return (
        f"The engine's shared memory (/dev/shm) is too small{sizes}.",
        "For a container: ipc: host, or shm_size: 8GiB. On the machine itself: a larger /dev/shm, or remove what "
        "processes that are gone have left there.",
    )


def _says(sentence: str, cure: str) -> Explain:
    """What is said the same whatever the numbers."""
    return lambda match, situation: (sentence, cure)


_CUDA = (
    Cause("cuda", re.compile(r"driver on your system is too old \(found version (?P<version>\d+)\)"), _old_driver),
    Cause("cuda", re.compile(r"unsatisfied condition: cuda ?>= ?(?P<cuda>\d[\d.]*)"), _old_driver_for_image),
    Cause(
        "cuda",
        re.compile(r"Error 80[34]: |forward compatibility was attempted on non supported"),
        _says(
            "The CUDA libraries that the engine loads do not fit the GPU's driver.",
            f"{_UPDATE} With some container runtimes, the variable LD_LIBRARY_PATH=/usr/local/nvidia/lib64 makes the "
            "engine load the driver's own.",
        ),
    ),
    Cause(
        "cuda",
        re.compile(r"no kernel image is available for execution on the device"),
        _says(
            "This build of vLLM has no code for a GPU of that generation.",
            "Take an image that was built for it; older GPUs need an older vLLM.",
        ),
    ),
    Cause(
        "cuda",
        re.compile(r"CUDA driver version is insufficient for CUDA runtime version"),
        _says("The GPU's driver is too old for this vLLM.", _UPDATE),
    ),
)

_GPUS = (
    Cause(
        "no_gpu",
        re.compile(r"could not select device driver .*\[\[?gpu"),
        _says(
            "Docker on that machine cannot give a GPU to a container: the NVIDIA container toolkit is missing.",
            "Install nvidia-container-toolkit there, run `nvidia-ctk runtime configure --runtime=docker`, and restart "
            "Docker.",
        ),
    ),
    Cause(
        "no_gpu",
        re.compile(
            r"Found no NVIDIA driver on your system|No CUDA GPUs are available|Failed to infer device type"
            r"|libcuda\.so\.1: cannot open shared object file|CUDA driver initialization failed"
        ),
        _says(
            "The engine sees no GPU.",
            "Does `nvidia-smi` work there? A container gets GPUs by the backend's gpus: in fleet.yaml; where there is "
            "none, use runtime: vllm-cpu.",
        ),
    ),
    Cause(
        "no_gpu",
        re.compile(r"World size \((?P<asked>\d+)\) is larger than the number of available GPUs \((?P<there>\d+)\)"),
        _gpus,
    ),
    Cause(
        "no_gpu",
        re.compile(r"invalid device ordinal"),
        _says(
            "The engine is to use a GPU that is not there.",
            "Correct the backend's gpus: in fleet.yaml; `nvidia-smi -L` lists those that there are.",
        ),
    ),
)

_SHARED_MEMORY = (
    Cause(
        "shared_memory",
        re.compile(r"Insufficient space in /dev/shm .*?: (?P<needed>\d+) MiB required, (?P<free>\d+) MiB free"),
        _shared_memory,
    ),
    Cause(
        "shared_memory",
        re.compile(
            r"Error while creating shared memory segment|No space left on device: '/(?:dev/shm/)?(?:psm|torch|nccl)"
            r"|unable to (?:open|allocate|resize) shared memory|^Bus error"
        ),
        _shared_memory,
    ),
)

_PROCESS = (
    Cause(
        "disk",
        re.compile(r"No space left on device"),
        _says("The disk that the engine writes to is full.", "Free some space there, then start it again."),
        final=False,
    ),
    Cause("port", re.compile(r"[Aa]ddress already in use|port is already allocated"), _port, final=False),
    Cause(
        "executable",
        re.compile(
            r"executable file not found|[Ee]xec format error|exec .*: (?:no such file|permission denied)"
            r"|unable to start container process: exec"
        ),
        _says(
            "The command that starts vLLM cannot be run there: the image has another entrypoint or processor.",
            "Check the engine's image: its tag, and that it was built for this machine's processor.",
        ),
    ),
    Cause(
        "killed",
        re.compile(r"died unexpectedly \(exit code: -9\)|Failed core proc\(s\): \{[^}]*: -9\}|^Killed$"),
        _says(
            "A process of the engine was killed (signal 9); when nobody did that, there was no memory left.",
            "Give it more memory (a container: a higher engine.memory), or take a smaller model or KV cache.",
        ),
        final=False,
    ),
)

CAUSES: tuple[Cause, ...] = (*_CUDA, *_GPUS, *_SHARED_MEMORY, *_PROCESS)
