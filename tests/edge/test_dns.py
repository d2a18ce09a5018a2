"""Backends given by name: the edge asks DNS itself, follows changes by their TTL, and starts without an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dnslib import QTYPE, RCODE, RR, A, DNSRecord
from dnslib.server import BaseResolver, DNSHandler, DNSLogger, DNSServer

from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until

NAME = "engine.test"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


class Zone(BaseResolver):
    """Answers for one name; ``address`` None: it does not exist."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.asked = 0

    def resolve(self, request: DNSRecord, handler: DNSHandler) -> DNSRecord:
        self.asked += 1
        reply = request.reply()
        if self.address is None or str(request.q.qname) != NAME + ".":
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            reply.add_answer(RR(NAME, QTYPE.A, rdata=A(self.address), ttl=1))
        return reply


@pytest.fixture
def zone() -> Iterator[tuple[Zone, int]]:
    zone, port = Zone(), free_port()
    server = DNSServer(zone, address="127.0.0.1", port=port, logger=DNSLogger("-request,-reply"))
    server.start_thread()
    try:
        yield zone, port
    finally:
        server.stop()
        server.server.server_close()


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
