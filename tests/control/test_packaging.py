"""What is shipped: the wheel holds all that is below control/, and docs/architecture.md names every module."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from control.paths import REPOSITORY


def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "control", source / "control", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    wanted = {str(path.relative_to(source)) for path in (source / "control").rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(tmp_path), str(source)], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("signalbox-*.whl"))) as wheel:
        assert wanted - set(wheel.namelist()) == set()


def test_the_architecture_names_every_module() -> None:
    rooms = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    python = [path.name for path in (REPOSITORY / "control").rglob("*.py") if "bench" not in path.parts]
    assert [name for name in python if not name.startswith("__") and name not in rooms] == []
    words = set(re.findall(r"\w+", rooms.partition("\nlua/edge/")[2].partition("\ntemplates/")[0]))
    assert [path.stem for path in (REPOSITORY / "lua" / "edge").glob("*.lua") if path.stem not in words] == []
