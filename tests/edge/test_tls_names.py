"""Certificates for several names on one listener."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model

#: File → names that it is for; those of the first are for nobody in particular.
CERTIFICATES = {
    "edge": ["localhost", "127.0.0.1"],
    "chat": ["chat.example.com"],
    "wild": ["*.example.org", "example.org"],
    "long": ["a" * 60 + "." + "b" * 60 + "." + "c" * 60 + ".test"],
}


def write(folder: Path, authority: trustme.CA, name: str, *names: str) -> dict[str, str]:
    """A certificate for these names, and where it lies."""
    path = folder / f"{name}.pem"
    authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(str(path))
    return {"certificate": str(path), "key": str(path)}


def settings(folder: Path, authority: trustme.CA) -> dict[str, Any]:
    tls: dict[str, Any] = write(folder, authority, "edge", *CERTIFICATES["edge"])
    tls["others"] = [
        {"names": names, **write(folder, authority, name, *names)}
        for name, names in CERTIFICATES.items()
        if name != "edge"
    ]
    return tls


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("alpha") as engine:
        yield engine


@pytest.fixture(scope="module")
def edge(backend: ScriptedEngine, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    fleet = one_model("alpha", backend, tls=settings(tmp_path_factory.mktemp("names"), authority))
    fleet["rules"] = [{"host": "*.example.org", "path": "/org"}]
    with Edge(fleet) as one:
        yield one


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def shown(edge: Edge, trust: ssl.SSLContext, name: str | None, protocol: str = "http/1.1") -> set[str]:
    """The names in the certificate that a client gets which asks for ``name``."""
    trust.check_hostname = False
    trust.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", edge.port), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname=name) as secure,
    ):
        assert secure.selected_alpn_protocol() == protocol
        content: Any = secure.getpeercert()
        return {value for _, value in content["subjectAltName"]}


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
@pytest.mark.parametrize(
    ("name", "certificate"),
    [
        ("chat.example.com", "chat"), ("CHAT.example.com", "chat"), ("a.example.org", "wild"),
        ("example.org", "wild"), (CERTIFICATES["long"][0], "long"),
        ("localhost", "edge"), ("example.com", "edge"), ("other.example.com", "edge"), (None, "edge"),
    ],
)  # fmt: skip
def test_each_name_gets_its_certificate_and_all_others_the_first(
    edge: Edge, trust: ssl.SSLContext, name: str | None, certificate: str, protocol: str
) -> None:
    assert shown(edge, trust, name, protocol) == set(CERTIFICATES[certificate])


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("sni", ["chat.example.com", "a.example.org", "localhost"])
def test_every_name_serves_whatever_the_host_says(
    edge: Edge, trust: ssl.SSLContext, backend: ScriptedEngine, sni: str, http2: bool
) -> None:
    with httpx.Client(http2=http2, verify=trust, base_url=edge.url) as client:
        for host in (sni, "chat.example.com", "b.example.org", "unknown.test"):
            options: dict[str, Any] = {"headers": {"Host": host}, "extensions": {"sni_hostname": sni}}
            answer = client.post(CHAT, json=chat("alpha", stream=True, tokens=2), **options)
            assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
            assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            assert "max-age" in answer.headers["Strict-Transport-Security"]
            answer = client.post(CHAT, json=chat("nobody"), **options)
            assert answer.json()["error"]["code"] == "model_not_found"
            # Rules go by the host, not by the name of the certificate.
            answer = client.post("/org" + CHAT, json=chat("alpha"), **options)
            assert answer.status_code == (200 if host.endswith(".example.org") else 404)


def test_a_reload_takes_a_changed_certificate(
    backend: ScriptedEngine, authority: trustme.CA, trust: ssl.SSLContext, tmp_path: Path
) -> None:
    fleet = one_model("alpha", backend, tls=settings(tmp_path, authority))
    with Edge(fleet) as edge:
        assert edge.reload().action == "nothing"
        write(tmp_path, authority, "chat", "chat.example.com", "new.example.com")
        assert edge.reload().action == "reloaded"
        assert shown(edge, trust, "chat.example.com") == {"chat.example.com", "new.example.com"}
        assert shown(edge, trust, "new.example.com") == set(CERTIFICATES["edge"])
        fleet["edge"]["tls"]["others"][0]["names"].append("new.example.com")
        edge.write(fleet)
        assert edge.reload().action == "reloaded"
        assert shown(edge, trust, "new.example.com") == {"chat.example.com", "new.example.com"}
