"""The folder ``runs``: where each run lies, and which there are."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from control.bench import results
from control.bench.results import Run
from control.errors import BenchRunError

#: Beside fleet.yaml; git ignores it.
FOLDER = "runs"


def new_folder(runs: Path, workload: str) -> Path:
    """A folder for a run that begins now: ``20261130-160501-mixed``."""
    stem = time.strftime("%Y%m%d-%H%M%S") + "-" + re.sub(r"[^A-Za-z0-9._-]", "-", workload)
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise BenchRunError(f"{runs} has too many runs of this second.", "Wait a moment, then measure again.")


def save(folder: Path, run: Run) -> None:
    """Write run.json, whole or not at all."""
    temporary = folder / (results.FILE + ".new")
    temporary.write_text(run.to_json())
    temporary.replace(folder / results.FILE)


def find(runs: Path, name: str) -> Path:
    """The folder of a run: its id, the beginning of one, ``last``, or a path. Raises BenchRunError."""
    if (Path(name) / results.FILE).is_file():
        return Path(name)
    ids = sorted(folder.name for folder in folders(runs))
    found = ids[-1:] if name == "last" else [one for one in ids if one == name] or [
        one for one in ids if one.startswith(name)
    ]  # fmt: skip
    if len(found) == 1:
        return runs / found[0]
    if not found:
        raise BenchRunError(
            f"There is no run {name!r} in {runs}.", "`signalbox bench list` shows those that there are."
        )
    raise BenchRunError(f"{name!r} means {len(found)} runs: {', '.join(found[:5])}.", "Give more of the id.")


def folders(runs: Path) -> Iterator[Path]:
    """All folders with a run, the oldest first."""
    if runs.is_dir():
        yield from sorted(file.parent for file in runs.glob(f"*/{results.FILE}"))
