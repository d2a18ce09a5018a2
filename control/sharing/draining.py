"""Before an engine is ended, every edge must be done with it: edges elsewhere tell what runs through them, and hear
which backends are to get nothing new. Both through Redis, once a second, and forgotten when nobody repeats it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from control.edge.gate import EdgeGate
from control.errors import SharingError
from control.fleet.load import LoadedFleet
from control.fleet.shared_state import SharedState, shared_state
from control.paths import StatePaths
from control.sharing.redis import connected

log = logging.getLogger(__name__)

#: Milliseconds that an edge's word counts, and a wish of the control plane (it repeats it every 10 s).
WORD_MS, WISH_MS = 5_000, 30_000

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
#: KEYS: a hash. ARGV: a field, its text, milliseconds that it counts.
_SAY = f"""{_NOW}
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
"""
#: KEYS: a hash. Answers fields and texts that still count.
_HEAR = f"""{_NOW}
local all, found = redis.call('HGETALL', KEYS[1]), {{}}
for i = 1, #all, 2 do
    local ends, text = string.match(all[i + 1], '^(%d+) (.*)$')
    if tonumber(ends) > now then
        found[#found + 1] = all[i]
        found[#found + 1] = text
    else
        redis.call('HDEL', KEYS[1], all[i])
    end
end
return found
"""


@dataclass(frozen=True)
class Word:
    """What an edge elsewhere says. ``running``: sequences by address; ``open``: addresses that it sends requests to."""

    running: dict[str, int]
    open: list[str]


def word_of(state: Mapping[str, Any]) -> Word:
    """The word of an edge with this /state."""
    running: dict[str, int] = {}
    for row in (*state["backends"], *(state.get("leaving") or ())):
        if int(row["in_flight"]) > 0:
            running[str(row["address"])] = running.get(str(row["address"]), 0) + int(row["in_flight"])
    return Word(running, [str(row["address"]) for row in state["backends"] if "control" not in row["drained_by"]])


def tell(shared: SharedState, name: str, word: Word) -> set[str]:
    """Say ``word`` as the edge ``name``; the backends that the control plane wants to get nothing new.

    Raises SharingError.
    """
    with connected(shared) as redis:
        redis.call("EVAL", _SAY, 1, f"{shared.prefix}:running", name, json.dumps(word.__dict__), WORD_MS)
        return set(_pairs(redis.call("EVAL", _HEAR, 1, f"{shared.prefix}:held")))


class SharedGate(EdgeGate):
    """The gate of a fleet that edges elsewhere serve too. Without Redis only this machine's edge counts."""

    def __init__(self, paths: StatePaths, loaded: Callable[[], LoadedFleet]) -> None:
        super().__init__(paths)
        self._loaded = loaded
        self._trouble = ""

    def running(self, address: str) -> tuple[int, list[str]] | None:
        """As EdgeGate says it, with what runs through other edges.

        One more for each that would still send requests there though our edge does not: it has not heard of it yet.
        """
        own = super().running(address)
        words = [Word(**json.loads(text)) for text in self._ask(_HEAR, "running").values()]
        if not words:
            return own
        count, here = own or (0, [])
        count += sum(word.running.get(address, 0) for word in words)
        if set(here) <= self._held:
            count += sum(address in word.open for word in words)
        return count, here

    def hold(self, backend: str) -> bool:
        """Let nothing new in, at any edge; True when that is news. Raises EdgeError."""
        news = super().hold(backend)
        if news:
            self._ask(_SAY, "held", backend, "-", WISH_MS)
        return news

    def release(self, backend: str) -> None:
        """Let requests in again, at every edge."""
        super().release(backend)
        self._ask("redis.call('HDEL', KEYS[1], ARGV[1]) return {}", "held", backend)

    def _repeat(self, backend: str) -> None:
        super()._repeat(backend)
        if backend in self._held:
            self._ask(_SAY, "held", backend, "-", WISH_MS)

    def _ask(self, script: str, name: str, *values: str | int) -> dict[str, str]:
        """What a script answers; nothing when Redis is away, which is logged once."""
        loaded = self._loaded()
        shared = shared_state(loaded.fleet, loaded.folder)
        if shared is None:
            return {}
        try:
            with connected(shared) as redis:
                found = _pairs(redis.call("EVAL", script, 1, f"{shared.prefix}:{name}", *values))
        except SharingError as error:
            if error.message != self._trouble:
                log.warning("What runs through edges elsewhere is not known: %s", error.message)
            self._trouble = error.message
            return {}
        self._trouble = ""
        return found


def _pairs(reply: object) -> dict[str, str]:
    items = [str(item) for item in reply] if isinstance(reply, list) else []
    return dict(zip(items[::2], items[1::2], strict=True))
