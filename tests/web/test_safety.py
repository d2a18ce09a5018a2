"""Who may look, who may act: logins, sessions, tokens of forms, other sites, and the audit log. No browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flask.testing import FlaskClient

from control.cli import main
from control.errors import ControlError
from control.web.app import WebSettings, create_app
from control.web.attempts import MOST, MOST_OF_ALL, WINDOW, Attempts
from control.web.login import Guard, token_of
from control.web.logins import read_logins, set_login
from tests.web.fakes import Sources, backend, edge_state

OURS = {"Host": "127.0.0.1:9090"}
TOKEN = "t" * 64
BEARER = OURS | {"Authorization": f"Bearer {TOKEN}"}
PASSWORD = "correct horse"
SECRET = "sk-only-in-this-answer"


class Doer:
    """Remembers what it was asked to do; refuses to touch m-2."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    def _do(self, *what: str) -> str:
        if "m-2" in what:
            raise ControlError("m-2 is <b>away</b>.", "Look there.")
        self.done.append(what)
        return f"{' '.join(what)}: done"

    def drain(self, backend: str) -> str:
        return self._do("drain", backend)

    def resume(self, backend: str) -> str:
        return self._do("resume", backend)

    def cancel(self, request: str) -> str:
        return self._do("cancel", request)

    def engine(self, backend: str, action: Any, done: Callable[[Any], None]) -> str:
        return self._do(action, backend)

    def create_key(self, name: str, wishes: Mapping[str, Any]) -> tuple[str, str]:
        return SECRET, self._do("create", name, str(sorted(wishes.items())))

    def change_key(self, name: str, action: Any) -> tuple[str | None, str]:
        return SECRET if action == "rotate" else None, self._do(action, name)


class Page:
    """A page in a folder of its own, with logins or without."""

    def __init__(self, folder: Path, asks: bool = True, url: str | None = None) -> None:
        self.logins, self.audit_log = folder / "page.logins", folder / "control" / "audit.log"
        set_login(self.logins, "alice", PASSWORD)
        guard = Guard(TOKEN, self.logins if asks else None)
        self.doer = Doer()
        view = Sources(edge_state(backend("m-1"), backend("m-2", "starting"))).view()
        self.app = create_app(view, WebSettings(url=url, guard=guard, audit_log=self.audit_log), self.doer)

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def token(self, client: FlaskClient, path: str = "/login") -> str:
        found = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path, headers=OURS).text)
        assert found, "a form without its token"
        return found[1]

    def log_in(self, client: FlaskClient, password: str = PASSWORD, name: str = "alice", **more: str) -> Any:
        form = {"csrf_token": self.token(client), "name": name, "password": password, **more}
        return client.post("/login", headers=OURS, data=form)

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]


@pytest.fixture
def asking(tmp_path: Path) -> Page:
    return Page(tmp_path)


@pytest.fixture
def open_page(tmp_path: Path) -> Page:
    return Page(tmp_path, asks=False)


READ = ("/", "/backends", "/backends/m-1", "/requests", "/keys", "/api/keys", "/api/fleet", "/api/overview",
        "/api/backends/m-1",
        "/api/backends/m-1/log", "/api/backends/m-1/samples", "/api/requests", "/api/events",
        "/api/openapi.json")  # fmt: skip
ACT = (("POST", "/backends/m-1/drain"), ("POST", "/backends/m-1/stop"), ("POST", "/requests/r-1/cancel"),
       ("POST", "/api/backends/m-1/restart"), ("DELETE", "/api/requests/r-1"), ("POST", "/logout"),
       ("POST", "/keys"), ("POST", "/keys/a/revoke"), ("POST", "/api/keys"),
       ("POST", "/api/keys/a/rotate"))  # fmt: skip


def test_every_address_asks_for_a_login(asking: Page) -> None:
    for path in READ:
        answer = asking.client().get(path, headers=OURS)
        if path.startswith("/api/"):
            assert answer.status_code == 401 and "m-1" not in answer.text, path
        else:
            assert answer.status_code == 303 and answer.location.startswith("/login?next=%2F"), path
    for method, path in ACT:
        assert asking.client().open(path, method=method, headers=OURS).status_code in (400, 401), path
    assert asking.doer.done == []
    known = {rule.rule.replace("<id_>", "m-1") for rule in asking.app.url_map.iter_rules() if "GET" in rule.methods}
    assert known == {*READ, "/login", "/static/<path:filename>"}, "this list has every address"


