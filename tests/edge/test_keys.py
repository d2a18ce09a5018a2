"""API keys at a real edge: who comes in, what each may use and see, and that no secret stays anywhere."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import requests
import yaml

from control.edge.keys import tell_running
from control.edge.render import Sources
from control.errors import EdgeError
from control.fleet.load import load
from control.keys import store
from control.keys.secrets import hash_of
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import alphabet_fleet
from tests.support.net import REPOSITORY, wait_until

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
#: Secrets of the keys below; a word that stands in each, so that a search finds any of them.
CANARY = "canary"
ALICE, BOB, CAROL, OLD, GONE = (f"sk-{CANARY}-{name}-0123456789" for name in ("alice", "bob", "carol", "old", "gone"))
KEYS: dict[str, Any] = {
    "alice": {"hash": hash_of(ALICE), "ends": "6789"},
    "bob": {
        "hash": hash_of(BOB),
        "models": ["beta"],
        "priority": "low",
        "previous": {"hash": hash_of(OLD), "until": "2099-01-01"},
    },
    "carol": {"hash": hash_of(CAROL), "enabled": False},
    "gone": {"hash": hash_of(GONE), "expires": "2020-01-01"},
}


@dataclass
class Place:
    """An edge that asks for keys, and its engines."""

    edge: Edge
    engines: list[ScriptedEngine]

    def keys(self, keys: dict[str, Any]) -> None:
        """Write keys.yaml, whole, as an editor does."""
        (self.edge.folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}, sort_keys=False))

    def status(self, secret: str | None, path: str = "/v1/models") -> int:
        return self.edge.get(path, headers=bearer(secret) if secret else {}).status_code


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture(scope="module")
def _place(_engines: list[ScriptedEngine]) -> Iterator[Place]:
    fleet = alphabet_fleet(_engines[:2], _engines[2])
    fleet["edge"] |= {"keys": "keys.yaml", "cors": {"origins": ["https://chat.example.com"]}}
    edge = Edge(fleet)
    here = Place(edge, _engines)
    here.keys(KEYS)
    with edge:
        yield here


@pytest.fixture
def place(_place: Place) -> Iterator[Place]:
    for engine in _place.engines:
        engine.reset()
    yield _place
    _place.edge.idle()
    _place.edge.check_log()


@pytest.fixture
def edge(place: Place) -> Edge:
    return place.edge


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {ALICE}"},
        {"authorization": f"bearer {ALICE}"},
        {"Authorization": f"BEARER   {ALICE}"},
        {"Authorization": f"Bearer \t {ALICE}"},
        {"x-api-key": ALICE},
        {"X-API-Key": ALICE},
        {"Authorization": f"Bearer {ALICE}", "x-api-key": "sk-another"},
        {"Authorization": "Bearer", "x-api-key": ALICE},
        {"Authorization": "Basic YWxpY2U6eA==", "x-api-key": ALICE},
    ],
    ids=range(9),
)
def test_a_known_key_comes_in(edge: Edge, headers: dict[str, str]) -> None:
    """Authorization with a token comes first; x-api-key counts when there is none."""
    with edge.raw() as client:
        client.request(CHAT, chat("alpha"), headers=headers)
        assert client.head().status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer   "},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": ALICE},
        {"Authorization": f"Bearer{ALICE}"},
        {"x-api-key": ""},
        {"api-key": ALICE},
        {"Cookie": f"Authorization=Bearer {ALICE}"},
    ],
    ids=range(10),
)
def test_without_a_key_nobody_comes_in(edge: Edge, headers: dict[str, str]) -> None:
    with edge.raw() as client:
        client.request(CHAT, chat("alpha"), headers=headers)
        head = client.head()
        assert head.status == 401 and head.headers["www-authenticate"] == "Bearer"
        assert b"missing_api_key" in client.body(head)


@pytest.mark.parametrize(
    "secret",
    [
        "x", ALICE + "x", ALICE[:-1], ALICE.upper(), f"{ALICE} {ALICE}", f"{ALICE},", f'"{ALICE}"', "\u00e4",
        "a" * 4096, "a" * 5000, hash_of(ALICE), hash_of(ALICE).removeprefix("sha256:"), "alice",
    ],
    ids=lambda secret: f"{secret[:12]}-{len(secret)}",
)  # fmt: skip
def test_any_other_key_is_invalid(edge: Edge, secret: str) -> None:
    """The hash is no key: keys.json must not be worth stealing."""
    for name, value in (("Authorization", f"Bearer {secret}"), ("x-api-key", secret)):
        answer = edge.post(CHAT, chat("alpha"), headers={name: value.encode("latin-1")})
        message = check_error(answer, 401, "invalid_api_key")
        assert secret not in message or len(secret) < 2
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_wrong_bearer_is_not_made_good_by_the_other_header(edge: Edge) -> None:
    answer = edge.post(CHAT, chat("alpha"), headers={**bearer("sk-wrong"), "x-api-key": ALICE})
    check_error(answer, 401, "invalid_api_key")


def test_disabled_and_expired_keys_are_told_so(edge: Edge) -> None:
    for secret, word in ((CAROL, "disabled"), (GONE, "expired")):
        message = check_error(edge.post(CHAT, chat("alpha"), headers=bearer(secret)), 401, "invalid_api_key")
        assert word in message


def test_errors_have_the_shape_of_their_api(edge: Edge) -> None:
    body = {"model": "alpha", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    answer = edge.post(MESSAGES, body)
    check_error(answer, 401, "missing_api_key", anthropic=True)
    assert answer.json()["error"]["type"] == "authentication_error"
    answer = edge.post(MESSAGES, body, headers={"x-api-key": BOB})
    check_error(answer, 403, "model_not_allowed", anthropic=True)
    assert answer.json()["error"]["type"] == "permission_error"
    answer = edge.post(CHAT, chat("alpha"), headers=bearer(BOB))
    assert answer.json()["error"] | {"message": ""} == {
        "message": "", "type": "permission_error", "param": "model", "code": "model_not_allowed"
    }  # fmt: skip


def test_a_path_that_is_not_there_and_a_wrong_method_need_no_key(edge: Edge) -> None:
    check_error(edge.get("/nowhere"), 404, "path_not_found")
    check_error(edge.get(CHAT), 405, "method_not_allowed")


def test_a_browser_may_ask_first_without_a_key(edge: Edge) -> None:
    headers = {"Origin": "https://chat.example.com", "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization"}  # fmt: skip
    answer = edge.call("OPTIONS", CHAT, headers=headers)
    assert answer.status_code == 204 and answer.headers["Access-Control-Allow-Headers"] == "authorization"
    refused = edge.post(CHAT, chat("alpha"), headers={"Origin": "https://chat.example.com"})
    assert refused.status_code == 401
    assert refused.headers["Access-Control-Allow-Origin"] == "https://chat.example.com"


def test_the_body_is_not_read_before_the_key(edge: Edge) -> None:
    """Strangers must not fill memory and disk: the refusal comes before a large body has been sent."""
    with edge.raw() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: e\r\nContent-Type: application/json\r\n"
                    f"Content-Length: 8000000\r\n\r\n".encode())  # fmt: skip
        assert client.head().status == 401


def test_a_key_uses_its_models_only(place: Place) -> None:
    edge = place.edge
    assert edge.post(CHAT, chat("beta"), headers=bearer(BOB)).status_code == 200
    for name in ("alpha", "alpha-chat", "alpha-lora"):
        message = check_error(edge.post(CHAT, chat(name), headers=bearer(BOB)), 403, "model_not_allowed")
        assert "bob" in message and "alpha" in message
    form = {"file": ("a.wav", b"x"), "model": (None, "alpha")}
    answer = edge.call("POST", "/v1/audio/transcriptions", files=form, headers=bearer(BOB))
    check_error(answer, 403, "model_not_allowed")
    assert all(engine.started() == 0 for engine in place.engines[:2])


def test_a_key_sees_its_models_only(edge: Edge) -> None:
    def names(secret: str) -> list[str]:
        return [model["id"] for model in edge.get("/v1/models", headers=bearer(secret)).json()["data"]]

    assert names(BOB) == ["beta"]
    assert set(names(ALICE)) == {"alpha", "alpha-chat", "alpha/chat:v2", "alpha-lora", "beta"}
    assert edge.get("/v1/models/beta", headers=bearer(BOB)).json()["id"] == "beta"
    for name in ("alpha", "alpha-chat", "alpha-lora", "gamma"):
        message = check_error(edge.get(f"/v1/models/{name}", headers=bearer(BOB)), 404, "model_not_found")
        assert "does not exist" in message
    message = check_error(edge.post(CHAT, chat("gamma"), headers=bearer(BOB)), 404, "model_not_found")
    assert "beta" in message and "alpha" not in message
    for path in ("/v1/models", "/v1/models/beta"):
        check_error(edge.get(path), 401, "missing_api_key")


def test_the_key_before_a_rotation_lets_in_until_its_time_is_up(place: Place) -> None:
    assert place.status(OLD) == 200
    assert place.edge.post(CHAT, chat("alpha"), headers=bearer(OLD)).status_code == 403


def test_the_log_and_the_running_requests_have_the_keys_name(edge: Edge) -> None:
    edge.post(CHAT, chat("beta"), headers={**bearer(OLD), "X-Request-Id": "of-bob"})
    edge.post(CHAT, chat("alpha"), headers={**bearer(CAROL), "X-Request-Id": "of-carol"})
    edge.post(CHAT, chat("alpha"), headers={**bearer("x"), "X-Request-Id": "of-nobody"})
    assert edge.log_of("of-bob")["key"] == "bob"
    carol = edge.log_of("of-carol")
    assert (carol["key"], carol["end"], carol["error"]) == ("carol", "refused", "invalid_api_key")
    assert edge.log_of("of-nobody")["key"] is None
    with edge.raw() as client:
        client.request(CHAT, chat("alpha", stream=True, tokens=40, delay_ms=50),
                       headers={**bearer(ALICE), "X-Request-Id": "running"})  # fmt: skip
        assert client.head().status == 200
        running = edge.admin("GET", "/requests").json()["requests"]
        assert [request["key"] for request in running if request["id"] == "running"] == ["alice"]
    edge.idle()


def test_a_response_belongs_to_the_key_that_made_it(place: Place) -> None:
    """For another key it does not exist: not to be read, not to be cancelled, not to be continued."""
    edge = place.edge
    made = edge.post(RESPONSES, {"model": "beta", "input": "hi"}, headers=bearer(BOB)).json()["id"]
    path = f"{RESPONSES}/{made}"
    assert edge.get(path, headers=bearer(BOB)).status_code == 200
    assert edge.get(path, headers=bearer(OLD)).status_code == 200
    before = [engine.counters()["started"] for engine in place.engines]
    unknown = check_error(edge.get(f"{RESPONSES}/resp_0000", headers=bearer(ALICE)), 404, "response_not_found")
    message = check_error(edge.get(path, headers=bearer(ALICE)), 404, "response_not_found")
    assert message == unknown.replace("resp_0000", made)
    check_error(edge.post(f"{path}/cancel", data=b"", headers=bearer(ALICE)), 404, "response_not_found")
    check_error(edge.get(path), 401, "missing_api_key")
    body = {"model": "beta", "input": "more", "previous_response_id": made}
    check_error(edge.post(RESPONSES, body, headers=bearer(ALICE)), 404, "response_not_found")
    assert [engine.counters()["started"] for engine in place.engines] == before
    assert edge.post(RESPONSES, body, headers=bearer(BOB)).status_code == 200
    assert edge.post(f"{path}/cancel", data=b"", headers=bearer(BOB)).json()["status"] == "cancelled"


def test_a_response_id_cannot_be_taken_over(place: Place) -> None:
    """vLLM lets clients choose the id."""
    edge = place.edge
    made = "resp_chosen"
    sent = {"model": "beta", "input": "hi", "request_id": made}
    for secret in (BOB, ALICE):
        assert edge.post(RESPONSES, sent, headers=bearer(secret)).json()["id"] == made
    check_error(edge.get(f"{RESPONSES}/{made}", headers=bearer(ALICE)), 404, "response_not_found")
    assert edge.get(f"{RESPONSES}/{made}", headers=bearer(BOB)).status_code == 200


def test_with_one_engine_too_an_unknown_response_is_nobodys(engine: ScriptedEngine) -> None:
    """Without keys it goes to the only engine, which may still have it."""
    fleet = {"edge": {"keys": "keys.yaml"}, "models": {"alpha": {"backends": [{"url": engine.url}]}}}
    edge = Edge(fleet)
    Place(edge, []).keys(KEYS | {"bob": {"hash": hash_of(BOB)}})
    with edge:
        made = edge.post(RESPONSES, {"model": "alpha", "input": "hi"}, headers=bearer(BOB)).json()["id"]
        check_error(edge.get(f"{RESPONSES}/{made}", headers=bearer(ALICE)), 404, "response_not_found")
        assert edge.get(f"{RESPONSES}/{made}", headers=bearer(BOB)).status_code == 200


def test_no_secret_reaches_an_engine_or_stays_anywhere(place: Place) -> None:
    """Log, metrics, state, files, error messages, command lines: nowhere is a client's key, right or wrong."""
    edge = place.edge
    seen = []
    for headers in (bearer(ALICE), {"x-api-key": ALICE}, {**bearer(ALICE), "x-api-key": BOB}):
        answer = edge.post(CHAT, chat("alpha", echo=True), headers=headers)
        assert answer.status_code == 200
        seen.append(answer.text)
    for secret in (CAROL, GONE, f"sk-{CANARY}-wrong"):
        for headers in (bearer(secret), {"x-api-key": secret}):
            seen.append(edge.post(CHAT, chat("alpha"), headers={**headers, "X-Request-Id": "canary-done"}).text)
            seen.append(edge.get("/v1/models", headers=headers).text)
    wait_until("the last log line", lambda: any(line["id"] == "canary-done" for line in edge.log_lines()))
    seen += [edge.admin("GET", path).text for path in ("/state", "/metrics", "/requests")]
    for path in edge.folder.rglob("*"):
        if path.is_file():
            seen.append(path.read_text(errors="replace"))
    pids = [edge.process.pid(), *edge.workers()]
    seen += [" ".join(psutil.Process(pid).cmdline()) for pid in pids if pid]
    found = [re.findall(rf"sk-{CANARY}\S*", text) for text in seen]
    assert not any(found), found
    assert (edge.paths.conf / "keys.json").stat().st_mode & 0o777 == 0o600


