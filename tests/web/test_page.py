"""The page, its JSON and its safety, through Flask's test client."""

from __future__ import annotations

import re
from typing import Any

import pytest
from werkzeug.test import TestResponse

from control import engine_report
from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.phases import Span
from control.web.poller import EdgeAbsent
from control.web.safety import allowed_hosts
from control.web.texts import TEXTS, Words, size
from tests.web.fakes import Sources, Status, Way, backend, edge_state

OURS = {"Host": "127.0.0.1:9090"}


def get(sources: Sources, path: str = "/", method: str = "GET", **headers: str) -> TestResponse:
    _, app = sources.app()
    return app.test_client().open(path, method=method, headers=OURS | headers)


def row(page: str, id_: str) -> str:
    found = re.search(rf'<tr role="row" id="backend-{re.escape(id_)}".*?</tr>', page, re.S)
    assert found, f"no row of {id_}"
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


def test_the_page_shows_every_backend_with_its_state_in_words() -> None:
    page = get(Sources()).text
    assert row(page, "m-1").startswith("m-1 127.0.0.1:8101 m ready ")
    assert "0 5 ready pid 4242" in row(page, "m-1")
    assert "starting" in row(page, "m-2") and "loading weights" in row(page, "m-2")
    assert "https://gpu.example.com:443" in row(page, "rented") and "unknown" in row(page, "rented")
    assert "not in the running edge yet" in row(page, "rented") and "not started here" in row(page, "rented")


def test_the_exact_time_stands_in_the_title() -> None:
    page = get(Sources()).text
    assert re.search(r'<time datetime="2023-11-1\dT[^"]+" title="2023-11-1\d [^"]+">\d+ d ago</time>', page)


def test_a_reason_and_restarts_are_shown() -> None:
    sources = Sources(edge_state(backend("m-1", "down", reason="connection refused")), [Status("m-1", restarts=3)])
    text = row(get(sources).text, "m-1")
    assert "down connection refused" in text and text.endswith(" 3")


KILLED = Diagnosis("killed", "It was killed.", "Give it more memory.", ("Worker died <b>", "exit code: -9"))


def test_phases_facts_and_alarms_stand_in_the_engines_row() -> None:
    facts = Facts(kv_cache_tokens=46_592, root="/models/" + "m" * 1000)
    phases = (Span("loading weights", 61.25), Span("first token", 0.5))
    status = Status("m-1", detail="KV cache of 46,592 tokens", phases=phases, facts=facts, alarms=("dtype: <asked>",))
    sources = Sources(engines=[status])
    text = row(get(sources).text, "m-1")
    assert "KV cache of 46,592 tokens not as asked: dtype: &lt;asked&gt; its start:" in text
    assert "its start: loading weights 61.2 s, first token 0.5 s" in text
    assert "启动过程： 加载权重 61.2 秒, 首个词元 0.5 秒" in row(get(sources, "/?lang=zh").text, "m-1")
    told = get(sources, "/api/fleet").get_json()["backends"][0]["engine"]
    assert told["phases"][0] == {"phase": "loading weights", "seconds": 61.25}
    assert told["alarms"] == ["dtype: <asked>"] and told["facts"]["kv_cache_tokens"] == 46_592
    assert len(told["facts"]["root"]) == 300 and told["failure"] is None


def test_a_failure_is_shown_with_the_lines_that_decided_it() -> None:
    failed = Status("m-1", "failed", "given up", KILLED.text(), failure=KILLED)
    page = get(Sources(engines=[failed])).text
    assert "failed · given up It was killed. Give it more memory. Worker died &lt;b&gt; exit code: -9" in row(
        page, "m-1"
    )
    assert "Worker died &lt;b&gt;\nexit code: -9</pre>" in page and "last death" not in page
    again = Status("m-1", "starting", "loading weights", failure=KILLED)
    assert "last death: It was killed. Give it more memory." in row(get(Sources(engines=[again])).text, "m-1")


def test_status_tells_the_same_in_lines() -> None:
    status = Status("m-1", "ready", detail="KV cache of 7 tokens", phases=(Span("starting", 2.0),), alarms=("a: b",))
    failed = Status("m-2", "starting", "loading weights", failure=KILLED)
    snapshot = get(Sources(engines=[status, failed]), "/api/fleet").get_json()
    engines = [{"id": row["id"], **row["engine"]} for row in snapshot["backends"] if row["engine"]]
    assert engine_report.lines(engines) == [
        "engine m-1: ready: KV cache of 7 tokens",
        "  phases: starting 2.0 s",
        "  not as asked: a: b",
        "engine m-2: starting (loading weights)",
        "  last death: It was killed. Give it more memory.",
        "  | Worker died <b>",
        "  | exit code: -9",
    ]
    assert "does not run" in engine_report.lines(None)[0] and engine_report.lines([]) == []