def test_a_session_begins_with_the_password_and_ends_with_it(asking: Page) -> None:
    client = asking.client()
    answer = asking.log_in(client, next="/backends?state=ready")
    assert answer.status_code == 303 and answer.location == "/backends?state=ready"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    assert client.get("/", headers=OURS).status_code == 200 and "Log out alice" in client.get("/", headers=OURS).text
    set_login(asking.logins, "alice", "another password")
    assert client.get("/", headers=OURS).status_code == 303, "a session of the old password is over"
    assert asking.log_in(client, "another password").status_code == 303
    assert client.post("/logout", headers=OURS, data={"csrf_token": asking.token(client, "/")}).status_code == 303
    assert client.get("/api/fleet", headers=OURS).status_code == 401
    asking.log_in(client, "another password")
    asking.logins.write_text("broken\n")
    assert client.get("/api/fleet", headers=OURS).status_code == 401, "a file of logins that is broken lets nobody in"


def test_over_tls_the_cookie_never_leaves_it(tmp_path: Path) -> None:
    client = Page(tmp_path, url="https://fleet.example.com").client()
    assert "Secure" in client.get("/login", headers={"Host": "fleet.example.com"}).headers["Set-Cookie"]
    assert "Secure" not in client.get("/login", headers=OURS).headers["Set-Cookie"]


@pytest.mark.parametrize("next_", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/\tx", "x"])
def test_a_login_leads_to_no_other_site(asking: Page, next_: str) -> None:
    assert asking.log_in(asking.client(), next=next_).location == "/"


def test_guessing_has_to_wait(asking: Page) -> None:
    client = asking.client()
    assert [asking.log_in(client, f"wrong {n}").status_code for n in range(MOST)] == [401] * MOST
    refused = asking.log_in(client)
    assert refused.status_code == 429 and "Too many attempts" in refused.text
    assert 0 < int(refused.headers["Retry-After"]) <= WINDOW + 1
    assert [entry["result"].split(":")[0] for entry in asking.audit()] == ["refused"] * (MOST + 1)


def test_attempts_are_counted_by_address_and_together() -> None:
    attempts = Attempts()
    assert [attempts.begin("a", 0.0) for _ in range(MOST)] == [0] * MOST
    assert attempts.begin("a", 1.0) == 300 and attempts.begin("b", 1.0) == 0 and attempts.begin("a", 300.1) == 0
    attempts = Attempts()
    for _ in range(100):
        assert attempts.begin("a", 0.0) == 0
        attempts.succeeded("a")
    assert all(attempts.begin(f"address {n}", 2.0) == 0 for n in range(MOST_OF_ALL))
    assert attempts.begin("another", 3.0) > 0


def test_a_wrong_name_and_a_wrong_password_look_the_same(asking: Page) -> None:
    def shown(name: str) -> str:
        return re.sub(r'value="[^"]*"', "", asking.log_in(asking.client(), "wrong", name).text)

    assert shown("alice") == shown("<script>bob")


def test_a_form_of_another_site_changes_nothing(open_page: Page) -> None:
    client = open_page.client()
    token = open_page.token(client, "/backends")
    form = {"csrf_token": token}
    assert client.post("/backends/m-1/drain", headers=OURS).status_code == 400
    assert client.post("/backends/m-1/drain", headers=OURS, data={"csrf_token": "x" + token}).status_code == 400
    assert open_page.client().post("/backends/m-1/drain", headers=OURS, data=form).status_code == 400, "another session"
    for foreign in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
                    {"Host": "evil.example:9090"}):  # fmt: skip
        assert client.post("/backends/m-1/drain", headers=OURS | foreign, data=form).status_code == 403
    assert open_page.doer.done == []
    answer = client.post("/backends/m-1/drain", headers=OURS | {"Origin": "http://127.0.0.1:9090"}, data=form)
    assert answer.status_code == 303 and open_page.doer.done == [("drain", "m-1")]


def test_what_was_done_is_shown_and_stands_in_the_audit_log(asking: Page) -> None:
    client = asking.client()
    asking.log_in(client)
    form = {"csrf_token": asking.token(client, "/backends"), "next": "/backends"}
    assert client.post("/backends/m-1/restart", headers=OURS, data=form).location == "/backends"
    assert "restart m-1: done" in client.get("/backends", headers=OURS).text
    client.post("/backends/m-2/drain", headers=OURS, data=form)
    assert "m-2 is &lt;b&gt;away&lt;/b&gt;. Look there." in client.get("/backends", headers=OURS).text
    assert client.post("/backends/m-1/explode", headers=OURS, data=form).status_code == 404
    assert asking.audit_log.stat().st_mode & 0o777 == 0o600
    kept = [(entry["who"], entry["what"], entry["target"], entry["result"]) for entry in asking.audit()]
    assert kept == [
        ("alice", "login", "", "ok"),
        ("alice", "restart", "m-1", "restart m-1: done"),
        ("alice", "drain", "m-2", "refused: m-2 is <b>away</b>."),
    ]
    assert PASSWORD not in asking.audit_log.read_text() and asking.audit()[0]["from"] == "127.0.0.1"


