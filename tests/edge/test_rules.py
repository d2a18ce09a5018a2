"""Rules: which path, host or header leads to which model, pool and policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.edge.test_audio_multipart import field, file, form, send
from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, alphabet_fleet
from tests.support.net import wait_until
from tests.support.queueing import queue_length, served
from tests.support.raw import RawClient

RULES = [
    {"path": "/team-a", "model": "alpha"},
    {"path": "/beta", "model": "beta"},
    {"path": "/adapter", "model": "alpha-lora"},
    {"path": "/fast", "pool": "fast"},
    {"path": "/slow/deep", "pool": "slow", "policy": "least_loaded"},
    {"path": "/plain"},
    {"host": "*.example.com", "header": {"name": "X-Team", "value": "team b"}, "model": "beta"},
    {"host": "chat.example.com", "pool": "slow"},
    {"header": {"name": "X-Pool", "value": "fast"}, "pool": "fast"},
]


@pytest.fixture(scope="module")
def _ruled(_engines: list[ScriptedEngine]) -> Iterator[Alphabet]:
    fleet = alphabet_fleet(_engines[:2], _engines[2])
    fleet["rules"] = RULES
    fleet["edge"]["cors"] = {"origins": ["https://chat.example.com"]}
    for backend, pool in zip(fleet["models"]["alpha"]["backends"], ("fast", "slow"), strict=True):
        backend["pool"] = pool
    with Edge(fleet) as edge:
        yield Alphabet(edge, _engines[:2], _engines[2], 8 * 1024**2)


@pytest.fixture
def ruled(_ruled: Alphabet) -> Iterator[Alphabet]:
    """The alphabet with rules; alpha-1 is the fast one, alpha-2 the slow one, beta is in no pool."""
    for engine in _ruled.engines:
        engine.reset()
    yield _ruled
    _ruled.edge.idle()
    _ruled.edge.check_log()


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def started(alphabet: Alphabet, path: str = CHAT) -> list[int]:
    return [engine.started(path) for engine in alphabet.engines]


def as_sent(edge: Edge, path: str, body: Any = None, method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Status and JSON for a path that no client library normalises."""
    with edge.raw() as client:
        client.request(path, body, method, headers=headers)
        head = client.head()
        return head.status, json.loads(client.body(head) or b"null")