def test_an_admin_call_refuses_what_it_cannot_serve_and_changes_nothing(place: Place) -> None:
    good = {"name": "a", "enabled": True, "priority": "normal", "weight": 1}
    digest = "0" * 64
    bad: list[Any] = [
        [], {}, {"version": 1}, {"version": "1", "keys": {}}, {"version": 1, "keys": {digest: 1}},
        {"version": 1, "keys": {"00": good}}, {"version": 1, "keys": {"Z" * 64: good}},
    ]  # fmt: skip
    wrong = ({"name": 'a"b'}, {"name": ""}, {"enabled": 1}, {"models": 1}, {"expires": "2027"}, {"weight": "1"})
    bad += [{"version": 1, "keys": {digest: {**good, **values}}} for values in wrong]
    for content in bad:
        answer = place.edge.admin("PUT", "/keys", json=content)
        assert answer.status_code == 400, content
        assert digest not in answer.text
    assert place.edge.admin("PUT", "/keys", data=b"{").status_code == 400
    assert requests.put(f"http://127.0.0.1:{place.edge.admin_port}/keys", json={}, timeout=5).status_code == 401
    assert [place.status(secret) for secret in (ALICE, "x")] == [200, 401]


def change(place: Place, work: Any, *rest: Any) -> Any:
    """One change as `signalbox keys` makes it: keys.yaml, then the running edge. Gives back what ``work`` did."""
    loaded = load(place.edge.fleet_file)
    done = work(loaded, *rest)
    found = done[1] if isinstance(done, tuple) else done
    assert "at once" in tell_running(place.edge.paths, found)
    return done[0] if isinstance(done, tuple) else done


