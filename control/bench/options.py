"""Options that several commands of ``signalbox bench`` have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from control.cli import Settings

RUNS = click.option("--runs", type=click.Path(file_okay=False, path_type=Path),
                    help="Folder of the runs; without it, runs beside fleet.yaml.")  # fmt: skip


def runs_folder(settings: Settings, given: Path | None) -> Path:
    """Where runs are kept."""
    from control.bench.store import FOLDER

    return given or settings.fleet.absolute().parent / FOLDER
