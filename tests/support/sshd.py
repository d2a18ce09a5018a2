"""An SSH server of the tests' own on loopback, and an ``ssh`` that reads nothing of this user's configuration."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil

from tests.support.net import free_port, wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


class Sshd:
    """``with Sshd() as box``: a machine at ``host`` that lets this user in by key, until the block ends.

    ``box.bin`` holds an ``ssh`` for PATH: the real one, with a configuration, a key and known hosts of its own.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.folder = Path(tempfile.mkdtemp(prefix="sshd-"))
        self.port = free_port()
        self.bin = self.folder / "bin"
        self.url = f"ssh://{getpass.getuser()}@{host}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("host", "user"):
            self.new_key(name)
        self.let_in()
        self.know()
        config = self._write("config", f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\nIdentityAgent none\n"
                             f"UserKnownHostsFile {self.folder}/known\nGlobalKnownHostsFile /dev/null\n")  # fmt: skip
        self.bin.mkdir()
        wrapper = self.bin / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        wrapper.chmod(0o755)

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """This process's own, with the ``ssh`` first on PATH."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def new_key(self, name: str) -> None:
        """Make the key of the ``host`` or the ``user``, anew."""
        for file in (self.folder / name, self.folder / f"{name}.pub"):
            file.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)]
        subprocess.run(command, check=True)

    def let_in(self, yes: bool = True, options: str = "") -> None:
        """Whether the user's key opens, and with which ``options`` of authorized_keys."""
        key = (self.folder / "user.pub").read_text()
        self._write("authorized", f"{options} {key}".lstrip() if yes else "")

    def know(self, yes: bool = True) -> None:
        """Whether the user's machine knows the host's key."""
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        self._write("known", f"[{self.host}]:{self.port} {key}\n" if yes else "")

    def start(self, forwarding: str = "yes") -> Sshd:
        """Start it and wait until it listens. ``forwarding``: AllowTcpForwarding."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its empty folder, which a service would have made
        here = self.folder
        config = self._write("sshd_config", f"ListenAddress {self.host}:{self.port}\nHostKey {here}/host\nUsePAM no\n"
                             f"AuthorizedKeysFile {here}/authorized\nStrictModes no\nPidFile none\n"
                             f"PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                             f"AllowTcpForwarding {forwarding}\n")  # fmt: skip
        with (here / "log").open("ab") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log, stdin=subprocess.DEVNULL)

        def listens() -> bool:
            assert self.process is not None and self.process.poll() is None, (here / "log").read_text()
            return any(found.laddr.port == self.port for found in psutil.Process(self.process.pid).net_connections())

        wait_until("sshd to listen", listens, 20)
        return self

    def stop(self) -> None:
        """End it with all its sessions, as when the machine goes."""
        if self.process is None:
            return
        sessions = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        self.process.wait()
        for session in sessions:
            if session.is_running():
                session.send_signal(signal.SIGKILL)
        psutil.wait_procs(sessions, 10)
        self.process = None

    def _write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        file.chmod(0o600)
        return file