def everywhere(place: Place, secret: str) -> set[int]:
    """What many new connections get: both workers are among those that answer."""
    return {place.edge.get("/v1/models", headers=bearer(secret), new_connection=True).status_code for _ in range(20)}


def test_changes_take_effect_at_once_and_running_streams_go_on(engine: ScriptedEngine) -> None:
    """No reload: the workers stay, and a revoked key's running answer is finished."""
    edge = Edge({"edge": {"keys": "keys.yaml"}, "models": {"alpha": {"backends": [{"url": engine.url}]}}})
    place = Place(edge, [engine])
    place.keys({"alice": {"hash": hash_of(ALICE)}})
    with edge:
        workers = set(edge.workers())
        later = change(place, store.create, "later", store.Wishes())
        assert everywhere(place, later) == {200}
        with edge.raw() as client:
            client.request(CHAT, chat("alpha", stream=True, tokens=30, delay_ms=50), headers=bearer(later))
            assert client.head().status == 200
            change(place, store.set_enabled, "later", False)
            assert everywhere(place, later) == {401}
            change(place, store.set_enabled, "later", True)
            assert everywhere(place, later) == {200}
            change(place, store.revoke, "later")
            assert everywhere(place, later) == {401}
            assert sum(1 for _ in client.events()) == 32
        new = change(place, store.rotate, "alice", 2)
        until = time.time() + 3
        assert everywhere(place, new) == {200}
        if time.time() < until - 2:
            assert place.status(ALICE) == 200
        wait_until("the old secret to end", lambda: place.status(ALICE) == 401, 5)
        newer = change(place, store.rotate, "alice")
        assert [place.status(secret) for secret in (newer, new, ALICE)] == [200, 401, 401]
        assert set(edge.workers()) == workers
        edge.idle()


