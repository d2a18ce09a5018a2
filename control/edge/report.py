"""What `signalbox status` says of the edge."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from control.edge import calls, files
from control.edge.process import EdgeProcess
from control.edge.site import client
from control.errors import EdgeError
from control.paths import StatePaths

#: States in which a backend takes requests.
SERVING = frozenset({"ready", "busy"})
_COLOURS = {"ready": "green", "busy": "green", "starting": "yellow", "draining": "yellow", "suspect": "red",
            "down": "red", "misconfigured": "red"}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The edge's process and, when it answers, its /state. ``problem`` says why there is no state.

    ``pid`` is None for an edge that runs in the foreground in another container.
    """

    pid: int | None
    started_at: float | None
    state: dict[str, Any] | None
    problem: str = ""
    following: dict[str, Any] | None = None


def collect(paths: StatePaths, follows: bool = False) -> Report:
    """Look at the edge of this state folder; an edge that does not run or answer is a finding, not an error.

    ``follows``: it takes its fleet from others, and what ``signalbox edge`` wrote of that belongs to it.
    """
    found = _collect(paths, "signalbox edge" if follows else "signalbox start")
    return replace(found, following=files.read_snapshot(paths.following)) if follows else found


def _collect(paths: StatePaths, start: str) -> Report:
    process = EdgeProcess(paths)
    pid = process.pid()
    if pid is None and not calls.answers(paths):
        left = ", ".join(str(worker.pid) for worker in process.orphans())
        problem = f"The edge's master process was killed, but its workers ({left}) go on serving." if left else ""
        problem = problem or "The edge is not running."
        return Report(None, None, None, f"{problem} Start it with `{start}`.")
    try:
        edge = client(paths)
    except EdgeError as error:
        return Report(pid, process.started_at(), None, str(error))
    try:
        return Report(pid, process.started_at(), edge.state())
    except EdgeError as error:
        return Report(pid, process.started_at(), None, str(error))
    finally:
        edge.close()


def as_json(
    report: Report,
    containers: list[dict[str, Any]] | None = None,
    engines: list[dict[str, Any]] | None = None,
    tunnels: list[dict[str, Any]] | None = None,
) -> str:
    """The report for programs; ``containers`` and ``tunnels`` as `signalbox status` knows them.

    ``engines``: what the control plane says of its processes; None when it does not run.
    """
    content: dict[str, Any] = {
        "running": report.pid is not None or report.state is not None,
        "pid": report.pid,
        "started_at": report.started_at,
    }
    content |= {"problem": report.problem} if report.problem else {}
    content |= {"following": report.following} if report.following else {}
    content |= {"containers": containers} if containers else {}
    content |= {"tunnels": tunnels} if tunnels else {}
    return json.dumps(content | {"state": report.state, "engines": engines}, indent=1)


def show(report: Report, console: Console | None = None) -> None:
    """Print the report as a table."""
    # A pipe has no width: without one of ours, rich would cut long addresses at 80 columns.
    console = console or Console(width=None if sys.stdout.isatty() else 200)
    if report.pid is not None:
        since = f", up {span(time.time() - report.started_at)}" if report.started_at else ""
        console.print(f"edge: pid {report.pid}{since}", highlight=False)
    if report.following is not None:
        for line in _followed(report.following):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if report.state is None:
        console.print(report.problem, markup=False, highlight=False, soft_wrap=True)
        return
    state = report.state
    workers = [worker for worker in state["workers"] if not worker["exiting"]]
    draining = len(state["workers"]) - len(workers)
    drain = f" ({draining} old ones finish their streams)" if draining else ""
    console.print(
        f"generation {state['generation']}, fleet {state['fleet_version']}, {len(workers)} workers{drain}",
        highlight=False,
    )
    console.print(_table(state["backends"]))
    for entry in state.get("leaving") or ():  # an edge that runs since before an update may not tell
        left = f"{entry['id']} ({entry['address']}) has left the fleet, {running(entry['in_flight'])} there"
        console.print(left, markup=False, highlight=False, soft_wrap=True)


def _followed(following: dict[str, Any]) -> list[str]:
    """Whose fleet this edge has, and which newer one it did not take."""
    version = int(following.get("version") or 0)
    since = span(time.time() - float(following.get("at") or 0))
    lines = [f"fleet of {following.get('source')}, version {version}, through Redis"] if version else []
    return [*lines, *([f"{since} ago: {following['problem']}"] if following.get("problem") else [])]


def running(count: int) -> str:
    """How many sequences still run: ``3 sequences still run``."""
    return "1 sequence still runs" if count == 1 else f"{count} sequences still run"


def _table(backends: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("backend", "model", "address", "state", "since", "in flight", "requests"):
        table.add_column(heading, justify="right" if heading in ("in flight", "requests") else "left")
    for backend in backends:
        colour = _COLOURS.get(str(backend["state"]), "white")
        reason = f" ({_plain(backend['reason'])})" if backend.get("reason") and backend["state"] != "ready" else ""
        since = span(time.time() - float(backend["since"])) if backend.get("since") else ""
        table.add_row(
            _plain(backend["id"]),
            _plain(backend["model"]),
            f"{backend['scheme']}://{_plain(backend['address'])}",
            f"[{colour}]{_plain(backend['state'])}[/{colour}]{reason}",
            since,
            str(backend["in_flight"]),
            str(backend["requests"]),
        )
    return table


def _plain(value: object) -> str:
    """Text of others, without rich's markup taking effect."""
    return str(value).replace("[", "\\[")


def span(seconds: float) -> str:
    """A duration in its two largest units: ``3d 4h``, ``5m 2s``."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