class TestModel:
    @pytest.mark.parametrize("name", ["alpha", "nobody", "", None, "org/beta:v1"])
    def test_the_rules_model_replaces_any_other(self, ruled: Alphabet, name: str | None) -> None:
        body = json.dumps({**chat(name, echo=True), "model": name}).encode()
        seen = ruled.edge.post("/beta" + CHAT, data=body).json()
        written = json.dumps(name).encode()
        assert seen["sha256"] == sha(body.replace(b'"model": ' + written, b'"model": "org/beta:v1"'))
        assert (seen["path"], seen["instance"]) == (CHAT, ruled.beta.counters()["instance"])

    @pytest.mark.parametrize("size", [10, 3_000_000])
    def test_a_body_without_a_model_gets_the_engines_name(self, ruled: Alphabet, size: int) -> None:
        body = json.dumps(chat(text="x" * size, echo=True)).encode()
        seen = ruled.edge.post("/beta" + CHAT, data=body).json()
        assert seen["sha256"] == sha(b'{"model":"org/beta:v1",' + body[1:])

    def test_odd_objects_get_it_too(self, ruled: Alphabet) -> None:
        for engine in ruled.alphas:
            engine.configure(echo=True)
        try:
            for start, rest in ((b"{", b"}"), (b" \n{", b" }"), (b"{", b'\n"prompt": "x"}')):
                seen = ruled.edge.post("/adapter/v1/completions", data=start + rest).json()
                comma = b"," if b"prompt" in rest else b""
                assert seen["sha256"] == sha(start + b'"model":"alpha-lora"' + comma + rest)
        finally:
            for engine in ruled.alphas:
                engine.configure(echo=False)

    @pytest.mark.parametrize("name", ["alpha", "alpha-lora", None])
    def test_an_adapter_keeps_its_name(self, ruled: Alphabet, name: str | None) -> None:
        assert ruled.edge.post("/adapter" + CHAT, chat(name)).json()["model"] == "alpha-lora"

    def test_a_model_that_is_no_string_is_refused_still(self, ruled: Alphabet) -> None:
        check_error(ruled.edge.post("/beta" + CHAT, chat(5)), 400, "invalid_model")

    @pytest.mark.parametrize("name", ["alpha-chat", "nobody", ""])
    @pytest.mark.parametrize("size", [1000, 3_000_000])
    def test_forms(self, ruled: Alphabet, name: str, size: int) -> None:
        data = b"w" * size
        answer = send(ruled.edge, form(file(data), field("model", name)), "/beta/v1/audio/transcriptions")
        assert answer.json()["model"] == "org/beta:v1"
        assert answer.json()["file"]["sha256"] == sha(data)

    def test_a_form_without_a_model_stays_as_it_is(self, ruled: Alphabet) -> None:
        answer = send(ruled.edge, form(file(b"abc")), "/beta/v1/audio/transcriptions")
        assert answer.status_code == 200
        assert ruled.beta.started("/v1/audio/transcriptions") == 1

    @pytest.mark.parametrize("size", [10, 3_000_000])
    def test_after_a_failed_connect_the_next_engine_gets_its_own_name(self, engine: ScriptedEngine, size: int) -> None:
        bodies = [json.dumps(chat(name, text="x" * size, echo=True)).encode() for name in (None, "nobody", "alpha")]
        wanted = [b'{"model":"alpha",' + bodies[0][1:], bodies[1].replace(b"nobody", b"alpha"), bodies[2]]
        with ScriptedEngine("org/first") as first:
            backends = [{"url": first.url, "model_name": "org/first"}, {"url": engine.url}]
            model = {"backends": backends, "routing": {"policy": "round_robin"}}
            with Edge({"models": {"alpha": model}, "rules": [{"path": "/team-a", "model": "alpha"}]}) as edge:
                first.kill()
                for number in range(6):
                    body, expected = bodies[number % 3], wanted[number % 3]
                    headers = {"X-Request-Id": f"retry-{number}"}
                    seen = edge.post("/team-a" + CHAT, data=body, headers=headers).json()
                    assert (seen["path"], seen["sha256"]) == (CHAT, sha(expected))
                assert sum(edge.log_of(f"retry-{number}")["retries"] for number in range(6)) >= 1


