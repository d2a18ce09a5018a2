"""The control plane's few commands of Redis: password, database, sentinels, TLS, and what it says when one is wrong."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from control.errors import SharingError
from control.fleet.shared_state import SharedState
from control.sharing.redis import connected
from tests.support.net import free_port, wait_until
from tests.support.redis import Redis, needs_redis

pytestmark = needs_redis


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis(password="canary-secret") as one:
        yield one


@pytest.fixture
def state(redis: Redis, tmp_path: Path) -> SharedState:
    (tmp_path / "redis.pw").write_text("canary-secret\nanother line\n")
    return SharedState("127.0.0.1", redis.port, 0, False, None, tmp_path / "redis.pw", (), None, "local", "sb", 250)


def ping(state: SharedState) -> object:
    with connected(state) as link:
        return link.call("PING")


def fails(state: SharedState) -> str:
    with pytest.raises(SharingError) as caught:
        ping(state)
    assert caught.value.hint and "canary" not in str(caught.value)
    return caught.value.message


def test_password_user_and_database(redis: Redis, state: SharedState, tmp_path: Path) -> None:
    with connected(replace(state, database=3)) as link:
        assert link.call("SET", "a", "ü\r\n") == "OK"
        assert link.call("GET", "a") == "ü\r\n" and link.call("GET", "none") is None
        assert link.call("EVAL", "return {1, 'two', {}}", 0) == [1, "two", []]
    with connected(state) as link:
        assert link.call("EXISTS", "a") == 0
        link.call("ACL", "SETUSER", "edge", "on", ">canary-other", "~*", "+@all")
    (tmp_path / "other.pw").write_text("canary-other")
    assert ping(replace(state, user="edge", password_file=tmp_path / "other.pw")) == "PONG"
    assert "WRONGPASS" in fails(replace(state, password_file=tmp_path / "other.pw"))
    assert "cannot be read" in fails(replace(state, password_file=tmp_path / "missing.pw"))
    with pytest.raises(SharingError, match="NOAUTH"):
        ping(replace(state, password_file=None))


def test_nobody_there_and_somebody_else(state: SharedState) -> None:
    assert "does not answer" in fails(replace(state, port=free_port()))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"$99999999999\r\n"):
                link, _ = listener.accept()
                with link:
                    link.recv(1000)
                    link.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        other = replace(state, port=listener.getsockname()[1], password_file=None)
        assert "not Redis' protocol" in fails(other)
        assert "closed" in fails(other)
        assert "not Redis' protocol" in fails(other)
        thread.join(5)


def test_the_sentinels_master(redis: Redis, state: SharedState, tmp_path: Path) -> None:
    port, settings = free_port(), tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor one 127.0.0.1 {redis.port} 1\n"
        "sentinel auth-pass one canary-secret\n"
    )
    sentinel = subprocess.Popen(["redis-server", str(settings), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        # The address in the URL leads nowhere: only its database counts.
        sought = replace(state, port=1, sentinels=(("127.0.0.1", free_port()), ("127.0.0.1", port)), master="one")
        assert wait_until("the sentinel", lambda: answers(sought), 5) == "PONG"
        assert "no sentinel tells where the Redis other is" in fails(replace(sought, master="other"))
    finally:
        sentinel.kill()
        sentinel.wait()


def answers(state: SharedState) -> object:
    try:
        return ping(state)
    except SharingError:
        return None


def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, port = trustme.CA(), free_port()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "redis.pem"))
    pem = str(tmp_path / "redis.pem")
    with Redis(tls_port=str(port), tls_cert_file=pem, tls_key_file=pem, tls_auth_clients="no",
               tls_ca_cert_file=str(tmp_path / "ca.pem")):  # fmt: skip
        state = SharedState("localhost", port, 0, True, None, None, (), None, "local", "sb", 250)
        assert "TLS" in fails(state)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert ping(state) == "PONG"
        assert "TLS" in fails(replace(state, host="127.0.0.1"))
