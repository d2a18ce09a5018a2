"""Does a GPU's driver do for the CUDA in an image? Pure.

Sources: NVIDIA's "CUDA Compatibility" (minor version and forward compatibility) and the table of drivers in the CUDA
Toolkit Release Notes; NVIDIA_REQUIRE_CUDA as libnvidia-container reads it: alternatives between spaces, conditions
between commas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, ...]
#: The CUDA that each branch of drivers brings along; ``nvidia-smi`` in a container may show that of the image instead.
_BROUGHT: dict[int, Version] = {
    450: (11, 0), 455: (11, 1), 460: (11, 2), 465: (11, 3), 470: (11, 4), 495: (11, 5), 510: (11, 6), 515: (11, 7),
    520: (11, 8), 525: (12, 0), 530: (12, 1), 535: (12, 2), 545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6),
    565: (12, 7), 570: (12, 8), 575: (12, 9), 580: (13, 0), 590: (13, 1),
}  # fmt: skip
#: Brands as nvidia-smi prints them, where libnvidia-container has another word than the same in small letters.
_BRANDS = {
    "nvidiartxvirtualworkstation": "vws", "nvidiavirtualapplications": "vapps", "nvidiavirtualpc": "vpc",
    "nvidiavirtualcomputeserver": "vcs", "nvidiacloudgaming": "cloudgaming",
}  # fmt: skip
_CONDITION = re.compile(r"(cuda|driver|brand|arch)(>=|<=|!=|=|<|>)(.+)")


@dataclass(frozen=True)
class Fit:
    """``kind``: ``fits``; ``forward`` (by the libraries for older drivers that the image brings along); ``minor`` (same
    major version, so that most works); ``refused`` (the container toolkit starts no such container); ``too_old``."""

    kind: Literal["fits", "forward", "minor", "refused", "too_old"]
    needed: str
    known: str


def version(text: str) -> Version:
    """The numbers of ``12.8.1``; empty when there are none."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def dotted(numbers: Version) -> str:
    """12.8 of (12, 8)."""
    return ".".join(map(str, numbers))


def brought(driver: str, shown: str) -> Version:
    """The CUDA version that a driver knows; ``shown`` is what nvidia-smi says, for drivers newer than the table.

    A branch between two of the table (R572 on Windows) knows what the one before it does.
    """
    major = (version(driver) or (0,))[0]
    told = version(shown)[:2]
    if major > max(_BROUGHT) and told:
        return told
    known = max((branch for branch in _BROUGHT if branch <= major), default=0)
    mine = _BROUGHT.get(known, ())
    return min(mine, told) if mine and told else mine or told


def fit(environment: Mapping[str, str], driver: str, shown: str, brand: str) -> Fit | None:
    """Judge an image by its ``environment``; None when it says nothing of CUDA, or the driver is not known.

    ``driver``: 570.86.15; ``brand`` as nvidia-smi prints it (GeForce RTX, Tesla, NVIDIA).
    """
    required, built = environment.get("NVIDIA_REQUIRE_CUDA", ""), environment.get("CUDA_VERSION", "")
    match = re.search(r"cuda>=([\d.]+)", required)
    needed = version(match[1] if match else built)[:2]
    known = brought(driver, shown)
    if not needed or not known:
        return None
    words = dotted(needed), dotted(known)
    if known >= needed:
        return Fit("fits", *words)
    if any(_holds(alternative, known, version(driver), brand) for alternative in required.split()):
        return Fit("forward", *words)
    if known[0] < needed[0]:
        return Fit("too_old", *words)
    off = environment.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true", "yes", "on", "t")
    return Fit("refused" if match and not off else "minor", *words)


def _holds(alternative: str, cuda: Version, driver: Version, brand: str) -> bool:
    """Whether all conditions of ``brand=tesla,driver>=535,driver<536`` hold."""
    have: dict[str, Version] = {"cuda": cuda, "driver": driver}
    for text in alternative.split(","):
        match = _CONDITION.fullmatch(text)
        if match is None:
            return False
        what, sign, value = match.groups()
        if what == "brand":
            plain = brand.lower().replace(" ", "")
            if (value == _BRANDS.get(plain, plain)) != (sign == "="):
                return False
        elif what == "arch" or not _compare(have[what], sign, version(value)):
            return False  # an architecture is not known here, and no image of vLLM asks for one
    return True


def _compare(have: Version, sign: str, value: Version) -> bool:
    have = (have + (0,) * len(value))[: max(len(value), 1)] if sign in ("=", "!=") else have
    return {
        ">=": have >= value, "<=": have <= value, "<": have < value, ">": have > value, "=": have == value,
        "!=": have != value,
    }[sign]  # fmt: skip