def test_keys_survive_a_reload_a_restart_and_a_killed_worker(engine: ScriptedEngine) -> None:
    edge = Edge(
        {"edge": {"keys": "keys.yaml"}, "models": {"alpha": {"backends": [{"url": engine.url}]}}}, may_kill=True
    )
    place = Place(edge, [engine])
    place.keys({"alice": {"hash": hash_of(ALICE)}})
    with edge:
        secret = change(place, store.create, "later", store.Wishes())
        change(place, store.revoke, "alice")
        edge.reload(force=True)
        assert (everywhere(place, secret), everywhere(place, ALICE)) == ({200}, {401})
        for pid in edge.workers():
            edge.kill_worker(pid)
        wait_until("new workers", lambda: place.status(secret) == 200)
        assert everywhere(place, ALICE) == {401}
        edge.process.stop(quit=False)
        edge.start()
        Edge.running.remove(edge)  # start noted it a second time
        assert (everywhere(place, secret), everywhere(place, ALICE)) == ({200}, {401})


def test_a_reload_takes_a_hand_edited_file_and_switches_keys_on_and_off(engine: ScriptedEngine) -> None:
    fleet: dict[str, Any] = {"models": {"alpha": {"backends": [{"url": engine.url}]}}}
    with Edge(fleet) as edge:
        place = Place(edge, [engine])
        assert place.status(None) == 200
        place.keys({"alice": {"hash": hash_of(ALICE)}})
        edge.write({**fleet, "edge": {"keys": "keys.yaml"}})
        lines = edge.reload().lines()
        assert "key alice: added" in lines
        assert (everywhere(place, ALICE), place.status(None)) == ({200}, 401)
        place.keys({"bob": {"hash": hash_of(BOB)}})
        lines = edge.reload().lines()
        assert lines[:2] == ["key alice: removed", "key bob: added"] and "without a reload" in lines[-1]
        assert (everywhere(place, ALICE), everywhere(place, BOB)) == ({401}, {200})
        assert "Nothing changed" in edge.reload().lines()[-1]
        edge.write({**fleet, "edge": {"keys": "none"}})
        edge.reload()
        assert place.status(None) == 200


