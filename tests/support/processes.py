"""What still runs."""

from __future__ import annotations

from pathlib import Path

import psutil


def of_folder(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder: they name it, or run in it."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if str(folder) in line or process.cwd().startswith(str(folder)):
                found.append(line)
        except psutil.Error:
            continue
    return found
