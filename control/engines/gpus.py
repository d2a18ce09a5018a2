"""What GPUs do, out of what nvidia-smi and the DCGM exporter print. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

MIB = 1024**2
#: What nvidia-smi is asked for (``nvidia-smi --help-query-gpu``): one line for each GPU.
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw",
    "--format=csv,noheader,nounits",
)
#: Which processes use which GPU.
QUERY_PROCESSES = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader,nounits")
#: DCGM writes a number from here on where it knows none (DCGM_INT64_BLANK, DCGM_FP64_BLANK of dcgm_structs.h).
DCGM_BLANK = 140737488355328.0
#: Fields of the exporter's default collection; memory in MiB, power in W.
_UTIL, _USED, _FREE, _POWER = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_POWER_USAGE",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment: how busy in percent, memory in bytes, power in watts. What nobody tells is None."""

    index: int
    uuid: str
    percent: float | None = None
    memory: int | None = None
    memory_total: int | None = None
    power: float | None = None


def from_nvidia_smi(line: str) -> Gpu | None:
    """One line of the answer to ``QUERY``; None when it is something else, such as an error."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 6 or not cells[0].isdecimal():
        return None
    percent, used, total, power = (_number(cell) for cell in cells[2:])
    return Gpu(int(cells[0]), cells[1], percent, _bytes(used), _bytes(total), power)


def users(text: str) -> dict[int, set[str]]:
    """The answer to ``QUERY_PROCESSES``: the UUIDs of the GPUs that each process uses."""
    found: dict[int, set[str]] = {}
    for line in text.splitlines():
        pid, _, uuid = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and uuid:
            found.setdefault(int(pid), set()).add(uuid)
    return found


def from_dcgm(text: str) -> list[Gpu]:
    """The GPUs of a machine as its DCGM exporter tells them; those of its parts (MIG) are left out.

    Raises ValueError for a text that is not Prometheus's.
    """
    told: dict[tuple[int, str], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in (_UTIL, _USED, _FREE, _POWER):
            continue
        for sample in family.samples:
            number = sample.labels.get("gpu", "")
            if not number.isdecimal() or "GPU_I_ID" in sample.labels:
                continue
            if math.isfinite(sample.value) and 0 <= sample.value < DCGM_BLANK:
                told.setdefault((int(number), sample.labels.get("UUID", "")), {})[sample.name] = sample.value
    gpus = []
    for (index, uuid), values in sorted(told.items()):
        used, free = values.get(_USED), values.get(_FREE)
        total = used + free if used is not None and free is not None else None
        gpus.append(Gpu(index, uuid, values.get(_UTIL), _bytes(used), _bytes(total), values.get(_POWER)))
    return gpus


def chosen(gpus: Iterable[Gpu], names: Collection[int | str]) -> list[Gpu]:
    """Those with one of these numbers or UUIDs."""
    return [gpu for gpu in gpus if gpu.index in names or gpu.uuid in names]


def _number(text: str) -> float | None:
    """``[N/A]`` and ``[Not Supported]`` are None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else round(mebibytes * MIB)
