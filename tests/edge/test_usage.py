"""Tokens of streams whose client did not ask for usage: the edge asks, and the client gets its stream as before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.client import CHAT, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model
from tests.support.net import wait_until
from tests.support.raw import Cut, RawClient

COMPLETIONS = "/v1/completions"
TEXT = 'data: {"id":"x","choices":[{"index":0,"delta":{"content":"\\"choices\\":[],\\"usage\\":{"}}]}\n\n'
USAGE = (
    'data: {"id":"x","choices":[],"usage":{"prompt_tokens":14,"total_tokens":18,"completion_tokens":4},'
    '"system_fingerprint":"f"}\n\n'
)
DONE = "data: [DONE]\n\n"
ALIVE = ": keep-alive\n\n"


@pytest.fixture(scope="module")
def counting(_engines: list[ScriptedEngine]) -> Iterator[Alphabet]:
    """The shared engines behind an edge that counts all tokens; alpha-chat and beta are renamed for them."""
    alphabet = Alphabet(None, _engines[:2], _engines[2], 8 * 1024**2)  # type: ignore[arg-type]
    fleet = alphabet.fleet()
    fleet["edge"]["count_usage"] = True
    with Edge(fleet) as edge:
        alphabet.edge = edge
        yield alphabet


def tokens(edge: Edge, request_id: str) -> tuple[int | None, int | None]:
    line = edge.log_of(request_id)
    return line["prompt_tokens"], line["completion_tokens"]


def without_time(body: bytes) -> list[bytes]:
    first, *rest = body.split(b'"created":')
    return [first, *(part[10:] for part in rest)]


def ask(port: int, path: str, body: dict[str, Any], request_id: str = "same-id") -> bytes:
    with RawClient(port) as client:
        client.request(path, body, headers={"X-Request-Id": request_id})
        head = client.head()
        assert head.status == 200 and head.headers["transfer-encoding"] == "chunked"
        return client.body(head)


def body_for(path: str, **extra: Any) -> dict[str, Any]:
    prompt = {"prompt": "Count me please"} if path == COMPLETIONS else {"messages": chat(text="a b c")["messages"]}
    return {"model": "alpha", **prompt, "stream": True, **extra}


@pytest.mark.parametrize("script", [{}, {"merge": 99}, {"split": 1, "tokens": 3}, {"comment_first": True}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_clients_stream_is_the_one_without_usage(counting: Alphabet, path: str, script: dict[str, Any]) -> None:
    """Every byte, however the engine's writes are cut; and the log has the engine's own numbers."""
    body = body_for(path, scripted=script)
    name = f"counted-{path.split('/')[2]}-{'-'.join(script)}"
    through = ask(counting.edge.port, path, body, name)
    direct = ask(counting.alphas[0].port, path, body, name)
    assert without_time(through) == without_time(direct)
    assert b'"usage"' not in through and through.endswith(DONE.encode())
    asked = ask(counting.alphas[0].port, path, {**body, "stream_options": {"include_usage": True}})
    usage = next(json.loads(line[6:])["usage"] for line in asked.splitlines() if b'"usage"' in line)
    assert tokens(counting.edge, name) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert counting.edge.log_of(name)["end"] == "complete"


def test_the_metrics_count_them(counting: Alphabet) -> None:
    """Of a model that no other test here asks: workers write down what they have counted a moment later."""
    ask(counting.edge.port, CHAT, {**body_for(CHAT, max_tokens=7), "model": "beta"})

    def counted() -> float:
        return counting.edge.metric("signalbox_tokens_total", model="beta", kind="completion")

    assert wait_until("the tokens to be counted", counted) == 7


def test_a_client_that_asks_gets_its_usage(counting: Alphabet) -> None:
    for options in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}):
        body = body_for(CHAT, stream_options=options, scripted={"tokens": 3})
        through, direct = (ask(port, CHAT, body) for port in (counting.edge.port, counting.alphas[0].port))
        assert without_time(through) == without_time(direct)
        assert b'"choices":[],"usage":{' in through


def test_continuous_usage_alone_stays_without_effect(counting: Alphabet) -> None:
    """It means nothing without include_usage; with the edge's own include_usage every event would have a usage."""
    body = body_for(CHAT, stream_options={"continuous_usage_stats": True}, scripted={"tokens": 3})
    assert b"usage" not in ask(counting.edge.port, CHAT, body, "continuous")
    assert tokens(counting.edge, "continuous")[1] == 3


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ('"stream":true', '"stream":true,"stream_options":{"include_usage":true}'),
        ('"stream": true ,"stream_options": null', '"stream": true ,"stream_options": {"include_usage":true}'),
        ('"stream_options":{ },"stream":true', '"stream_options":{"include_usage":true },"stream":true'),
        (
            '"stream":true,"stream\\u005foptions":{"a":[1],"include_usage":false}',
            '"stream":true,"stream\\u005foptions":{"a":[1],"include_usage":true}',
        ),
        ('"stream":true,"stream_options":{"include_usage":true}',) * 2,
        ('"stream":true,"stream_options":"x"',) * 2,
        ('"stream":true,"stream_options":[]',) * 2,
        ('"stream":false',) * 2,
        ('"n":1',) * 2,
    ],
)
@pytest.mark.parametrize("size", [100, 2_000_000], ids=["memory", "file"])
@pytest.mark.parametrize("alias", [False, True], ids=["same name", "renamed"])
@pytest.mark.parametrize("last", [False, True], ids=["name first", "name last"])
def test_nothing_else_of_the_body_changes(
    counting: Alphabet, given: str, arrives: str, size: int, alias: bool, last: bool
) -> None:
    def body(members: str, model: str) -> bytes:
        rest = f'"messages":[{{"role":"user","content":"{"x" * size} \\/ \\u00e9"}}],"seed":12345678901234567890'
        parts = [f'"model" : "{model}"', members, rest, '"scripted":{"echo":true}', '"top_p":0.30000000000000004']
        return ("{ " + " , ".join(parts[1:] + parts[:1] if last else parts) + " }").encode()

    answer = counting.edge.post(CHAT, data=body(given, "alpha-chat" if alias else "alpha"))
    expected = body(arrives, "alpha")
    seen = answer.json()
    assert (seen["length"], seen["sha256"]) == (len(expected), hashlib.sha256(expected).hexdigest())
    assert dict(seen["headers"])["content-length"] == str(len(expected))


