"""What runs of a fleet from another state folder than fleet.yaml names now: somebody edited it meanwhile."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil

from control.edge.ports import split
from control.errors import ControlError
from control.paths import StatePaths

_EDGE = re.compile(r"nginx: master process .* -p (?P<prefix>/\S.*?)/edge/ ")


def refuse_elsewhere(fleet_file: Path, paths: StatePaths, listen: str = "") -> None:
    """Raise ControlError when this fleet runs from another state folder than ``paths``, naming it.

    Judged by the command line of the control plane, and by the edge that listens on ``listen`` (if given).
    """
    for pid, root in _control_planes(fleet_file):
        if root != paths.root:
            raise ControlError(
                f"the control plane of {fleet_file.name} (pid {pid}) runs from the state folder {root}, "
                f"but {fleet_file.name} names another one now: {paths.root}",
                _put_back(root),
            )
    if listen:
        for pid, root in _edges(listen):
            if root != paths.root:
                raise ControlError(
                    f"nothing was ever started in {paths.root}, but an edge of Signalbox (pid {pid}) listens on "
                    f"{listen}; its state folder is {root}",
                    f"If it is another fleet's: make stop FLEET=ITS_FILE. If state_dir was changed: {_put_back(root)}",
                )


def _put_back(root: Path) -> str:
    return f"put `state_dir: {root}` back (under control:), run `make stop`, then change it again."


def _control_planes(fleet_file: Path) -> Iterator[tuple[int, Path]]:
    """Pid and state folder of daemons that serve this file: they hold the pid file in it open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            if words[-1:] != ["serve"] or not any("signalbox" in word or word == "control" for word in words):
                continue
            named = [after for word, after in pairwise(words) if word in ("--fleet", "-f")]
            if (Path(process.cwd()) / (named or ["fleet.yaml"])[-1]).resolve() != fleet_file.resolve():
                continue
            for file in process.open_files():
                if file.path.endswith("/control/control.pid"):
                    yield process.pid, Path(file.path).parent.parent


def _edges(listen: str) -> Iterator[tuple[int, Path]]:
    """Pid and state folder of masters that listen there, alone or through their workers."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        if tuple(connection.laddr)[1:2] != (split(listen)[1],):
            continue
        with contextlib.suppress(psutil.Error):
            holder = psutil.Process(connection.pid)
            for process in (holder, holder.parent()):
                found = _EDGE.search(" ".join(process.cmdline()) + " ") if process is not None else None
                if process is not None and found is not None:
                    yield process.pid, Path(found["prefix"])
