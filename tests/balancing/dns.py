"""An engine that moves to another address: how long until requests follow its name."""

from __future__ import annotations

import time

from tests.support.client import CHAT, chat
from tests.support.dns import NAME, name_server
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row

TTL = 3


def moves(times: int) -> list[float]:
    """Move the name to and fro; seconds from each move to the first request that the new engine got."""
    waits = []
    with (
        name_server(TTL) as (zone, port),
        ScriptedEngine("alpha") as first,
        ScriptedEngine("alpha", host="127.0.0.2", port=first.port) as second,
    ):
        zone.address = first.host
        fleet = {
            "edge": {"dns": f"127.0.0.1:{port}"},
            "models": {"alpha": {"backends": [{"url": f"http://{NAME}:{first.port}"}]}},
        }
        with Edge(fleet, ready=False) as edge:
            wait_until("the name to resolve", lambda: edge.post(CHAT, chat("alpha")).ok, 10)
            for number in range(times):
                # At another moment of the answer's life each time, the worst one (just after it came) included.
                asked = zone.asked
                wait_until("the next question", lambda asked=asked: zone.asked > asked, 2 * TTL + 5)  # type: ignore[misc]
                time.sleep(TTL * number / times)
                target = second if zone.address == first.host else first
                before = target.started()
                zone.address = target.host
                began = time.monotonic()

                def arrived(target: ScriptedEngine = target, before: int = before) -> bool:
                    assert edge.post(CHAT, chat("alpha", tokens=1)).ok
                    return target.started() > before

                wait_until("a request at the new address", arrived, 3 * TTL)
                waits.append(time.monotonic() - began)
    return waits


def proof(times: int = 10) -> list[Row]:
    waits = moves(times)
    return [row("A changed DNS answer is followed within its TTL", max(waits), TTL, "s",
                f"the slowest of {len(waits)} moves at any moment of a TTL of {TTL} s; no request failed")]  # fmt: skip