def test_the_tunnel_to_a_backend_is_shown_with_its_state_and_why() -> None:
    sources = Sources(tunnels=[Way("rented"), Way("m-1", state="down", detail="<b>away</b>. Look there.")])
    page = get(sources).text
    assert "SSH tunnel to root@box.lan:2222 is up" in row(page, "rented") and "tunnel" not in row(page, "m-2")
    assert "SSH tunnel to root@box.lan:2222 is down: &lt;b&gt;away&lt;/b&gt;. Look there." in row(page, "m-1")
    assert "到 root@box.lan:2222 的 SSH 隧道 已断开" in row(get(sources, "/?lang=zh").text, "m-1")


@pytest.mark.parametrize(
    ("state", "english", "chinese"),
    [
        ("starting", "starting", "启动中"), ("ready", "ready", "就绪"), ("busy", "busy", "繁忙"),
        ("draining", "draining", "排空中"), ("suspect", "suspect", "可疑"), ("down", "down", "不可用"),
        ("misconfigured", "misconfigured", "配置错误"), ("no such state", "unknown", "未知"),
    ],
)  # fmt: skip
def test_every_state_has_its_word_in_both_languages(state: str, english: str, chinese: str) -> None:
    sources = Sources(edge_state(backend("m-1", state, reason="why so")))
    for language, word in (("en", english), ("zh", chinese)):
        page = get(sources, f"/?lang={language}").text
        assert f"{word} why so" in row(page, "m-1")
        assert f'data-state="{english}"' in page


@pytest.mark.parametrize(("state", "serves"), [("busy", True), ("draining", False), ("suspect", False)])
def test_what_takes_requests_counts_as_ready(state: str, serves: bool) -> None:
    page = get(Sources(edge_state(backend("m-1", state), backend("m-2", "down")))).text
    assert f"{int(serves)} of 3 backends ready" in page


def test_models_edge_and_machine_are_shown() -> None:
    page = get(Sources()).text
    assert "chat, org/alias" in page and "sql-lora" in page and "1 of 2" in page
    assert "1 of 3 backends ready" in page
    assert "<dd>3</dd>" in page and "<dd>7</dd>" in page and "60 (finishing its requests)" in page
    assert "12 % of 4 CPUs" in page and "3.0 GiB of 8.0 GiB in use" in page


def test_without_an_edge_the_page_says_how_to_start_it() -> None:
    page = get(Sources(EdgeAbsent("The edge does not run."))).text
    assert "The edge does not run. Start it with: <code>make run</code>" in page
    assert "unknown the edge does not answer" in row(page, "m-1")
    assert "not known ready pid 4242" in row(page, "m-1"), "the process is still ours to tell"


def test_an_edge_that_answers_badly_is_no_absent_edge() -> None:
    page = get(Sources(ConnectionError("time-out"))).text
    assert "make run</code>" not in page and "does not answer the control plane" in page and "time-out" in page


@pytest.mark.parametrize(
    "state",
    [
        [],
        {"backends": {}},
        {"backends": [1, None, {}], "workers": "x"},
        {"backends": [{"id": "m-1", "state": 7, "since": "x", "in_flight": True, "requests": 1e300, "reported": {}}]},
        {"backends": [{"id": "m-1", "state": "ready", "since": float("nan")}, {"id": "m-2", "since": 1e18}]},
    ],
)
def test_nonsense_from_the_edge_does_not_break_the_page(state: Any) -> None:
    answer = get(Sources(state))
    assert answer.status_code == 200 and row(answer.text, "m-1")


def test_what_has_left_the_fleet_is_told_while_something_runs_there() -> None:
    left = [{"id": "m-9", "address": "10.0.0.9:80", "in_flight": count} for count in (3, 1)]
    sources = Sources(edge_state(backend("m-1")) | {"leaving": [*left, {"id": "<b>"}, 7]})
    page = get(sources).text
    assert "m-9 (10.0.0.9:80) has left the fleet, 3 sequences still run there" in page
    assert "has left the fleet, 1 sequence still runs there" in page
    assert "<b>" not in page
    assert "m-9（10.0.0.9:80）已离开集群，仍有 3 个序列在其上运行" in get(sources, "/?lang=zh").text
    assert "has left" not in get(Sources()).text


def test_a_failing_supervisor_does_not_break_the_page() -> None:
    text = row(get(Sources(engines=RuntimeError("broken"))).text, "m-1")
    assert "ready" in text and "no process" in text


def test_what_engines_say_is_text() -> None:
    evil = "<script>alert(1)</script>"
    state = edge_state(backend("m-1", reported=[evil] * 500, reason=evil, state="down"))
    sources = Sources(state, [Status("m-1", detail=evil, phase=evil)])
    page = get(sources).text
    assert evil not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("&lt;script&gt;") < 50, "only so many names reach the page"


def test_long_texts_are_cut() -> None:
    assert "x" * 301 not in get(Sources(edge_state(backend("m-1", reported=["x" * 100_000])))).text


