"""Which containers are this fleet's, and who works on one just now: remembered in the state folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from control.errors import EngineError
from control.paths import StatePaths


class Busy(EngineError):
    """Another command changes the containers of this backend just now."""


@dataclass(frozen=True)
class Adopted:
    """A container that somebody else made and `signalbox adopt` took over; with the spec that it fitted then."""

    backend: str
    hash: str
    facts: Mapping[str, Any]


def fleet_id(paths: StatePaths) -> str:
    """Marks the containers of this fleet; made at the first call. It lives as long as the state folder."""
    file = paths.root / "fleet.id"
    with contextlib.suppress(FileNotFoundError):
        if text := file.read_text().strip():
            return text
    paths.root.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"fleet.id.{os.getpid()}")
    fresh.write_text(secrets.token_hex(8) + "\n")
    with contextlib.suppress(FileExistsError):  # somebody else was faster: theirs counts
        os.link(fresh, file)
    fresh.unlink()
    return file.read_text().strip()


def known_fleet_id(paths: StatePaths) -> str:
    """The same without making it: empty when no container of this fleet was ever made."""
    try:
        return (paths.root / "fleet.id").read_text().strip()
    except OSError:
        return ""


def adopted(paths: StatePaths) -> dict[str, Adopted]:
    """Every adopted container by its id."""
    found = {}
    for file in sorted((paths.root / "engines").glob("*/adopted.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(file.read_text())
            found[str(content["container"])] = Adopted(file.parent.name, str(content["hash"]), dict(content["facts"]))
    return found


def adopt(paths: StatePaths, container: str, which: Adopted) -> None:
    """Remember that this container is ours from now on."""
    folder = paths.engine(which.backend)
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "adopted.json.new"
    new.write_text(
        json.dumps({"container": container, "hash": which.hash, "facts": dict(which.facts)}, indent=1) + "\n"
    )
    new.replace(folder / "adopted.json")


def disown(paths: StatePaths, backend: str) -> None:
    """An adopted container of this backend is gone."""
    (paths.engine(backend) / "adopted.json").unlink(missing_ok=True)


@contextlib.contextmanager
def working_on(
    paths: StatePaths, backend: str, wait: float = 0.0, stopped: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Be the only one who changes this backend's containers; the lock goes with the process that holds it.

    Raises Busy when somebody else still has it after ``wait`` seconds, or ``stopped`` says so.
    """
    folder = paths.engine(backend)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "container.lock").open("a") as file:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or stopped():
                    raise Busy(
                        f"another command is at work on {backend}", "Wait for it, then run the same command again."
                    ) from None
                time.sleep(0.05)
        yield
