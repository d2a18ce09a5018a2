"""Backends given by name: the edge asks DNS itself, follows changes by their TTL, and starts without an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dns import NAME, Zone, name_server
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def zone() -> Iterator[tuple[Zone, int]]:
    with name_server() as server:
        yield server


@pytest.mark.slow
def test_a_name_is_followed_when_dns_moves_it(zone: tuple[Zone, int]) -> None:
    """An engine's container comes back with another address: requests follow within a few TTLs, without a reload.

    The name does not even resolve when the edge starts.
    """
    names, dns_port = zone
    with ScriptedEngine() as first, ScriptedEngine(host="127.0.0.2", port=first.port) as second:
        fleet = {
            "edge": {"dns": f"127.0.0.1:{dns_port}"},
            "models": {"scripted": {"backends": [{"url": f"http://{NAME}:{first.port}"}]}},
        }
        with Edge(fleet, ready=False) as edge:
            refused = edge.chat(CHAT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "no_backend_ready"
            assert refused.headers["Retry-After"].isdigit()

            names.address = "127.0.0.1"
            wait_until("the name to resolve", lambda: edge.chat(CHAT).ok, 10)
            assert first.started() >= 1
            assert second.started() == 0

            names.address = "127.0.0.2"
            wait_until("the new address", lambda: edge.chat(CHAT).ok and second.started() > 0, 10)

            # A name server that no longer knows the name takes no engine away.
            names.address, asked = None, names.asked
            wait_until("the next question", lambda: names.asked > asked, 10)
            assert edge.chat(CHAT).status_code == 200
