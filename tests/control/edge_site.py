"""A fleet in a scratch folder whose edge the tests start, reload and break."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from control.edge.ports import free_port
from control.edge.process import EdgeProcess
from control.edge.render import Sources
from control.edge.site import Site, open_site
from control.fleet.load import load
from control.paths import REPOSITORY, StatePaths


class Place:
    """One folder with fleet.yaml and copies of lua/ and templates/, so that a test may break them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet_file = folder / "fleet.yaml"
        self.sources = Sources(lua=folder / "lua", templates=folder / "templates")
        shutil.copytree(REPOSITORY / "lua", self.sources.lua)
        shutil.copytree(REPOSITORY / "templates", self.sources.templates)
        self.listen, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.write()

    def write(self, models: dict[str, Any] | None = None, **edge: Any) -> None:
        """Write fleet.yaml: model m on one engine that does not answer, unless ``models`` says otherwise."""
        engine = {"backends": [{"id": "m-1", "url": "http://127.0.0.1:9"}]}
        settings = {"listen": self.listen, "admin": self.admin, "workers": 2, **edge}
        self.fleet_file.write_text(yaml.safe_dump({"edge": settings, "models": models or {"m": engine}}))

    @property
    def site(self) -> Site:
        """The site as fleet.yaml says now."""
        return replace(open_site(load(self.fleet_file)), sources=self.sources)

    def append_to_lua(self, name: str, text: str) -> None:
        """Break (or touch) one Lua module."""
        path = self.sources.lua / "edge" / name
        path.write_text(path.read_text() + text)

    def restore_lua(self, name: str) -> None:
        """Undo ``append_to_lua``."""
        shutil.copy(REPOSITORY / "lua" / "edge" / name, self.sources.lua / "edge" / name)

    def processes(self) -> list[psutil.Process]:
        """Every process that was started with this folder's edge as its prefix, and their children."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if f"{self.folder}/" in " ".join(process.cmdline()) and "nginx" in process.name():
                    found += [process, *process.children(recursive=True)]
        return found


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A Place whose processes and folder are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="signalbox-test-")).resolve()
    folder.chmod(0o755)  # not pytest's tmp_path: workers may run as nobody and must reach it
    here = Place(folder)
    try:
        yield here
    finally:
        for process in [*here.processes(), *EdgeProcess(StatePaths(folder / ".signalbox")).orphans()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def run(edge: Place, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``signalbox`` in the fleet's folder; its exit code must be ``code``, and a traceback is never right."""
    command = [sys.executable, "-m", "control", *words]
    done = subprocess.run(command, cwd=edge.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done
