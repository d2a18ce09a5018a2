"""The admin client against the real edge, and against things that are no edge."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from control.edge import apply
from control.edge.admin import AdminClient, EdgeRefused, EdgeUnreachable, read_token
from control.edge.ports import free_port
from control.errors import EdgeError
from tests.control.edge_site import Place, place


@pytest.fixture(scope="module")
def edge() -> Iterator[Place]:
    with place() as here:
        apply.start(here.site)
        yield here


@pytest.fixture
def client(edge: Place) -> Iterator[AdminClient]:
    made = AdminClient(edge.admin, read_token(edge.site.paths.admin_token))
    yield made
    made.close()


def test_state_and_metrics(client: AdminClient) -> None:
    state = client.state()
    assert state["generation"] == "1"
    assert [backend["id"] for backend in state["backends"]] == ["m-1"]
    assert "# TYPE" in client.metrics()


def test_put_fleet(edge: Place, client: AdminClient) -> None:
    content = json.loads((edge.site.paths.conf / "fleet.json").read_text())
    assert client.put_fleet(json.dumps({**content, "version": 9})) == 9
    assert client.state()["fleet_version"] == 9


@pytest.mark.parametrize(("text", "reason"), [("{", "not a JSON object"), ("{}", "needs version")])
def test_a_refused_fleet_says_why_and_changes_nothing(client: AdminClient, text: str, reason: str) -> None:
    before = client.state()["fleet_version"]
    with pytest.raises(EdgeRefused, match=reason):
        client.put_fleet(text)
    assert client.state()["fleet_version"] == before


def test_a_wrong_token(edge: Place) -> None:
    with pytest.raises(EdgeRefused, match="refuses our token"):
        AdminClient(edge.admin, "0" * 64).state()


def test_the_environment_s_proxy_never_sees_the_token(client: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert client.state()["generation"] == "1"


def test_nobody_listens() -> None:
    with pytest.raises(EdgeUnreachable, match="Connection refused"):
        AdminClient(f"127.0.0.1:{free_port()}", "token").state()


def test_somebody_who_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = AdminClient(f"127.0.0.1:{server.getsockname()[1]}", "token", timeouts=(0.5, 0.2))
        with pytest.raises(EdgeUnreachable, match="time-out"):
            client.state()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff"])
def test_something_that_is_no_edge(body: bytes) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(EdgeRefused, match="is no edge"):
            AdminClient(f"127.0.0.1:{server.server_port}", "token").state()
        thread.join()


def test_no_token_yet() -> None:
    with place() as here, pytest.raises(EdgeError, match="never started"):
        read_token(here.site.paths.admin_token)
