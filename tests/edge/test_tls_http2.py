"""TLS on both sides: the public listener with HTTP/2, and engines on https addresses."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trustme

from control.edge.site import Site
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import wait_until


@pytest.fixture(scope="module")
def backend() -> Iterator[ScriptedEngine]:
    with ScriptedEngine("alpha") as engine:
        yield engine


@pytest.fixture(scope="module")
def edge(backend: ScriptedEngine, certificate: Path) -> Iterator[Edge]:
    """An edge that speaks TLS."""
    fleet = one_model("alpha", backend, tls={"certificate": str(certificate), "key": str(certificate)})
    with Edge(fleet) as one:
        yield one


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_http2_and_http1_both_serve(edge: Edge, trust: ssl.SSLContext) -> None:
    for http2 in (True, False):
        with httpx.Client(http2=http2, verify=trust, base_url=edge.url) as client:
            answer = client.post(CHAT, json=chat("alpha"))
            assert answer.status_code == 200
            assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
            assert "max-age" in answer.headers["Strict-Transport-Security"]
            assert client.post(CHAT, json=chat("nobody")).json()["error"]["code"] == "model_not_found"


def test_http2_bodies_of_every_size_arrive_whole(edge: Edge, trust: ssl.SSLContext) -> None:
    with httpx.Client(http2=True, verify=trust, base_url=edge.url) as client:
        for size in (10, 100_000, 3_000_000):
            body = httpx.Request("POST", "/", json=chat("alpha", text="x" * size, echo=True)).read()
            answer = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
            assert answer.json()["length"] == len(body)


def test_http2_streams_event_by_event(edge: Edge, trust: ssl.SSLContext) -> None:
    moments: list[float] = []
    with (
        httpx.Client(http2=True, verify=trust, base_url=edge.url) as client,
        client.stream("POST", CHAT, json=chat("alpha", stream=True, tokens=10, delay_ms=50)) as answer,
    ):
        text = ""
        for part in answer.iter_text():
            text += part
            moments.append(time.monotonic())
    assert text.endswith("data: [DONE]\n\n")
    assert len(moments) >= 8 and moments[-1] - moments[0] > 0.3


def test_an_http2_client_that_leaves_stops_the_engine(
    edge: Edge, trust: ssl.SSLContext, backend: ScriptedEngine
) -> None:
    backend.reset()
    with (
        httpx.Client(http2=True, verify=trust, base_url=edge.url) as client,
        client.stream("POST", CHAT, json=chat("alpha", stream=True, tokens=1000, delay_ms=20)) as answer,
    ):
        next(answer.iter_text())
        assert edge.in_flight() == 1
    wait_until("the engine to see it", lambda: backend.counters()["aborted"].get(CHAT) == 1, 1.0)
    edge.idle(1.0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_current_versions_of_tls_are_spoken(edge: Edge, trust: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    trust.minimum_version = trust.maximum_version = version
    with edge.raw(tls=trust) as client:
        client.request("/v1/models", method="GET")
        assert client.head().status == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_refused(edge: Edge) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", edge.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain)


def test_plain_http_on_the_tls_port_gets_a_clear_answer(edge: Edge) -> None:
    with edge.raw() as client:
        client.request(CHAT, chat("alpha"))
        head = client.head()
        assert head.status == 400
        assert b"tls_required" in client.body(head)


def https_fleet(engine: ScriptedEngine, host: str, ca: Path | None) -> dict[str, object]:
    backend = {"id": "rented", "url": f"https://{host}:{engine.port}"}
    if ca is not None:
        backend["ca"] = str(ca)
    return {"models": {"alpha": {"timeouts": {"connect": "1s"}, "backends": [backend]}}}


def test_an_engine_behind_https_is_reached_by_its_name(certificate: Path) -> None:
    """SNI and the certificate's name are checked against the address in the fleet; connections are reused."""
    with ScriptedEngine("alpha", tls_certificate=str(certificate)) as engine:
        fleet = https_fleet(engine, "localhost", certificate.with_name("ca.pem"))
        with Edge(fleet) as edge:
            for number in range(20):
                assert edge.post(CHAT, chat("alpha", stream=number % 2 == 0, tokens=2)).status_code == 200
            seen = dict(edge.post(CHAT, chat("alpha", echo=True)).json()["headers"])
            assert seen["host"].startswith("localhost")
            counters = engine.counters()
            assert counters["started"][CHAT] == 21
            assert counters["connections"]["with_post"] <= 2


class Trusting(Edge):
    """An edge on a machine whose system trusts only the authorities in bundle.pem, in the edge's folder."""

    @property
    def site(self) -> Site:
        site = super().site
        profile = replace(site.engine.profile, ca_bundle=str(self.folder / "bundle.pem"))
        return replace(site, engine=replace(site.engine, profile=profile))


@pytest.mark.parametrize("trusted", [True, False])
def test_the_systems_authorities_count_for_probes_and_requests(certificate: Path, trusted: bool) -> None:
    """Without ``ca``: what the probes check, in Lua, and what nginx checks, with two origins in one location."""
    with (
        ScriptedEngine("alpha", tls_certificate=str(certificate)) as first,
        ScriptedEngine("alpha", tls_certificate=str(certificate)) as second,
    ):
        urls = [f"https://localhost:{engine.port}" for engine in (first, second)]
        model = {"backends": [{"url": url} for url in urls], "routing": {"policy": "round_robin"}}
        edge = Trusting({"models": {"alpha": model}}, ready=False)
        bundle = certificate.with_name("ca.pem" if trusted else "other-ca.pem")
        (edge.folder / "bundle.pem").write_bytes(bundle.read_bytes())  # workers must be able to read it
        with edge:
            if trusted:
                edge.until_ready()
                for _ in range(6):
                    assert edge.post(CHAT, chat("alpha")).status_code == 200
                assert (first.started(), second.started()) == (3, 3)
                seen = dict(edge.post(CHAT, chat("alpha", echo=True)).json()["headers"])
                assert seen["host"] in [f"localhost:{engine.port}" for engine in (first, second)]
                return

            def refused() -> bool:
                return all("certificate" in one["reason"] for one in edge.backends().values())

            wait_until("the probes to refuse", refused)
            check_error(edge.post(CHAT, chat("alpha")), 503, "no_backend_ready")
            assert first.started() + second.started() == 0


@pytest.mark.parametrize("case", ["unknown authority", "another name", "no TLS at all"])
def test_an_engine_that_cannot_prove_itself_gets_nothing(certificate: Path, case: str) -> None:
    """Without verification, whoever sits between would read prompts and keys."""
    options = {} if case == "no TLS at all" else {"tls_certificate": str(certificate)}
    if case == "another name":
        options = {"tls_certificate": str(certificate.with_name("elsewhere.pem"))}
    ca = certificate.with_name("other-ca.pem" if case == "unknown authority" else "ca.pem")
    with ScriptedEngine("alpha", **options) as engine:
        with Edge(https_fleet(engine, "localhost", ca), ready=False) as edge:
            for _ in range(2):
                answer = edge.post(CHAT, chat("alpha"))
                assert answer.status_code in (502, 503), answer.text
                check_error(answer, answer.status_code, answer.json()["error"]["code"])
                time.sleep(0.6)
            edge.idle()
        assert engine.started() == 0
