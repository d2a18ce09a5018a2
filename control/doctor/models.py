"""A model folder: is all of it there? A download that broke off leaves one that looks whole."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from control.doctor.findings import Finding, ok, problem
from control.doctor.inside import lacking
from control.engines.model import require_folder
from control.engines.prepare import local_engines
from control.errors import EngineError
from control.fleet.load import LoadedFleet


def models(loaded: LoadedFleet) -> Iterator[Finding]:
    """The folders of models that engines of this machine serve."""
    sources = {engine.spec.model: engine.source for engine in local_engines(loaded)}
    for model, source in sources.items():
        if isinstance(source, Path):
            yield look(model, source)


def look(model: str, folder: Path) -> Finding:
    """Is the model's folder complete?"""
    command = f"ls -lL {shlex.quote(str(folder))}"
    try:
        require_folder(model, folder)
    except EngineError as error:
        return problem(f"model {model}", error.message, command)
    found = lacking(folder)
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        return problem(f"model {model}", f"{folder} is not complete: {shown}. Download it again", command)
    return ok(f"model {model}", f"{folder} is complete")
