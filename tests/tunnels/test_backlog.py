"""Connections that wait at a listener: as the kernel counts them, and when that means that it hangs."""

from __future__ import annotations

import socket

import pytest

from control.tunnels import backlog
from control.tunnels.backlog import HUNG, KNOCK, Knocks, pending, waiting

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINES = """\
   0: 0200007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000  0 0 1 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 1 1 0000000000000000 100 0 0 10 0
   2: 0300007F:1F90 0100007F:1234 01 00000000:00000009 00:00000000 00000000  0 0 1 1 0000000000000000 100 0 0 10 0
"""


def test_the_kernels_table() -> None:
    assert pending(HEAD + LINES, ("127.0.0.2", 8080)) == 3
    assert pending(HEAD + LINES, ("127.0.0.1", 8080)) == 0 == pending(HEAD + LINES, ("127.0.0.2", 8081))
    assert pending(HEAD + LINES, ("127.0.0.3", 8080)) == 0, "a connection, not a listener"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_itself(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen(16)
        port = listener.getsockname()[1]
        assert waiting((host, port)) == 0
        callers = [socket.create_connection((host, port)) for _ in range(2)]
        assert waiting((host, port)) == 2
        for _ in callers:
            listener.accept()[0].close()
        assert waiting((host, port)) == 0
        for caller in callers:
            caller.close()


def test_hung_is_who_takes_in_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, queue = [100.0], [0]
    monkeypatch.setattr(backlog, "waiting", lambda _: queue[0])
    knocks = Knocks(("127.0.0.1", 1), lambda: clock[0])

    def after(seconds: float, count: int) -> bool:
        clock[0] += seconds
        queue[0] = count
        return knocks.hung()

    assert not any(after(KNOCK, 0) for _ in range(10))
    assert not after(KNOCK, 2) and not after(KNOCK, 1) and not after(KNOCK, 0), "slow, but at work"
    assert not after(KNOCK, 2) and not after(1.0, 2)
    assert [after(KNOCK, 2) for _ in range(round(HUNG / KNOCK))][-1]
