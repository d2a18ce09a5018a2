"""Reads a run with its requests, and writes its report beside it."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from control.bench import results
from control.bench.records import Request
from control.bench.report import data, markdown, page
from control.bench.results import Run
from control.errors import BenchRunError

_REQUEST = TypeAdapter(Request)


def write(folder: Path, out: Path | None = None) -> list[Path]:
    """Write report.html, report.md and report.json of the run in ``folder``; returns the files.

    Raises BenchRunError for a run that cannot be read, and a folder that cannot be written.
    """
    run = results.load(folder)
    texts = {
        "report.html": page.report(run, requests(folder, run)),
        "report.md": markdown.report(run),
        "report.json": data.write(data.report(run)),
    }
    where = out or folder
    try:
        where.mkdir(parents=True, exist_ok=True)
        files = []
        for name, text in texts.items():
            temporary = where / f"{name}.new"
            temporary.write_text(text)
            files.append(temporary.replace(where / name))
    except OSError as error:
        raise BenchRunError(
            f"The report cannot be written to {where}: {error.strerror}.", "Name another folder with --out."
        ) from error
    return files


def requests(folder: Path, run: Run) -> dict[int, list[Request]]:
    """The requests of each pass, by its order; a pass whose file is gone or broken is left out.

    A name that leads out of the folder is not followed: a run may come from somebody else.
    """
    found = {}
    for one in run.passes:
        file = folder / one.requests
        if Path(one.requests).name != one.requests:
            continue
        try:
            found[one.order] = [_REQUEST.validate_json(line) for line in file.read_text().splitlines() if line]
        except (OSError, ValueError):
            continue
    return found
