"""What `signalbox status` says of tunnels: what the control plane wrote down, compared with what runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from control.edge.report import span
from control.engines import processes
from control.engines.processes import Record
from control.fleet.load import LoadedFleet
from control.paths import StatePaths
from control.tunnels.arguments import Tunnel, tunnels
from control.tunnels.keeper import first_status, read

#: Seconds that tunnels get before `signalbox up` says which are down; it goes on then.
SETTLE_SECONDS = 5.0
_COLOURS = {"up": "green", "connecting": "yellow"}


def rows(loaded: LoadedFleet, paths: StatePaths, minded: bool) -> list[dict[str, Any]]:
    """One row for each tunnel of the fleet. ``minded``: a control plane runs."""
    return [_row(tunnel, paths, minded) for tunnel in tunnels(loaded)]


def in_the_way(loaded: LoadedFleet, paths: StatePaths) -> Callable[[str], str]:
    """A function: why the tunnel to a backend carries nothing; empty when it is up, or the backend has none."""
    ids = {tunnel.id for tunnel in tunnels(loaded)}

    def why(identity: str) -> str:
        told = read(paths.tunnel(identity)) if identity in ids else None
        if told is None or told.get("state") == "up":
            return ""
        return f"the tunnel to it is {told.get('state')}: {told.get('detail')}".rstrip(": ")

    return why


def settled(loaded: LoadedFleet, paths: StatePaths, seconds: float = SETTLE_SECONDS) -> list[str]:
    """Wait until all tunnels of a running control plane are up, at most so long; then a line for each that is not."""
    deadline = time.monotonic() + seconds
    while True:
        found = rows(loaded, paths, minded=True)
        if all(row["state"] == "up" for row in found) or time.monotonic() > deadline:
            return [
                f"The tunnel to {row['id']} is {row['state']}{': ' if row['detail'] else ''}{row['detail']}"
                for row in found
                if row["state"] != "up"
            ]
        time.sleep(0.1)


def _row(tunnel: Tunnel, paths: StatePaths, minded: bool) -> dict[str, Any]:
    fresh = asdict(first_status(tunnel))
    written = read(paths.tunnel(tunnel.id)) or {}
    row = fresh | {key: written[key] for key in ("state", "detail", "since", "pid", "restarts") if key in written}
    if minded:
        return row
    record = Record.load(paths.tunnel(tunnel.id))
    lives = record is not None and processes.alive(record)
    detail = "the control plane does not run, so nobody brings it back" if lives else "the control plane does not run"
    return row | {"state": row["state"] if lives else "down", "detail": f"{detail}: signalbox up"}


def show_rows(lines: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print them as a table, and below it why one is not as it should be."""
    console = console or Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for heading in ("tunnel of", "here", "to", "state", "since"):
        table.add_column(heading)
    for line in lines:
        to = f"{line['target']}, there {line['remote']}"
        cells = [str(cell).replace("[", "\\[") for cell in (line["id"], line["local"], to)]
        state = f"[{_COLOURS.get(line['state'], 'red')}]{line['state']}[/]"
        table.add_row(*cells, state, span(time.time() - float(line["since"])))
    console.print(table)
    for line in lines:
        if line["detail"]:
            console.print(f"{line['id']}: {line['detail']}", markup=False, highlight=False, soft_wrap=True)
