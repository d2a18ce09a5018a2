"""The control plane's half: what its own edge has taken is given to other edges through Redis, with a version.

The document is kept on disk first. A Redis that was away, or has begun anew, gets it later (``repeat``).
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from control import __version__
from control.edge import files
from control.errors import SharingError
from control.fleet.load import LoadedFleet
from control.fleet.resolve import resolve_backends
from control.fleet.shared_state import SharedState, shared_state
from control.paths import StatePaths
from control.sharing import document
from control.sharing.document import Document
from control.sharing.redis import Connection, connected

#: One step for Redis: nobody replaces a newer version by an older one. Answers the version that is there then.
_PUBLISH = """
local there = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
if there >= tonumber(ARGV[1]) then
    return there
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'digest', ARGV[2], 'document', ARGV[3])
return tonumber(ARGV[1])
"""
#: So many others may publish between our look and our word.
_TRIES = 5


def key_of(state: SharedState) -> str:
    """Where a fleet's document stands: a hash with its ``version``, ``digest`` and ``document``."""
    return f"{state.prefix}:fleet"


def publish(loaded: LoadedFleet, paths: StatePaths, keys_only: bool = False) -> list[str]:
    """Give the fleet and keys that this machine's edge runs to others; what came of it, for a person.

    ``keys_only``: fleet.yaml may have been edited and not reloaded yet, so the fleet stays as it was published.
    Nothing happens when the fleet shares no Redis. A Redis that is away is no error: the words say what follows.
    """
    state = shared_state(loaded.fleet, loaded.folder)
    fleet = files.read_snapshot(paths.conf / "fleet.json")
    if state is None or fleet is None:
        return []
    before = kept(paths.published)
    known = before.version if before else 0
    version = max(known + 1, int(time.time()))
    if keys_only and before is not None:
        new = _numbered(replace(before, keys=_keys(paths, fleet)), version)
    else:
        new = document.written(
            version, __version__, socket.gethostname(), fleet, resolve_backends(loaded), _keys(paths, fleet),
            loaded.folder,
        )  # fmt: skip
    if before is not None and before.digest() == new.digest():
        new = before
    else:
        keep(paths.published, new)
    try:
        with connected(state) as redis:
            version, news = _bring(redis, state, new, paths.published)
    except SharingError as error:
        return [
            f"warning: other edges were not told: {error.message}",
            "         The control plane, if it runs (`signalbox run`), tries again; so does the next reload.",
        ]
    return [f"Other edges that share Redis take this fleet as version {version}."] if news else []


def repeat(loaded: LoadedFleet, paths: StatePaths) -> str:
    """Give Redis what was published last when it has nothing or something older; words when that was so, else "".

    Raises SharingError when Redis does not answer.
    """
    state = shared_state(loaded.fleet, loaded.folder)
    mine = kept(paths.published)
    if state is None or mine is None:
        return ""
    with connected(state) as redis:
        there = redis.call("HGET", key_of(state), "version")
        if there is not None and int(str(there)) >= mine.version:
            return ""
        _put(redis, state, mine)
    had = "no fleet" if there is None else "an older fleet"
    return f"Redis had {had} for other edges; it was told version {mine.version}."


def keep(path: Path, content: Document) -> None:
    """Keep a document on disk, readable for its owner. Raises EdgeError when that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content.encode() + "\n", mode=0o600)


def kept(path: Path) -> Document | None:
    """The document at ``path``; None when there is none, or it is damaged."""
    text = files.read(path)
    with contextlib.suppress(SharingError):
        return document.read(text) if text is not None else None
    return None


def _bring(redis: Connection, state: SharedState, new: Document, path: Path) -> tuple[int, bool]:
    """Make ``new`` the newest; its version then, and whether that is news."""
    for _ in range(_TRIES):
        found = redis.call("HMGET", key_of(state), "version", "digest")
        assert isinstance(found, list)
        there = int(str(found[0] or 0))
        if found[1] == new.digest():
            if there != new.version:
                keep(path, _numbered(new, there))  # another control plane of the same fleet was first
            return there, False
        if there >= new.version:
            new = _numbered(new, there + 1)
            keep(path, new)
        if _put(redis, state, new) == new.version:
            return new.version, True
    raise SharingError("other control planes publish all the time", "Give each fleet a prefix of its own (edge.state).")


def _put(redis: Connection, state: SharedState, content: Document) -> int:
    answer = redis.call(
        "EVAL", _PUBLISH, 1, key_of(state), content.version, content.digest(), content.encode()
    )  # fmt: skip
    return int(str(answer))


def _numbered(old: Document, version: int) -> Document:
    return replace(old, version=version, fleet={**old.fleet, "version": version})


def _keys(paths: StatePaths, fleet: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The keys that the edge was told, when the fleet asks for any."""
    if not fleet.get("keys"):
        return None
    told = files.read_snapshot(paths.keys_json)
    return told["keys"] if told is not None else {}
