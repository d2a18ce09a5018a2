"""An engine on an IPv6 address: probed, listed and reached like any other."""

from __future__ import annotations

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine


def test_an_engine_on_an_ipv6_address_serves() -> None:
    with ScriptedEngine("alpha", host="::1") as engine:
        fleet = {"models": {"alpha": {"backends": [{"url": engine.url}]}}}
        with Edge(fleet) as edge:
            assert edge.backends()["alpha-1"]["address"] == f"[::1]:{engine.port}"
            assert edge.post(CHAT, chat("alpha", tokens=2)).status_code == 200