def test_other_paths_keep_their_bodies(counting: Alphabet) -> None:
    body = json.dumps({"model": "alpha", "stream": True, "input": "x", "scripted": {"echo": True}}).encode()
    answer = counting.edge.post("/v1/responses", data=body)
    assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()


def test_options_that_are_no_object_are_the_engines_400(counting: Alphabet) -> None:
    answer = counting.edge.post(CHAT, body_for(CHAT, stream_options="x"))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "body.stream_options"


def test_without_the_switch_no_body_and_no_stream_changes(alphabet: Alphabet) -> None:
    body = json.dumps(body_for(CHAT, scripted={"echo": True})).encode()
    assert alphabet.edge.post(CHAT, data=body).json()["sha256"] == hashlib.sha256(body).hexdigest()
    raw = TEXT + USAGE + DONE
    assert ask(alphabet.edge.port, CHAT, body_for(CHAT, scripted={"raw": raw})) == raw.encode()


@pytest.mark.parametrize("crlf", [False, True], ids=["LF", "CRLF"])
def test_the_event_is_taken_out_wherever_reads_end(counting: Alphabet, crlf: bool) -> None:
    """One after another: a read that ends at each byte of the event and around it, then all single bytes."""
    parts = [ALIVE + TEXT, USAGE, ALIVE + DONE]
    if crlf:
        parts = [part.replace("\n", "\r\n") for part in parts]
    raw, expected = "".join(parts), (parts[0] + parts[2]).encode()
    first, last = len(parts[0]) - 3, len(parts[0] + parts[1]) + 5
    for place in range(first, last):
        script = {"raw": raw, "split_at": [place], "split_ms": 2}
        assert ask(counting.edge.port, CHAT, body_for(CHAT, scripted=script)) == expected, place
    script = {"raw": raw, "split": 1, "split_ms": 0.5}
    assert ask(counting.edge.port, CHAT, body_for(CHAT, scripted=script), f"bytes-{crlf}") == expected
    assert tokens(counting.edge, f"bytes-{crlf}") == (14, 4)


def test_other_servers_write_json_with_spaces(counting: Alphabet) -> None:
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 4}}\n\n'
    body = body_for(CHAT, scripted={"raw": TEXT + usage + DONE})
    assert ask(counting.edge.port, CHAT, body, "spaces") == (TEXT + DONE).encode()
    assert tokens(counting.edge, "spaces") == (14, 4)


def test_a_stream_with_a_length_loses_it(counting: Alphabet) -> None:
    raw = TEXT + USAGE + DONE
    script = {"raw": raw, "content_length": True}
    assert ask(counting.edge.port, CHAT, body_for(CHAT, scripted=script)) == (TEXT + DONE).encode()
    asking = body_for(CHAT, scripted=script, stream_options={"include_usage": True})
    answer = counting.edge.post(CHAT, asking)
    assert answer.headers["Content-Length"] == str(len(raw)) and answer.text == raw


