"""The Redis that edges share: does it answer, and does it keep what it is told?"""

from __future__ import annotations

from collections.abc import Iterator

from control.doctor.findings import Finding, ok, problem, warning
from control.errors import SharingError
from control.fleet.load import LoadedFleet
from control.fleet.shared_state import shared_state
from control.sharing.redis import connected


def redis(loaded: LoadedFleet) -> Iterator[Finding]:
    """Nothing when edge.state is memory."""
    state = shared_state(loaded.fleet, loaded.folder)
    if state is None:
        return
    tls = " --tls" if state.tls else ""
    password = f'REDISCLI_AUTH="$(cat {state.password_file})" ' if state.password_file else ""
    client = f"{password}redis-cli -h {state.host} -p {state.port}{tls}"
    try:
        with connected(state) as link:
            link.call("PING")
            settings = str(link.call("INFO", "memory"))
    except SharingError as error:
        yield problem("Redis", error.message, f"{client} ping")
        return
    policy = next((line[17:] for line in settings.splitlines() if line.startswith("maxmemory_policy:")), "noeviction")
    if policy != "noeviction":
        text = f"it throws away what it should count when its memory is full (maxmemory-policy {policy})"
        yield warning("Redis", text, f"{client} config set maxmemory-policy noeviction")
    else:
        yield ok("Redis", f"it answers at {state.host}:{state.port}")
