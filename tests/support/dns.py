"""A name server on this machine that answers for one name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dnslib import QTYPE, RCODE, RR, A, DNSRecord
from dnslib.server import BaseResolver, DNSHandler, DNSLogger, DNSServer

from tests.support.net import free_port

NAME = "engine.test"


class Zone(BaseResolver):
    """Answers for ``name``; ``address`` None: it does not exist. ``ttl`` in seconds."""

    def __init__(self, ttl: int = 1, name: str = NAME) -> None:
        self.name = name
        self.address: str | None = None
        self.ttl = ttl
        self.asked = 0

    def resolve(self, request: DNSRecord, handler: DNSHandler) -> DNSRecord:
        self.asked += 1
        reply = request.reply()
        if self.address is None or str(request.q.qname) != self.name + ".":
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            reply.add_answer(RR(self.name, QTYPE.A, rdata=A(self.address), ttl=self.ttl))
        return reply


@contextlib.contextmanager
def name_server(ttl: int = 1, name: str = NAME) -> Iterator[tuple[Zone, int]]:
    """A zone, and the port at which 127.0.0.1 answers for it."""
    zone, port = Zone(ttl, name), free_port()
    server = DNSServer(zone, address="127.0.0.1", port=port, logger=DNSLogger("-request,-reply"))
    server.start_thread()
    try:
        yield zone, port
    finally:
        server.stop()
        server.server.server_close()
