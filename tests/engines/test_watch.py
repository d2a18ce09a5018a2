"""One start until the first token, with real processes; what the supervisor says of it, and keeps."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from control.engines.phases import Span
from control.engines.watch import Kept
from tests.engines.test_supervisor import Stand, all_ready, failed, stand, wait
from tests.support.net import free_port

__all__ = ["stand"]
pytestmark = pytest.mark.slow

#: A server with a model list; what becomes of POST /v1/completions is the text after it.
SERVER = """\
import http.server, json, sys, time

print("(APIServer pid=1) INFO 11-29 14:25:57 [x.py:1] non-default args: {{}}", flush=True)
print("(EngineCore pid=2) INFO 11-29 14:26:17 [k.py:1] CPU KV cache size: 46,592 tokens, "
      "Maximum concurrency for 4,096 tokens per request: 11.38x", flush=True)
print("(EngineCore pid=2) INFO 11-29 14:26:17 [s.py:1] Chunked prefill is enabled with max_num_batched_tokens=256.",
      flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, json.dumps({{"data": [{{"id": "m", "max_model_len": 4096}}]}}).encode())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, asked["max_tokens"]) == ("/v1/completions", 1)
        {post}

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def command(stand: Stand, post: str) -> list[str]:
    return ["{python}", stand.program(SERVER.format(post=post)), "{port}"]


def test_phases_facts_and_alarms_of_a_start(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    post = "time.sleep(1.0); self.answer(200, b'{\"choices\": []}')"
    loaded = stand.fleet([free_port()], command(stand, post), chunked_prefill=True, max_num_batched_tokens=512)
    supervisor = stand.supervise(loaded)
    waiting = wait(supervisor, lambda status: status[0].phase == "first token")[0]
    assert waiting.state == "starting" and [span.phase for span in waiting.phases][-1] == "listing models"
    status = wait(supervisor, all_ready)[0]
    seconds = {span.phase: span.seconds for span in status.phases}
    assert list(seconds) == ["starting", "sizing KV cache", "listing models", "first token"]
    assert 1.0 <= seconds["first token"] < 3.0
    assert status.facts is not None and status.facts.kv_cache_tokens == 46_592 and status.facts.max_model_len == 4096
    assert status.detail == (
        "KV cache of 46,592 tokens: 11.38 requests of 4,096 tokens at once; chunked prefill of 256 tokens"
    )
    alarm = "max_num_batched_tokens: fleet.yaml asks for 512, but the engine runs with 256"
    assert status.alarms == (alarm,) and f"m-1 runs, but not as asked: {alarm}." in caplog.text
    # The next control plane knows the same, and asks an engine that may be busy for no token.
    supervisor.close()
    adopted = wait(stand.supervise(loaded), all_ready, 5)[0]
    assert (adopted.pid, adopted.phases, adopted.facts) == (status.pid, status.phases, status.facts)
    assert adopted.alarms == (alarm,)


def test_an_engine_that_does_not_generate_is_not_ready(stand: Stand) -> None:
    loaded = stand.fleet([free_port()], command(stand, "time.sleep(60)"), start_timeout="3s")
    status = wait(stand.supervise(loaded), failed)[0]
    assert status.detail.startswith("The engine was not ready after 3 s (first token): no token generated yet.")
    assert status.failure is not None and status.failure.kind == "overdue"


def test_an_engine_whose_first_token_fails_is_not_ready(stand: Stand) -> None:
    loaded = stand.fleet([free_port()], command(stand, 'self.answer(500, b"no kernel")'), start_timeout="3s")
    status = wait(stand.supervise(loaded), failed)[0]
    assert "(first token): asked for a token, it answers 500: no kernel." in status.detail


def test_a_server_without_completions_is_ready_by_its_list(stand: Stand) -> None:
    wait(stand.supervise(stand.fleet([free_port()], command(stand, 'self.answer(404, b"")'))), all_ready)


def test_a_failure_that_would_come_again_is_not_tried_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    text = "vllm: error: unrecognized arguments: --chunked-prefill"
    program = stand.program(f"print('usage: vllm'); print({text!r}); raise SystemExit(2)")
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", program]))
    status = wait(supervisor, lambda status: status[0].phase == "given up")[0]
    assert status.restarts == 0 and stand.log().count("usage") == 1
    assert status.detail == (
        "This version of vLLM has no argument --chunked-prefill. "
        "Write --enable-chunked-prefill instead, in models.m.engine.command."
    )
    assert status.failure is not None and status.failure.lines == (text,)
    assert f"m-1 died (1 in a row): {status.detail}\n  | {text}" in caplog.text


def test_the_last_failure_stays_until_the_engine_is_ready(stand: Stand) -> None:
    marker = stand.folder / "tried"
    program = stand.program(
        "import pathlib, runpy, sys\n"
        f"marker = pathlib.Path({str(marker)!r})\n"
        "if not marker.exists():\n    marker.touch(); raise ValueError('the first time')\n"
        "sys.argv = ['scripted', '--port', sys.argv[1], '--name', 'm']\n"
        "runpy.run_module('tests.scripted', run_name='__main__')"
    )
    supervisor = stand.supervise(stand.fleet([free_port()], ["{python}", program, "{port}"]))
    again = wait(supervisor, lambda status: status[0].restarts == 1)[0]
    assert again.failure is not None and "ValueError: the first time" in again.failure.sentence
    ready = wait(supervisor, all_ready)[0]
    assert ready.failure is None


def test_what_is_kept_belongs_to_one_life(tmp_path: Path) -> None:
    from control.engines.facts import Facts

    kept = Kept("boot:1", (Span("starting", 1.5),), Facts(version="0.32.0"))
    kept.save(tmp_path)
    assert Kept.load(tmp_path, "boot:1") == kept
    assert Kept.load(tmp_path, "boot:2") is None
    (tmp_path / "startup.json").write_text(json.dumps({"life": "boot:1"}))
    assert Kept.load(tmp_path, "boot:1") is None
