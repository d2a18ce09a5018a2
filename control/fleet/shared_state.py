"""``edge.state`` of fleet.yaml: the Redis that several edges share, as the edge needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from control.fleet.address import split_listen, split_url
from control.fleet.edge_schema import RedisState
from control.fleet.schema import Fleet


@dataclass(frozen=True)
class SharedState:
    """Everything but the password, which the edge reads itself. ``timeout`` in milliseconds."""

    host: str
    port: int
    database: int
    tls: bool
    user: str | None
    password_file: Path | None
    sentinels: tuple[tuple[str, int], ...]
    master: str | None
    on_error: str
    prefix: str
    timeout: int


def settings_of(state: str | RedisState) -> RedisState | None:
    """The written-out form of what may be short; None for ``memory``."""
    if isinstance(state, RedisState):
        return state
    return None if state == "memory" else RedisState(redis=state)


def split_redis(url: str) -> tuple[str, str, int, int]:
    """Scheme, host (without brackets), port and number of the database."""
    scheme, _, rest = url.partition("://")
    address, _, database = rest.partition("/")
    return *split_url(f"{scheme}://{address}"), int(database or 0)


def shared_state(fleet: Fleet, folder: Path) -> SharedState | None:
    """The Redis of a fleet whose relative paths start at ``folder``; None when its edge is alone."""
    settings = settings_of(fleet.edge.state)
    if settings is None:
        return None
    scheme, host, port, database = split_redis(settings.redis)
    return SharedState(
        # nginx asks name servers only, which need not know this one.
        host="127.0.0.1" if host.lower() == "localhost" else host,
        port=port,
        database=database,
        tls=scheme == "rediss",
        user=settings.user,
        password_file=folder / settings.password_file if settings.password_file else None,
        sentinels=tuple(split_listen(address) for address in settings.sentinels or ()),
        master=settings.master,
        on_error=settings.on_error,
        prefix=settings.prefix,
        timeout=int(settings.timeout),
    )
