"""What passes to engines and clients beside the body: identity, forwarding, keys, secrets in files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import requests

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model

SPOOFED = {
    "Authorization": "Bearer canary-client-key",
    "Cookie": "session=canary-cookie",
    "X-Forwarded-For": "10.0.0.5",
    "X-Real-IP": "10.0.0.5",
    "Forwarded": "for=10.0.0.5",
    "X-Forwarded-Host": "evil.example.com",
    "X-Data-Parallel-Rank": "3",
    "X-Vllm-Priority": "-100",
    "X-Session-ID": "somebody",
    "X-Gateway-Model": "beta",
    "X-Signalbox-Model": "beta",
    "X-Gateway-Destination-Endpoint": "10.0.0.1:80",
    "Endpoint-Load-Metrics-Format": "JSON",
    "Proxy": "http://evil.example.com",
    "Proxy-Authorization": "Basic canary",
    "Accept-Encoding": "gzip",
    "Expect": "",
    "TE": "trailers",
    "Upgrade": "h2c",
    "X-Api-Key": "canary-x-api-key",
    "Origin": "https://evil.example.com",
    "Range": "bytes=0-1",
}


def test_identity_and_internal_headers_never_reach_an_engine(alphabet: Alphabet) -> None:
    """A client's headers could steer the engine (rank, priority), claim an address, or carry the client's own key."""
    answer = alphabet.edge.post(CHAT, chat("alpha", echo=True), headers=SPOOFED)
    seen = {name.lower(): value for name, value in answer.json()["headers"]}
    allowed = {"host", "content-type", "content-length", "accept", "user-agent", "x-request-id", "traceparent"}
    assert set(seen) <= allowed, set(seen) - allowed
    assert seen["host"] != "evil.example.com"


def test_what_engines_need_does_pass(alphabet: Alphabet) -> None:
    sent = {
        "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "Tracestate": "a=b",
        "Anthropic-Version": "2023-06-01",
        "Anthropic-Beta": "tools",
        "User-Agent": "probe/1.0",
    }
    answer = alphabet.edge.post(CHAT, chat("alpha", echo=True), headers=sent)
    seen = {name.lower(): value for name, value in answer.json()["headers"]}
    assert {name: seen.get(name.lower()) for name in sent} == sent


def test_pass_headers_adds_to_the_list(engine: ScriptedEngine) -> None:
    with Edge(one_model("alpha", engine, pass_headers=["X-Session-ID"])) as edge:
        seen = dict(edge.post(CHAT, chat("alpha", echo=True), headers=SPOOFED).json()["headers"])
    assert seen["x-session-id"] == "somebody"
    assert "x-vllm-priority" not in seen


@pytest.mark.parametrize("given", ["edge-abc.1:2_3", "a" * 128])
def test_a_sane_request_id_is_kept_passed_on_and_returned(alphabet: Alphabet, given: str) -> None:
    answer = alphabet.edge.post(CHAT, chat("alpha"), headers={"X-Request-Id": given})
    assert answer.headers["X-Request-Id"] == given
    assert answer.json()["id"] == f"chatcmpl-{given}"
    assert alphabet.edge.log_of(given)["status"] == 200


@pytest.mark.parametrize("given", [None, "", "a" * 129, "a b", 'a"b', "a\\b", "a;b", "\u00e4", "${jndi:x}", "<script>"])
def test_any_other_request_id_is_replaced(alphabet: Alphabet, given: str | None) -> None:
    """The id reaches logs, engines and clients: nobody may put a line, a quote or a page into it."""
    headers = {} if given is None else {"X-Request-Id": given.encode().decode("latin-1")}
    answer = alphabet.edge.post(CHAT, chat("alpha", echo=True), headers=headers)
    made = answer.headers["X-Request-Id"]
    assert made != given and 16 <= len(made) <= 64 and made.isalnum()
    assert dict(answer.json()["headers"])["x-request-id"] == made
    assert answer.headers["X-Request-Id"].count(",") == 0


def test_errors_carry_the_request_id_too(alphabet: Alphabet) -> None:
    for path in (CHAT, "/nowhere"):
        answer = alphabet.edge.post(path, data=b"nope", headers={"X-Request-Id": "with-error"})
        assert answer.headers["X-Request-Id"] == "with-error"


def test_the_servers_version_is_not_told(alphabet: Alphabet) -> None:
    for answer in (alphabet.edge.post(CHAT, chat("alpha")), alphabet.edge.get("/nowhere")):
        assert not any(character.isdigit() for character in answer.headers.get("Server", ""))
        assert "X-Powered-By" not in answer.headers


def test_an_engine_steers_nothing_in_the_edge(alphabet: Alphabet) -> None:
    """X-Accel-Redirect of an engine would make nginx fetch another path; an engine's CORS would open the API."""
    headers = {
        "X-Accel-Redirect": "/v1/models",
        "X-Accel-Buffering": "yes",
        "X-Accel-Limit-Rate": "1",
        "Access-Control-Allow-Origin": "*",
        "X-Request-Id": "the-engines-own",
    }
    answer = alphabet.edge.post(CHAT, chat("alpha", headers=headers), headers={"X-Request-Id": "mine"})
    assert answer.json()["object"] == "chat.completion"
    assert answer.headers["X-Request-Id"] == "mine"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_engines_key_is_added_and_found_nowhere(tmp_path: Path) -> None:
    """Keys stood in nginx.conf, in logs and on status pages of other gateways."""
    key = "canary-engine-key-8f3a"
    file = tmp_path / "gpu.key"
    file.write_text(f"{key}\n")
    for folder in (file, *file.parents):
        if folder.owner() == "root" and str(folder).startswith(str(tmp_path.parent.parent)):
            folder.chmod(folder.stat().st_mode | 0o055)
    with ScriptedEngine("alpha", api_key=key) as engine:
        fleet = one_model("alpha", engine)
        fleet["models"]["alpha"]["backends"][0]["key_file"] = str(file)
        with Edge(fleet) as edge:
            answer = edge.post(CHAT, chat("alpha"), headers={"Authorization": "Bearer canary-client-key"})
            assert answer.status_code == 200, answer.text
            assert edge.post(CHAT, chat("nobody")).status_code == 404
            shown = edge.admin("GET", "/state").text + edge.admin("GET", "/metrics").text + answer.text
            edge.log_lines()
            texts = {str(path): path.read_text(errors="replace") for path in edge.folder.rglob("*") if path.is_file()}
    assert key not in shown
    assert not [path for path, text in texts.items() if key in text]
    assert not [path for path, text in texts.items() if "canary-client-key" in text]