@pytest.mark.parametrize("size", [2, 30, len(USAGE) - 1])
@pytest.mark.parametrize("cut", [False, True], ids=["ends", "is cut"])
def test_a_stream_that_stops_in_the_event_passes_whole(counting: Alphabet, size: int, cut: bool) -> None:
    """What was held back comes at the end, honest or not."""
    raw = TEXT + USAGE[:size]
    script = {"raw": raw, "split_at": [len(TEXT)], "split_ms": 5, **({"cut_after": 0} if cut else {})}
    name = f"stops-{size}-{cut}"
    with counting.edge.raw() as client:
        client.request(CHAT, body_for(CHAT, scripted=script), headers={"X-Request-Id": name})
        assert client.head().status == 200
        got = b""
        try:
            for _, data in client.chunks():
                got += data
            assert not cut
        except Cut:
            assert cut
    assert got == raw.encode()
    assert counting.edge.log_of(name)["end"] == ("engine_cut" if cut else "complete")


@pytest.mark.parametrize("script", [{"error_event_after": 2}, {"told_to_stop_after": 2}, {"cut_after": 3}])
def test_broken_streams_break_as_before(counting: Alphabet, script: dict[str, Any]) -> None:
    def read(port: int) -> list[bytes]:
        got = b""
        with RawClient(port) as client:
            client.request(CHAT, body_for(CHAT, scripted=script), headers={"X-Request-Id": "broken"})
            assert client.head().status == 200
            try:
                for _, data in client.chunks():
                    got += data
            except (Cut, ConnectionResetError):
                got += b"(cut)"
        return without_time(got)

    assert read(counting.edge.port) == read(counting.alphas[0].port)


def test_an_event_comes_when_it_is_whole(counting: Alphabet) -> None:
    """Nothing waits for the next read but the beginning of an event."""
    script = {"raw": TEXT + TEXT + USAGE + DONE, "split_at": [len(TEXT), 2 * len(TEXT)], "split_ms": 300}
    with counting.edge.raw() as client:
        client.request(CHAT, body_for(CHAT, scripted=script))
        client.head()
        moments = [moment for moment, _ in client.events()]
    assert len(moments) == 3
    assert moments[1] - moments[0] > 0.15 and moments[2] - moments[1] > 0.15


def test_a_long_event_is_not_held_for_ever(counting: Alphabet) -> None:
    long = 'data: {"choices":[{"delta":{"content":"' + "x" * 200_000 + '"}}]}\n\n'
    script = {"raw": long + USAGE + DONE, "split_at": [100_000, 150_000, len(long) + 9], "split_ms": 50}
    assert ask(counting.edge.port, CHAT, body_for(CHAT, scripted=script), "long") == (long + DONE).encode()
    assert tokens(counting.edge, "long") == (14, 4)


def test_errors_of_the_engine_stay_untouched(counting: Alphabet) -> None:
    answer = counting.edge.post(CHAT, body_for(CHAT, scripted={"status": 503}))
    direct = requests.post(counting.alphas[0].url + CHAT, json=body_for(CHAT, scripted={"status": 503}), timeout=10)
    assert (answer.status_code, answer.content) == (direct.status_code, direct.content)
    assert "Content-Length" in answer.headers


def test_http_1_0_and_slow_readers_get_the_same(counting: Alphabet) -> None:
    text = TEXT * 3000  # more than the sockets' buffers take
    script = {"raw": text + USAGE + DONE, "split": 5000}
    data = json.dumps(body_for(CHAT, scripted=script)).encode()
    with counting.edge.raw() as client:
        head = f"POST {CHAT} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        client.send(head.encode() + data)
        assert client.head().status == 200
        got = client.buffer
        while part := client.socket.recv(1000):
            got += part
    assert got == (text + DONE).encode()


@pytest.mark.slow
def test_the_next_engine_gets_both_changes_once(engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
    """After a failed connect the body, changed already, gets the next engine's name: every place in it has moved."""
    fleet = one_model("alpha", engine, engine_2, policy="round_robin", count_usage=True)
    for backend, name in zip(fleet["models"]["alpha"]["backends"], ("a-much-longer-name", "b"), strict=True):
        backend["model_name"] = name
    engine.configure(names=["a-much-longer-name"])
    engine_2.configure(names=["b"])
    with Edge(fleet) as edge:
        engine.kill()
        for size in (10, 2_000_000):
            for order in (1, -1):
                parts = ['"stream":true', '"model":"%s"', f'"user":"{"x" * size}"', '"scripted":{"echo":true}'][::order]
                body = "{" + ",".join(parts) + "}"
                asked = body.replace('"stream":true', '"stream":true,"stream_options":{"include_usage":true}')
                expected = hashlib.sha256((asked % "b").encode()).hexdigest()
                for _ in range(3):
                    data = ("{" + body[1:-1] % "alpha" + ',"messages":[]}').encode()
                    whole = ((asked % "b")[:-1] + ',"messages":[]}').encode()
                    expected = hashlib.sha256(whole).hexdigest()
                    assert edge.post(CHAT, data=data).json()["sha256"] == expected
