"""A virtual environment with a current pip, made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from control.engines.install import PIP_LOCK


@pytest.fixture(scope="session")
def pip_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with the pip that runtimes get."""
    venv = tmp_path_factory.mktemp("pip") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [str(venv / "bin" / "pip"), "install", "-q", "--require-hashes", "-r", str(PIP_LOCK)]
    subprocess.run(install, check=True)
    return venv