def test_a_failed_reload_lets_nobody_in_again(engine: ScriptedEngine) -> None:
    """Who was shut out stays out, whatever becomes of the rest."""
    fleet = {"edge": {"keys": "keys.yaml"}, "models": {"alpha": {"backends": [{"url": engine.url}]}}}
    edge = Edge(fleet)
    sources = Sources(lua=edge.folder / "lua", templates=REPOSITORY / "templates")
    shutil.copytree(REPOSITORY / "lua", sources.lua)
    edge.sources = sources
    place = Place(edge, [engine])
    place.keys({"alice": {"hash": hash_of(ALICE)}, "bob": {"hash": hash_of(BOB)}})
    with edge:
        assert everywhere(place, ALICE) == {200}
        place.keys({"bob": {"hash": hash_of(BOB)}})
        (sources.lua / "edge" / "pick.lua").write_text("this is no Lua\n")
        with pytest.raises(EdgeError, match="refused"):
            edge.reload()
        assert (everywhere(place, ALICE), everywhere(place, BOB)) == ({401}, {200})
        shutil.copy(REPOSITORY / "lua" / "edge" / "pick.lua", sources.lua / "edge")
        edge.reload(force=True)
        assert (everywhere(place, ALICE), everywhere(place, BOB)) == ({401}, {200})
        edge.check_log = lambda log=None: None  # type: ignore[method-assign]  # the broken module is in it, rightly


def test_ten_thousand_keys(place: Place) -> None:
    """They fit, are told within a second, and one of them is found as fast as before."""

    def hashed(number: int) -> str:
        return hashlib.sha256(f"sk-number-{number}".encode()).hexdigest()

    entry = {"enabled": True, "priority": "normal", "weight": 1, "models": ["alpha", "beta"], "expires": 4e9,
             "limits": {"requests_per_minute": 60, "tokens_per_day": 1_000_000}}  # fmt: skip
    version = place.edge.state()["keys_version"]
    kept = (place.edge.paths.conf / "keys.json").read_text()
    content = {"version": version + 1, "keys": {hashed(n): {**entry, "name": f"key-{n}"} for n in range(10_000)}}
    started = time.monotonic()
    try:
        for _ in range(4):  # a new text needs room beside the one in force
            assert place.edge.admin("PUT", "/keys", data=json.dumps(content)).status_code == 200
        assert everywhere(place, "sk-number-9999") == {200}
        assert everywhere(place, ALICE) == {401}
        assert time.monotonic() - started < 20
    finally:
        assert place.edge.admin("PUT", "/keys", data=kept).status_code == 200
    assert everywhere(place, ALICE) == {200}