def test_programs_come_with_the_token(asking: Page) -> None:
    client = asking.client()
    assert client.get("/api/fleet", headers=BEARER).status_code == 200
    assert client.post("/api/backends/m-1/stop", headers=BEARER).get_json() == {"result": "stop m-1: done"}
    assert client.delete("/api/requests/r-1", headers=BEARER).get_json() == {"result": "cancel r-1: done"}
    refused = client.post("/api/backends/m-2/start", headers=BEARER)
    assert refused.status_code == 409
    assert refused.get_json() == {"error": {"message": "m-2 is <b>away</b>.", "hint": "Look there."}}
    for wrong in ("Bearer x", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer "):
        assert client.get("/api/fleet", headers=OURS | {"Authorization": wrong}).status_code == 401
    assert [entry["who"] for entry in asking.audit()] == ["token"] * 3


def test_the_token_is_made_once_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "control" / "page.token"
    token = token_of(path)
    assert len(token) == 64 and token_of(path) == token and path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(ControlError, match="holds no token"):
        token_of(path)


def test_logins_are_made_changed_and_removed_by_the_command(tmp_path: Path) -> None:
    def run(*words: str, password: str = "") -> Any:
        return CliRunner().invoke(main, ["-f", str(tmp_path / "fleet.yaml"), "page-login", *words], input=password)

    made = run("alice", "--stdin", password=PASSWORD + "\n")
    assert made.exit_code == 0 and "login: page.logins" in made.output and PASSWORD not in made.output
    asked = run("bob", password=f"{PASSWORD}\n{PASSWORD}\n")
    assert asked.exit_code == 0, asked.output
    path = tmp_path / "page.logins"
    assert set(read_logins(path)) == {"alice", "bob"} and path.stat().st_mode & 0o777 == 0o600
    assert run("alice", "--remove").exit_code == 0 and set(read_logins(path)) == {"bob"}
    before = path.read_text()
    for words, password in ((("carol", "--stdin"), "short\n"), (("a:b", "--stdin"), PASSWORD), (("x", "--remove"), "")):
        refused = run(*words, password=password)
        assert refused.exit_code == 1 and "Error:" in refused.output, words
    assert path.read_text() == before


@pytest.mark.parametrize("text", ["", "# only a comment\n", "alice:secret\n", "alice\n", "a b:scrypt:1:1:1$x$00\n"])
def test_a_file_that_holds_no_logins_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.logins"
    path.write_text(text)
    with pytest.raises(ControlError) as refused:
        read_logins(path)
    assert "secret" not in refused.value.message and str(path) in refused.value.message


def test_a_keys_secret_stands_in_one_answer_only(asking: Page) -> None:
    client = asking.client()
    asking.log_in(client)
    form = {"csrf_token": asking.token(client, "/keys")}
    new = form | {"name": "bob", "models": "m, e ,", "priority": "low", "expires": "", "tokens_per_day": "500"}
    answer = client.post("/keys", headers=OURS, data=new)
    assert answer.status_code == 200 and SECRET in answer.text and answer.headers["Cache-Control"] == "no-store"
    assert asking.doer.done[-1][2] == str(
        sorted({"limits": {"tokens_per_day": 500}, "models": ("m", "e"), "priority": "low"}.items())
    )
    assert SECRET in client.post("/keys/bob/rotate", headers=OURS, data=form).text
    assert client.post("/keys/bob/disable", headers=OURS, data=form).location == "/keys"
    assert client.post("/keys/bob/explode", headers=OURS, data=form).status_code == 404
    refused = client.post("/keys", headers=OURS, data=form | {"name": "x", "tokens_per_day": "-1"})
    assert refused.location == "/keys" and "must be a whole number" in client.get("/keys", headers=OURS).text
    assert SECRET not in client.get("/keys", headers=OURS).text
    for wrong in ("[]", "x", ""):
        assert client.post("/api/keys", headers=BEARER, data=wrong).status_code in (400, 415)
    assert client.post("/api/keys", headers=BEARER, json={"name": "c", "models": [7]}).status_code == 409
    made = client.post("/api/keys", headers=BEARER, json={"name": "c", "models": ["m"]}).get_json()
    assert made["secret"] == SECRET
    assert client.post("/api/keys/c/revoke", headers=BEARER).get_json()["secret"] is None
    assert SECRET not in asking.audit_log.read_text()
    assert [entry["what"] for entry in asking.audit()][1:4] == ["create key", "rotate key", "disable key"]