class TestPath:
    def test_it_is_taken_off_and_the_rest_is_as_before(self, ruled: Alphabet) -> None:
        body = json.dumps(chat("beta", echo=True)).encode()
        seen = ruled.edge.post("/plain" + CHAT + "?a=%2F&b", data=body, headers={"X-Request-Id": "plain"}).json()
        assert (seen["path"], seen["query"]) == (CHAT, "a=%2F&b")
        assert seen["sha256"] == sha(body.replace(b'"beta"', b'"org/beta:v1"'))
        line = ruled.edge.log_of("plain")
        assert (line["path"], line["rule"], line["model"]) == (CHAT, 6, "beta")

    def test_without_a_matching_rule_nothing_changes(self, ruled: Alphabet) -> None:
        body = json.dumps(chat("alpha", echo=True)).encode()
        seen = ruled.edge.post(CHAT, data=body, headers={"X-Request-Id": "none"}).json()
        assert (seen["path"], seen["sha256"]) == (CHAT, sha(body))
        assert ruled.edge.log_of("none")["rule"] is None

    @pytest.mark.parametrize(
        "path",
        ["/beta//v1/chat/completions", "/beta/./v1/chat/completions", "/x/../beta/v1/chat/completions",
         "/b%65ta/v1/chat/completions", "/beta%2Fv1/chat/completions", "//beta/v1/chat/completions",
         "http://edge/beta/v1/chat/completions"],
    )  # fmt: skip
    def test_the_normalised_path_decides(self, ruled: Alphabet, path: str) -> None:
        status, seen = as_sent(ruled.edge, path, chat("alpha", echo=True))
        assert (status, seen["path"]) == (200, CHAT)
        assert seen["instance"] == ruled.beta.counters()["instance"]

    def test_a_prefix_that_is_left_again_counts_for_nothing(self, ruled: Alphabet) -> None:
        status, seen = as_sent(ruled.edge, "/beta/../v1/chat/completions", chat("alpha", echo=True))
        assert (status, seen["path"]) == (200, CHAT)
        assert seen["instance"] != ruled.beta.counters()["instance"]

    @pytest.mark.parametrize(
        "path",
        ["/TEAM-A" + CHAT, "/team-ab" + CHAT, "/team-a", "/team-a/", "/team-a/v1", "/team-a/metrics",
         "/team-a/team-a" + CHAT, "/slow" + CHAT, "/team-a/../metrics", "/team-a/v1/load_lora_adapter",
         "/team-a%252Fv1/chat/completions", "/team-a/edge-error"],
    )  # fmt: skip
    def test_other_paths_are_not_served(self, ruled: Alphabet, path: str) -> None:
        status, content = as_sent(ruled.edge, path, chat("alpha"))
        assert (status, content["error"]["code"]) == (404, "path_not_found")
        assert started(ruled) == [0, 0, 0]

    def test_anthropics_shape_of_errors(self, ruled: Alphabet) -> None:
        edge, path = ruled.edge, "/team-a/v1/messages"
        check_error(edge.get(path), 405, "method_not_allowed", anthropic=True)
        check_error(edge.post(path, data=b"no json"), 400, "invalid_json", anthropic=True)
        check_error(edge.post(path + "/batches", {}), 404, "path_not_found", anthropic=True)
        large = {**chat("alpha", text="x" * ruled.max_body), "max_tokens": 5}
        check_error(edge.post(path, large, headers={"X-Request-Id": "large"}), 413, "body_too_large", anthropic=True)
        assert edge.log_of("large")["rule"] == 1
        check_error(edge.post("/team-a" + CHAT, large), 413, "body_too_large")
        answer = edge.post(path, {**chat("alpha"), "max_tokens": 5})
        assert (answer.status_code, answer.json()["type"]) == (200, "message")

    def test_a_browser_may_ask_under_a_prefix(self, ruled: Alphabet) -> None:
        headers = {"Origin": "https://chat.example.com", "Access-Control-Request-Method": "POST"}
        for path, status in (("/team-a" + CHAT, 204), ("/team-a/v1/models", 204), ("/team-b" + CHAT, 404)):
            answer = ruled.edge.call("OPTIONS", path, headers=headers)
            assert answer.status_code == status
            assert answer.headers["Access-Control-Allow-Origin"] == "https://chat.example.com"

    def test_streams_pass(self, ruled: Alphabet) -> None:
        answer = ruled.edge.post("/team-a" + CHAT, chat(stream=True, tokens=3))
        assert answer.text.endswith("data: [DONE]\n\n")


