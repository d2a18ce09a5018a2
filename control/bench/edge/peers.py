"""Other routers from PyPI that measurements compare with: each pinned in a lock of its own, in a venv of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from control.bench.edge.process import BenchError
from control.paths import REPOSITORY, StatePaths


@dataclass(frozen=True)
class Peer:
    """A router: its name is that of its package and of its program."""

    name: str
    lock: Path

    def version(self) -> str:
        """The version that the lock pins. Raises BenchError when it pins none."""
        for line in self.lock.read_text().splitlines():
            if line.startswith(f"{self.name}=="):
                return line.removeprefix(f"{self.name}==").split()[0]
        raise BenchError(f"{self.lock} does not pin {self.name}.", "Restore the file from the repository.")

    def install(self, runtimes: Path | None = None) -> Path:
        """Make its venv below ``runtimes`` when it is not there yet; returns the path of its program.

        Raises BenchError with pip's own words when the installation fails.
        """
        runtimes = runtimes or StatePaths(REPOSITORY / ".signalbox").runtimes
        venv = runtimes / f"bench-{self.name}-{self.version()}"
        program, mark = venv / "bin" / self.name, venv / "installed-from"
        fingerprint = hashlib.sha256(self.lock.read_bytes()).hexdigest()
        if program.exists() and mark.exists() and mark.read_text() == fingerprint:
            return program
        shutil.rmtree(venv, ignore_errors=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        steps = ([sys.executable, "-m", "venv", str(venv)], [*pip, "--require-hashes", "-r", str(self.lock)])
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode != 0:
                raise BenchError(
                    f"{self.name} could not be installed into {venv}:\n{done.stderr.strip()[-2000:]}",
                    "Is the package index reachable? `make bench-edge` has --without to leave a peer out.",
                )
        mark.write_text(fingerprint)
        return program


VLLM_ROUTER = Peer("vllm-router", REPOSITORY / "requirements" / "bench.lock")
SGLANG_ROUTER = Peer("sglang-router", REPOSITORY / "requirements" / "bench-sglang.lock")