def test_no_prompt_and_no_query_reaches_a_log(alphabet: Alphabet) -> None:
    secret = "canary-prompt-77c1"
    alphabet.edge.post(CHAT + "?api_key=canary-query-77c2", chat("alpha", text=secret))
    alphabet.edge.post(CHAT + "?api_key=canary-query-77c2", chat(secret))
    alphabet.edge.post(CHAT + "?api_key=canary-query-77c2", chat("alpha", text=secret, die=True))
    alphabet.edge.get(f"/{'x' * 10}?token=canary-query-77c2")
    lines = str(alphabet.edge.log_lines())
    assert "canary-prompt" not in lines and "canary-query" not in lines
    assert "canary-prompt" not in alphabet.edge.error_log()


def test_the_admin_listener_wants_its_token(alphabet: Alphabet) -> None:
    edge = alphabet.edge
    url = f"http://127.0.0.1:{edge.admin_port}"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {edge.token}x"},
                    {"Authorization": edge.token}, {"Authorization": "Bearer "}):  # fmt: skip
        for method, path in (("GET", "/state"), ("GET", "/metrics"), ("PUT", "/fleet"), ("GET", "/")):
            assert requests.request(method, url + path, headers=headers, timeout=5).status_code == 401
    mode = edge.paths.admin_token.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_the_public_listener_has_no_admin_calls(alphabet: Alphabet) -> None:
    headers = {"Authorization": f"Bearer {alphabet.edge.token}"}
    for path in ("/state", "/metrics", "/fleet", "/edge-error"):
        check_error(alphabet.edge.get(path, headers=headers), 404, "path_not_found")


def test_the_client_is_the_peer_unless_a_proxy_is_trusted(engine: ScriptedEngine) -> None:
    """Anybody can write X-Forwarded-For; only the address ranges that the fleet names are believed."""
    headers = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
    for trusted, expected in (([], "127.0.0.1"), (["127.0.0.0/8"], "198.51.100.7")):
        with Edge(one_model("alpha", engine, trusted_proxies=trusted)) as edge:
            edge.post(CHAT, chat("alpha"), headers={**headers, "X-Request-Id": "from-afar"})
            assert edge.log_of("from-afar")["client"] == expected