class TestPool:
    @pytest.mark.parametrize(
        ("path", "pool"), [("/fast" + CHAT, 0), ("/slow/deep" + CHAT, 1), ("/slow/deep/v1/completions", 1)]
    )
    def test_only_its_backends_are_seen(self, ruled: Alphabet, path: str, pool: int) -> None:
        for number in range(8):
            body = {**chat("alpha-chat", text=f"{number} " * 400), "prompt": f"{number} " * 400}
            assert ruled.edge.post(path, body, new_connection=True).status_code == 200
        wanted = [0, 0, 0]
        wanted[pool] = 8
        assert started(ruled, "/v1" + path.partition("/v1")[2]) == wanted

    @pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
    def test_a_model_without_backends_there_is_404(self, ruled: Alphabet, path: str) -> None:
        answer = ruled.edge.post("/fast" + path, {**chat("beta"), "max_tokens": 5})
        message = check_error(answer, 404, "model_not_found", anthropic=path != CHAT)
        assert "'beta' has no engine in pool 'fast'" in message
        assert "alpha, alpha-chat, alpha-lora, alpha/chat:v2." in message

    def test_the_models_there_are_told(self, ruled: Alphabet) -> None:
        message = check_error(ruled.edge.post("/fast" + CHAT, chat("nobody")), 404, "model_not_found")
        assert "alpha-chat" in message and "beta" not in message
        message = check_error(ruled.edge.post("/fast" + CHAT, chat()), 400, "model_required")
        assert "alpha-chat" in message and "beta" not in message

    def test_a_pool_without_a_ready_engine_does_not_borrow(
        self, engine: ScriptedEngine, engine_2: ScriptedEngine
    ) -> None:
        with Edge(pools(engine, engine_2)) as edge:
            edge.admin("POST", "/backends/alpha-1/drain")
            wait_until("it to drain", lambda: edge.backends()["alpha-1"]["state"] == "draining")
            message = check_error(edge.post("/one" + CHAT, chat("alpha")), 503, "no_backend_ready")
            assert "in pool 'one'" in message
            assert edge.post(CHAT, chat("alpha")).status_code == 200
            assert engine.started() == 0

    def test_turns_of_a_pool_are_its_own(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        """With turns shared, a pool that gets every second request would always use the same of its two engines."""
        with ScriptedEngine("alpha") as third:
            fleet = pools(engine, engine_2, third, names=("one", "one", "two"), policy="round_robin")
            with Edge(fleet) as edge:
                for number in range(12):
                    for path, name in (("/one", "pool"), ("", "all")):
                        headers = {"X-Request-Id": f"{name}-{number}"}
                        answer = edge.post(path + CHAT, chat("alpha"), headers=headers, new_connection=True)
                        assert answer.status_code == 200
                shares = [sum(name.startswith("pool") for name in served(one)) for one in (engine, engine_2, third)]
                # 6 and 6, if no probe was late meanwhile.
                assert sum(shares) == 12 and min(shares[:2]) >= 3 and shares[2] == 0


class TestHostAndHeader:
    def post(self, edge: Edge, **headers: str) -> requests.Response:
        body = chat("alpha", echo=True)
        return edge.post(CHAT, body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    @pytest.mark.parametrize(
        ("host", "team", "backend"),
        [
            ("chat.example.com", "", 1), ("Chat.Example.COM:8080", "", 1), ("chat.example.com.", "", 1),
            ("chat.example.com", "team b", 2), ("x.y.example.com", "team b", 2),
            ("x.y.example.com", "TEAM B", None), ("example.com", "team b", None),
            ("chat.example.com.evil.org", "", None),
        ],
    )  # fmt: skip
    def test_all_conditions_must_hold_and_the_first_rule_wins(
        self, ruled: Alphabet, host: str, team: str, backend: int | None
    ) -> None:
        headers = {"X-Team": team} if team else {}
        for _ in range(3):
            seen = self.post(ruled.edge, Host=host, **headers).json()
        if backend is not None:
            assert seen["instance"] == ruled.engines[backend].counters()["instance"]
            assert started(ruled)[backend] == 3
        else:
            assert ruled.beta.started() == 0
        assert "x-team" not in dict(seen["headers"])

    def test_a_header_alone(self, ruled: Alphabet) -> None:
        for number in range(6):
            answer = self.post(ruled.edge, X_Pool="fast", X_Request_Id=f"header-{number}")
            assert answer.status_code == 200
        assert started(ruled) == [6, 0, 0]
        assert ruled.edge.log_of("header-5")["rule"] == len(RULES)


class TestModelList:
    def names(self, ruled: Alphabet, prefix: str, **headers: str) -> list[str]:
        answer = ruled.edge.get(prefix + "/v1/models", headers=headers)
        return sorted(one["id"] for one in answer.json()["data"])

    def test_it_shows_what_the_rule_lets_be_used(self, ruled: Alphabet) -> None:
        alphas = ["alpha", "alpha-chat", "alpha-lora", "alpha/chat:v2"]
        assert self.names(ruled, "/team-a") == self.names(ruled, "/adapter") == alphas
        assert self.names(ruled, "/beta") == ["beta"]
        assert self.names(ruled, "/fast") == alphas
        assert self.names(ruled, "", Host="chat.example.com") == alphas
        assert self.names(ruled, "/plain") == self.names(ruled, "") == [*alphas, "beta"]

    def test_one_by_name(self, ruled: Alphabet) -> None:
        edge = ruled.edge
        assert edge.get("/team-a/v1/models/alpha/chat:v2").json()["id"] == "alpha/chat:v2"
        assert edge.get("/fast/v1/models/alpha-lora").json()["id"] == "alpha-lora"
        for path in ("/team-a/v1/models/beta", "/fast/v1/models/beta", "/beta/v1/models/alpha"):
            check_error(edge.get(path), 404, "model_not_found")


class TestResponses:
    PATH = "/v1/responses"

    def test_they_are_found_under_the_prefix(self, ruled: Alphabet) -> None:
        edge = ruled.edge
        for _ in range(4):
            made = edge.post("/team-a" + self.PATH, {"input": "hi"}).json()["id"]
            for path in ("/team-a", ""):
                assert edge.get(f"{path}{self.PATH}/{made}", new_connection=True).json()["id"] == made
            cancelled = edge.call("POST", f"/team-a{self.PATH}/{made}/cancel", data=b"")
            assert cancelled.json()["status"] == "cancelled"

    def test_those_of_others_are_not(self, ruled: Alphabet) -> None:
        edge = ruled.edge
        made = edge.post("/slow/deep" + self.PATH, {"model": "alpha", "input": "hi"}).json()["id"]
        assert edge.get(f"/slow/deep{self.PATH}/{made}").status_code == 200
        for path in ("/fast", "/beta"):
            check_error(edge.get(f"{path}{self.PATH}/{made}"), 404, "response_not_found")

    def test_a_conversation_does_not_lead_out_of_the_pool(self, ruled: Alphabet) -> None:
        edge = ruled.edge
        made = edge.post("/slow/deep" + self.PATH, {"model": "alpha", "input": "hi"}).json()["id"]
        body = {"model": "alpha", "input": "more", "previous_response_id": made}
        for path, engine in (("/slow/deep", 1), ("", 1), ("/fast", 0)):
            before = started(ruled, self.PATH)
            edge.post(path + self.PATH, body)
            grown = [new - old for new, old in zip(started(ruled, self.PATH), before, strict=True)]
            assert grown.index(1) == engine


def pools(
    *engines: ScriptedEngine, names: tuple[str, ...] = ("one", "two"), policy: str = "", **more: Any
) -> dict[str, Any]:
    """Model alpha with an engine in each pool, and a path for each; ``more``: of each backend."""
    backends = [
        {"id": f"alpha-{number}", "url": engine.url, "pool": name, **more}
        for number, (engine, name) in enumerate(zip(engines, names, strict=True), 1)
    ]
    rules = [{"path": f"/{name}", "pool": name} for name in dict.fromkeys(names)]
    model = {"backends": backends, "queue": {"max_waiting": 2}, "routing": {"policy": policy or "least_loaded"}}
    return {"models": {"alpha": model}, "rules": rules}


def ask(edge: Edge, path: str, name: str, **body: Any) -> RawClient:
    client = edge.raw()
    client.request(path + CHAT, chat("alpha", **body), headers={"X-Request-Id": name})
    return client


def hold(edge: Edge, path: str) -> RawClient:
    client = ask(edge, path, f"hold{path.replace('/', '-')}", stream=True, tokens=100_000, delay_ms=50)
    assert client.head().status == 200
    return client


class TestQueue:
    def test_pools_wait_in_lines_of_their_own(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        with Edge(pools(engine, engine_2, limit=1)) as edge:
            one, two = hold(edge, "/one"), hold(edge, "/two")
            waiting = []
            for number, path in enumerate(("/one", "/one", "/two"), 1):
                waiting.append(ask(edge, path, f"wait-{number}"))
                wait_until("it to wait", lambda number=number: queue_length(edge) == number)  # type: ignore[misc]
            # The line of the one is full, those of the other and of all are not.
            status, content = as_sent(edge, "/one" + CHAT, chat("alpha"))
            assert (status, content["error"]["code"]) == (429, "queue_full")
            assert "in pool 'one'" in content["error"]["message"]
            waiting.append(ask(edge, "", "wait-all"))
            wait_until("it to wait", lambda: queue_length(edge) == 4)
            two.close()
            assert [client.head().status for client in waiting[2:]] == [200, 200]
            assert sorted(served(engine_2)) == ["hold-two", "wait-3", "wait-all"]
            assert served(engine) == ["hold-one"]
            # A pool with room serves while another has a line.
            assert edge.post("/two" + CHAT, chat("alpha"), timeout=2).status_code == 200
            assert queue_length(edge) == 2
            one.close()
            assert [client.head().status for client in waiting[:2]] == [200, 200]
            assert served(engine) == ["hold-one", "wait-1", "wait-2"]
            for client in waiting:
                client.close()
            edge.idle()
            assert queue_length(edge) == 0

    def test_a_pool_that_goes_ends_the_waiting(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        with Edge(pools(engine, engine_2, limit=1)) as edge:
            holder = hold(edge, "/one")
            client = ask(edge, "/one", "waits")
            wait_until("it to wait", lambda: queue_length(edge) == 1)
            fleet = pools(engine, engine_2, names=("other", "two"), limit=1)
            edge.write(fleet)
            edge.reload()
            head = client.head()
            assert (head.status, b"no_backend_ready" in client.body(head)) == (503, True)
            for one in (client, holder):
                one.close()
            edge.idle()


class TestLife:
    def test_rules_change_without_a_reload(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        fleet = pools(engine, engine_2)
        with Edge(fleet) as edge:
            generation = edge.state()["generation"]
            check_error(edge.post("/new" + CHAT, chat("alpha")), 404, "path_not_found")
            edge.write({**fleet, "rules": [{"path": "/new", "pool": "two"}]})
            found = edge.reload()
            assert found.changes.lines() == ["rules changed"]
            assert edge.post("/new" + CHAT, chat("alpha")).status_code == 200
            assert engine_2.started() == 1
            check_error(edge.post("/one" + CHAT, chat("alpha")), 404, "path_not_found")
            assert edge.state()["generation"] == generation

    @pytest.mark.parametrize(
        ("rules", "told"),
        [
            ([{"path": "/a", "model": "nobody"}], "rule 1 names the unknown model nobody"),
            ([{"path": "/a"}, {"pool": "one"}], "rule 2 has no condition"),
            ([{"path": "a"}], "rule 1 may have path"),
            ([{"path": 5}], "rule 1 may have path"),
            (["x"], "rule 1 may have path"),
            ([{"header": {"name": "X-A"}}], "the header of rule 1 needs name and value"),
            ("x", "rules is no list"),
            ([{"path": f"/{number}"} for number in range(257)], "rules is no list of at most 256"),
        ],
    )
    def test_a_fleet_with_broken_rules_changes_nothing(self, ruled: Alphabet, rules: Any, told: str) -> None:
        path = ruled.edge.paths.conf / "fleet.json"
        content = {**json.loads(path.read_text()), "rules": rules}
        answer = ruled.edge.admin("PUT", "/fleet", data=json.dumps(content))
        assert answer.status_code == 400 and told in answer.text
        assert ruled.edge.post("/team-a" + CHAT, chat()).status_code == 200
