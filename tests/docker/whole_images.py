"""Images without a registry: a base like Debian's own, made by debootstrap of the packages that this machine knows."""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.dockerd import Dockerd

#: What a build needs of the machine to reach the packages as the machine does: sources, authorities, pip's settings.
OF_THE_MACHINE = ("etc/apt/sources.list.d/debian.sources", "etc/apt/sources.list", "usr/local/share/ca-certificates",
                  "etc/pip.conf")  # fmt: skip
REDIS = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server && install -d -o 999 -g 999 /data
"""


def base(dockerd: Dockerd) -> str:
    """A Debian as small as its official image; its name. Takes about a minute."""
    program = shutil.which("debootstrap")
    assert program, "a whole build needs debootstrap: apt-get install debootstrap"
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    folder = Path(tempfile.mkdtemp(prefix="base-"))
    try:
        subprocess.run([program, "--variant=minbase", release, str(folder)], check=True, stdout=subprocess.DEVNULL)
        (folder / "etc" / "apt" / "sources.list").unlink()  # debootstrap's own
        for name in OF_THE_MACHINE:
            there, here = folder / name, Path("/", name)
            there.parent.mkdir(parents=True, exist_ok=True)
            if here.is_dir():
                shutil.copytree(here, there, dirs_exist_ok=True)
            elif here.exists():
                shutil.copy(here, there)
        subprocess.run(
            f"tar -C {folder} -c . | DOCKER_HOST={dockerd.url} docker import - debian:whole", shell=True, check=True
        )
    finally:
        shutil.rmtree(folder)
    return "debian:whole"


def redis(dockerd: Dockerd, base: str, name: str) -> None:
    """An image with Redis in it, as the official one has: its data in /data, which belongs to the account 999."""
    with dockerd.client() as client:
        file = io.BytesIO(REDIS.format(base=base).encode())
        client.images.build(fileobj=file, tag=name, network_mode="host", rm=True)
