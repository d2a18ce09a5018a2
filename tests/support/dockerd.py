"""A Docker Engine of the tests' own, and images for it that need no registry."""

from __future__ import annotations

import io
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest
import trustme

from tests.support.net import REPOSITORY, free_port, wait_until

#: What an image must have of the machine's /etc: where libraries are, who is who.
ETC = ("ld.so.cache", "passwd", "group", "nsswitch.conf")
_count = itertools.count()


class Dockerd:
    """``with Dockerd() as engine``: at ``engine.url`` until the block ends.

    It has a bridge of its own and leaves the machine's firewall alone: another Docker Engine here is not disturbed.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dockerd-"))
        self.url = f"unix://{self.folder}/docker.sock"
        self.bridge = f"sb{os.getpid()}d{next(_count)}"
        #: The same engine over TLS; ``ca.pem``, ``client.pem`` and ``client.key`` in the folder get in.
        self.tls_url = f"tcp://127.0.0.1:{free_port()}"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        for name, identity in (("server", "127.0.0.1"), ("client", "client.example.com")):
            certificate = authority.issue_cert(identity)
            certificate.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
            certificate.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.pem"))

    def __enter__(self) -> Dockerd:
        if os.geteuid() != 0:
            pytest.skip("NOT TESTED, because a Docker Engine of the tests' own needs root")
        network = f"10.{random.randrange(200, 250)}.{random.randrange(256)}.1/24"
        for words in (f"link add {self.bridge} type bridge", f"addr add {network} dev {self.bridge}",
                      f"link set {self.bridge} up"):  # fmt: skip
            subprocess.run(["ip", *words.split()], check=True)
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self.client() as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        self.stop()
        subprocess.run(["ip", "link", "del", self.bridge], check=False)
        for mount in psutil.disk_partitions(all=True):  # namespaces of networks, layers
            if mount.mountpoint.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", mount.mountpoint], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self) -> Any:
        """A Docker client; close it, or use it as a context."""
        return _Client(base_url=self.url, version="auto", timeout=60)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("dockerd")
        assert program, "these tests need dockerd: make setup-test installs it"
        here = self.folder
        command = f"setsid --fork {program} --data-root {here}/data --exec-root {here}/exec --pidfile {here}/pid"
        command += f" -H {self.url} --bridge {self.bridge} --iptables=false --log-level warn"
        command += f" -H {self.tls_url} --tlsverify --tlscacert {here}/ca.pem --tlscert {here}/server.pem"
        command += f" --tlskey {here}/server.key"
        with (here / "log").open("ab") as log:
            subprocess.run(command.split(), stdout=log, stderr=log, check=True)

        def answers() -> bool:
            try:
                with self.client() as client:
                    return bool(client.ping())
            except docker.errors.DockerException:
                return False

        try:
            wait_until("dockerd to answer", answers, 40, every=0.2)
        except AssertionError as error:
            tail = "\n".join((here / "log").read_text(errors="replace").splitlines()[-15:])
            raise AssertionError(f"dockerd does not run on this machine:\n{tail}") from error

    def stop(self) -> None:
        """End it by its pid file, with everything that it started."""
        pid = self.pid
        os.kill(pid, signal.SIGTERM)
        wait_until("dockerd to end", lambda: not psutil.pid_exists(pid), 40, every=0.1)

    def image(
        self,
        name: str,
        path: str = "/usr/local/bin:/usr/bin:/bin",
        folders: Mapping[str, int] | None = None,
        programs: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """An empty image that sees the machine's own programs through ``volumes``. Its PATH is ``path``.

        ``folders``: further ones that it has, with the account that owns each; ``programs``: scripts of its own, by
        their names without the first slash.
        """
        with self.client() as client:
            changes = [f"ENV PATH={path}", "ENV PYTHONDONTWRITEBYTECODE=1", f"ENV PYTHONPATH={REPOSITORY}"]
            changes += [f'ENV {key}="{value}"' for key, value in (environment or {}).items()]
            client.api.import_image_from_data(
                _root(folders or {}, programs or {}),
                repository=name.split(":")[0],
                tag=name.split(":")[1],
                changes=changes,
            )
        return name


class _Client(docker.DockerClient):
    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def volumes(*more: Path) -> list[str]:
    """What a container needs to run this Python with this checkout, and ``more`` folders, all at their own places."""
    wanted = [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), REPOSITORY, *more]
    wanted += [Path(entry) for entry in sys.path if Path(entry).is_dir()]
    found: list[Path] = []
    for path in sorted((path.resolve() for path in wanted), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return [f"{path}:{path}" for path in found]


def _root(folders: Mapping[str, int], programs: Mapping[str, str]) -> bytes:
    """The tar file of a root with nothing but what must be there; /bin and /lib lead to /usr as on this machine.

    /sbin is a folder of its own: Docker lays its init there.
    """
    wanted = {"tmp": 0o1777, "root": 0o755, "etc": 0o755, "usr": 0o755, "sbin": 0o755, "var/tmp": 0o1777}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, mode in {**wanted, **dict.fromkeys(folders, 0o750)}.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            entry.uid = entry.gid = folders.get(name, 0)
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(Path("/", name))
                tar.addfile(entry)
        for name in ETC:
            if Path("/etc", name).exists():
                tar.add(Path("/etc", name), f"etc/{name}")
        for name, text in programs.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o755, len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()
