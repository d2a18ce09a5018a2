"""A short start of the rendered edge on scratch ports, in a folder of its own: `nginx -t` never runs Lua, this does."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from control.edge import files, keys
from control.edge.apply import launch
from control.edge.ports import free_port
from control.edge.process import CONF, EdgeProcess
from control.edge.render import Scratch, render
from control.edge.site import Site
from control.edge.snapshot import encode
from control.errors import EdgeError
from control.paths import StatePaths


@dataclass(frozen=True)
class Smoke:
    """What a smoke start found: nginx's warnings and the milliseconds from start to the first answer."""

    warnings: tuple[str, ...]
    milliseconds: int


def smoke(site: Site) -> Smoke:
    """Render, ``nginx -t``, start with timers off, ask /state, stop. Touches nothing of the running edge.

    Raises RenderError or EdgeError with the reason; the scratch folder and its nginx are gone in every case.
    """
    folder = Path(tempfile.mkdtemp(prefix="signalbox-check-")).resolve()
    scratch = Site(site.loaded, StatePaths(folder), site.engine, site.sources, site.surroundings)
    try:
        return _run(scratch)
    except EdgeError as error:
        error.hint = ""  # it names a log file that is about to go
        raise
    finally:
        EdgeProcess(scratch.paths).stop(quit=False)
        shutil.rmtree(folder, ignore_errors=True)


def _run(site: Site) -> Smoke:
    ports = Scratch(listen=f"127.0.0.1:{free_port()}", admin=f"127.0.0.1:{free_port()}")
    rendered = render(
        site.loaded,
        site.paths,
        site.engine.profile,
        scratch=ports,
        sources=site.sources,
        surroundings=site.surroundings,
    )
    files.hashes(rendered.nginx_conf, site.sources.lua, rendered.read_files)  # a missing file is told by its name
    site.process.prepare()
    files.write(site.paths.edge / CONF, rendered.nginx_conf)
    files.write(site.paths.conf / "fleet.json", encode({**rendered.snapshot, "version": 1}))
    files.write(site.paths.conf / "generation", "1\n")
    keys.write(site.paths, site.keys())
    warnings = site.process.test(CONF)
    started = time.monotonic()
    launch(site, ports.admin, generation=1)
    return Smoke(tuple(warnings), round((time.monotonic() - started) * 1000))
