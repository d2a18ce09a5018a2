"""The GPUs of a Docker host: are they there, is enough memory free, and does the driver do? Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from control.doctor.cuda import fit, version
from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.wanted import Wanted
from control.doctor.way import Way

MIB, GIB = 1024**2, 1024**3
#: vLLM 0.30 and newer compute on GPUs from this capability on; images with CUDA 13 from the second.
OLDEST, OLDEST_CUDA_13 = 7.0, 7.5


@dataclass(frozen=True)
class Gpu:
    """Bytes of memory, None where nvidia-smi does not say (unified memory, MIG). ``capability``: 8.9; 0 is unknown."""

    index: int
    uuid: str
    name: str
    total: int | None
    free: int | None
    driver: str
    capability: float = 0.0

    def means(self, gpu: int | str) -> bool:
        """Whether fleet.yaml means this one; Docker also takes the beginning of a UUID."""
        return gpu == self.index if isinstance(gpu, int) else self.uuid.startswith(gpu)

    def __str__(self) -> str:
        memory = "" if self.total is None or self.free is None else (
            f", {self.free / GIB:.1f} of {self.total / GIB:.1f} GiB free"
        )  # fmt: skip
        return f"GPU {self.index} ({self.name}{memory})"


@dataclass(frozen=True)
class Gpus:
    """``cuda``: the version that nvidia-smi shows; ``brand``: GeForce, Tesla, NVIDIA ..."""

    gpus: tuple[Gpu, ...]
    cuda: str = ""
    brand: str = ""


def read(csv: str, details: str) -> Gpus:
    """``csv``: of ``nvidia-smi --query-gpu`` (the fields of ``inside.GPU_FIELDS``); ``details``: of its ``-q``."""
    gpus = []
    for line in csv.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 7 or not fields[0].isdecimal():
            continue
        index, uuid, name, total, free, driver, capability = fields
        gpus.append(Gpu(int(index), uuid, name, _bytes(total), _bytes(free), driver, _number(capability)))
    return Gpus(tuple(gpus), _field(details, "CUDA Version"), _field(details, "Product Brand"))


def _bytes(mib: str) -> int | None:
    return int(mib) * MIB if mib.isdecimal() else None


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def _field(details: str, name: str) -> str:
    match = re.search(rf"^\s*{name}\s*: (.+)$", details, re.MULTILINE)
    return match[1].strip() if match else ""


def failed(said: str, way: Way) -> Finding:
    """``said``: by an nvidia-smi that lists nothing."""
    text, command = f"nvidia-smi fails: {said.splitlines()[0][:300]}", "nvidia-smi; sudo dmesg | grep -i nvidia | tail"
    if "version mismatch" in said:
        text, command = f"{text}. The driver was updated while it ran: restart the machine", "sudo reboot"
    elif "No such file" in said:
        text += ". The image's containers get no nvidia-smi, so the toolkit there lays no driver into them"
    return problem(f"host {way.name}", text, way.there(command))


def judge(
    seen: Gpus, way: Way, engines: Sequence[Wanted], running: frozenset[str], expected: int | None
) -> Iterator[Finding]:
    """``running``: ids of engines that have their memory already; ``expected``: how many GPUs fleet.yaml says."""
    subject, look = f"host {way.name}", way.there("nvidia-smi")
    if not seen.gpus:
        yield problem(subject, "nvidia-smi lists no GPU", look)
        return
    driver = f"; driver {seen.gpus[0].driver}" + (f", CUDA {seen.cuda}" if seen.cuda else "")
    yield ok(subject, ", ".join(map(str, seen.gpus)) + driver)
    if expected is not None and expected != len(seen.gpus):
        text = f"fleet.yaml gives it gpus: {expected}, but nvidia-smi lists {len(seen.gpus)}"
        yield (problem if expected > len(seen.gpus) else warning)(subject, text, way.there("nvidia-smi -L"))
    yield from _missing(seen, way, engines)
    for gpu in seen.gpus:
        yield from _memory(gpu, way, engines, running)


def _missing(seen: Gpus, way: Way, engines: Sequence[Wanted]) -> Iterator[Finding]:
    for one in engines:
        # Instances of a GPU that is divided (MIG) are in no list of GPUs.
        lost = [
            str(gpu)
            for gpu in one.gpus
            if not str(gpu).startswith("MIG-") and not any(there.means(gpu) for there in seen.gpus)
        ]
        if lost:
            text = f"{way.name} has no GPU {', '.join(lost)}: correct gpus of this backend in fleet.yaml"
            yield problem(f"backend {one.id}", text, way.there("nvidia-smi -L"))


def _memory(gpu: Gpu, way: Way, engines: Sequence[Wanted], running: frozenset[str]) -> Iterator[Finding]:
    """vLLM takes its share at the start, and does not start when less is free."""
    subject = f"host {way.name}"
    here = [one for one in engines if one.share is not None and any(gpu.means(name) for name in one.gpus)]
    names = " and ".join(one.id for one in here)
    share = sum(one.share or 0.0 for one in here)
    if len(here) > 1 and share > 1.0001:
        text = f"{names} want {share:.0%} of GPU {gpu.index}: their gpu_memory_utilization must stay below 1 together"
        yield problem(subject, text, way.there(f"nvidia-smi -i {gpu.index}"))
    if gpu.total is None or gpu.free is None:
        return
    to_come = [one for one in here if one.id not in running]
    needed = sum((one.share or 0.0) * gpu.total for one in to_come)
    if to_come and share <= 1.0001 and gpu.free < needed:
        which = " and ".join(one.id for one in to_come)
        text = (
            f"GPU {gpu.index} has {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free, and {which} "
            f"{'take' if len(to_come) > 1 else 'takes'} {needed / GIB:.1f} GiB at the start. End what else uses it, or "
            "lower gpu_memory_utilization"
        )
        yield problem(subject, text, way.there(f"nvidia-smi -i {gpu.index}"))


def memory_said(seen: Gpus, way: Way, said: int | None) -> Iterator[Finding]:
    """Whether ``gpu_memory`` of fleet.yaml (bytes) is what there is: `signalbox plan` counts with it."""
    sizes = [gpu.total for gpu in seen.gpus if gpu.total is not None]
    if said is not None and sizes and said > min(sizes):
        text = f"fleet.yaml says gpu_memory: {said / GIB:.1f}GiB, but a GPU has {min(sizes) / GIB:.1f} GiB"
        yield warning(f"host {way.name}", text, way.there("nvidia-smi --query-gpu=index,memory.total --format=csv"))


def drivers(
    seen: Gpus, way: Way, image: str, environment: Mapping[str, str], engines: Sequence[Wanted]
) -> Iterator[Finding]:
    """Whether the driver does for an image with this ``environment``, and the GPUs for the vLLM in it."""
    subject = f"host {way.name}"
    users = [one for one in engines if one.image == image and one.gpus]
    if not users or not seen.gpus:
        return
    driver = seen.gpus[0].driver
    found = fit({**environment, **users[0].environment}, driver, seen.cuda, seen.brand)
    if found is not None:
        yield from _driver(subject, image, driver, found.kind, found.needed, found.known, way)
    oldest = OLDEST_CUDA_13 if found is not None and version(found.needed) >= (13,) else OLDEST
    for gpu in seen.gpus:
        used = any(gpu.means(name) for one in users for name in one.gpus)
        if used and any(one.share is not None for one in users) and 0 < gpu.capability < oldest:
            text = f"{gpu.name} has compute capability {gpu.capability:g}; the vLLM in {image} needs {oldest:g}"
            yield problem(subject, text, way.there("nvidia-smi --query-gpu=name,compute_cap --format=csv"))


def _driver(subject: str, image: str, driver: str, kind: str, needed: str, known: str, way: Way) -> Iterator[Finding]:
    has = f"driver {driver} knows CUDA {known}, and {image} was built for {needed}"
    look = way.there("nvidia-smi")
    if kind == "too_old":
        yield problem(subject, f"{has}. Update the driver, or take an image for an older CUDA", look)
    elif kind == "refused":
        text = (
            f"{has}: NVIDIA's toolkit does not start it. Update the driver (or try it all the same, with "
            'environment: {NVIDIA_DISABLE_REQUIRE: "1"})'
        )
        yield problem(subject, text, look)
    elif kind == "minor":
        yield warning(subject, f"{has}: most works within a major version, not all. Better update the driver", look)
    elif kind == "forward":
        yield ok(subject, f"{has}: NVIDIA allows that, by the libraries for older drivers in the image")
    else:
        yield ok(subject, f"{has}: that fits")