@pytest.mark.parametrize(
    ("path", "accept", "language"),
    [
        ("/", "", "en"),
        ("/", "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("/", "zh-TW", "zh-Hans"),
        ("/", "de,en;q=0.5,zh;q=0.2", "en"),
        ("/?lang=zh", "en", "zh-Hans"),
        ("/?lang=en", "zh", "en"),
        ("/?lang=%3Cscript%3E", "fr", "en"),
    ],
)
def test_language(path: str, accept: str, language: str) -> None:
    answer = get(Sources(), path, **{"Accept-Language": accept})
    assert f'<html lang="{language}">' in answer.text
    assert answer.headers["Content-Language"] == language and answer.headers["Vary"] == "Accept-Language"
    assert ("就绪" in answer.text) == (language == "zh-Hans")


def test_both_languages_have_the_same_texts_with_the_same_gaps() -> None:
    def gaps(text: str) -> list[str]:
        return sorted(re.findall(r"\{\w+\}", text))

    english, chinese = TEXTS["en"], TEXTS["zh"]
    assert english.keys() == chinese.keys()
    assert [key for key in english if gaps(english[key]) != gaps(chinese[key])] == []


@pytest.mark.parametrize(
    ("age", "text"), [(-5, "just now"), (1, "just now"), (59, "59 s ago"), (60, "1 min ago"), (7300, "2 h ago")]
)
def test_relative_time(age: int, text: str) -> None:
    assert Words("en").ago(1000.0, 1000.0 + age) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * 1024**3, "3.0 GiB"), (2**50, "1024.0 TiB")]
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


def test_json_has_the_same() -> None:
    content = get(Sources(), "/api/fleet").get_json()
    assert content["edge"]["fleet_version"] == 7 and content["host"]["cpus"] == 4
    assert [(b["id"], b["state"]) for b in content["backends"]] == [
        ("m-1", "ready"), ("m-2", "starting"), ("rented", "unknown"),
    ]  # fmt: skip
    assert content["backends"][1]["engine"]["phase"] == "loading weights"
    assert content["models"][0] == {"name": "m", "aliases": ["chat", "org/alias"], "loras": ["sql-lora"],
                                    "policy": "least_loaded", "ready": 1, "backends": 2}  # fmt: skip


def test_a_backend_that_only_the_running_edge_knows_is_shown() -> None:
    page = get(Sources(edge_state(backend("m-1"), backend("old-1", model="gone")))).text
    assert "no longer in fleet.yaml" in row(page, "old-1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9090",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost",
        "",
        "127.0.0.1:9090.evil.example",
        "127.0.0.2:9090",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/fleet", "/api/events", "/static/fleet.js", "/nothing"])
def test_other_hosts_are_refused(host: str, path: str) -> None:
    answer = get(Sources(), path, Host=host)
    assert answer.status_code == 403 and answer.mimetype == "text/plain"
    assert "open http://127.0.0.1:9090/" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:9090", "localhost:9090", "LOCALHOST:9090", "[::1]:9090"])
def test_our_hosts_are_welcome(host: str) -> None:
    assert get(Sources(), Host=host).status_code == 200


def test_port_80_needs_no_port_in_host() -> None:
    assert "localhost" in allowed_hosts("127.0.0.1", 80) and "localhost" not in allowed_hosts("127.0.0.1", 81)
    assert "[::1]:9090" in allowed_hosts("::1", 9090)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/fleet", "/api/events", "/static/fleet.css", "/nothing"])
def test_only_reading(method: str, path: str) -> None:
    answer = get(Sources(), path, method)
    assert answer.status_code == 405 and answer.headers["Allow"] == "GET, HEAD"


def test_another_sites_page_may_not_hold_streams() -> None:
    assert get(Sources(), "/api/events", **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert get(Sources(), "/api/fleet", **{"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert get(Sources(), "/api/fleet", **{"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/fleet", "/static/fleet.css", "/static/fleet.js", "/static/icon.svg", "/no"]
)
def test_every_answer_has_the_safe_headers_and_no_cookie(path: str) -> None:
    headers = get(Sources(), path).headers
    assert headers["Content-Security-Policy"] == (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in headers


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = get(Sources()).text
    assert re.findall(r'(?:src|href)="(?!/|#)[^"]*"', page) == []
    assert "style=" not in page and " onclick" not in page


def test_unknown_paths_and_static_escapes_are_404() -> None:
    for path in ("/nothing", "/static/../app.py", "/static/%2e%2e/app.py", "/static/"):
        assert get(Sources(), path).status_code == 404


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1])
def test_texts_have_contrast_enough_in_light_and_dark(scheme: int) -> None:
    css = get(Sources(), "/static/fleet.css").text
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", re.findall(r":root \{(.*?)\}", css, re.S)[scheme]))
    pairs = [(text, ground) for text in ("ink", "quiet", "link", "down") for ground in ("paper", "panel")]
    pairs += [(state, f"{state}-back") for state in ("ready", "starting", "down", "unknown")]
    for text, ground in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{text} on {ground}"
