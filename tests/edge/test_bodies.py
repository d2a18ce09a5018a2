"""Request bodies: the engine gets the client's bytes, or the client gets a clear refusal."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.fleets import Alphabet

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "2 MB": 2_000_000, "5 MB": 5_000_000}


def sized(model: str, size: int, **extra: Any) -> bytes:
    """A chat body of ``size`` bytes whose model stands at the very end."""
    body = json.dumps({**chat(text="", echo=True), **extra, "model": model}).encode()
    text = b'a\\/\\u00e9\\\\\\" '
    return body.replace(b'"content": ""', b'"content": "' + text * ((size - len(body)) // len(text)) + b'"')


def in_chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 60_000):
        yield data[start : start + 60_000]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_engine_gets_the_clients_bytes(alphabet: Alphabet, size: int, chunked: bool) -> None:
    """Bodies over the memory buffer go to a file, where Lua's usual call finds nothing; chunked ones have no length.

    Decoding and encoding again would turn [] into {}, damage numbers and reorder keys, and so change the prompt that
    the engine's prefix cache knows.
    """
    body = sized("alpha", size, tools=[], stop=[], seed=1234567890123456789, top_p=0.30000000000000004)
    answer = alphabet.edge.post(CHAT, data=in_chunks(body) if chunked else body)
    assert answer.status_code == 200, answer.text
    seen = answer.json()
    assert (seen["length"], seen["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    headers = dict(seen["headers"])
    assert headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in headers


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_an_alias_is_replaced_in_bodies_of_every_size(alphabet: Alphabet, size: int, chunked: bool) -> None:
    body = sized("alpha-chat", size)
    answer = alphabet.edge.post(CHAT, data=in_chunks(body) if chunked else body)
    assert answer.status_code == 200, answer.text
    expected = body.replace(b'"alpha-chat"', b'"alpha"')
    seen = answer.json()
    assert (seen["length"], seen["sha256"]) == (len(expected), hashlib.sha256(expected).hexdigest())
    assert dict(seen["headers"])["content-length"] == str(len(expected))


def test_empty_lists_stay_lists(alphabet: Alphabet) -> None:
    """An empty Lua table is encoded as {}, and the engine answers "Input should be a valid list"."""
    body = {**chat("alpha-chat"), "tools": [], "stop": [], "x": {"required": []}}
    assert alphabet.edge.post(CHAT, body).status_code == 200


def test_an_image_of_more_than_a_megabyte_passes(alphabet: Alphabet) -> None:
    """nginx's default limit of 1 MB answers an HTML page to a picture in a data: address."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_200_000}}
    body = {**chat("alpha"), "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, image]}]}
    assert alphabet.edge.post(CHAT, body).status_code == 200


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_body_over_the_limit_is_413(alphabet: Alphabet, chunked: bool) -> None:
    body = sized("alpha", alphabet.max_body + 100_000)
    before = sum(engine.started() for engine in alphabet.alphas)
    answer = alphabet.edge.post(CHAT, data=in_chunks(body) if chunked else body, new_connection=True)
    check_error(answer, 413, "body_too_large")
    assert sum(engine.started() for engine in alphabet.alphas) == before


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"nope", b"[]", b'"alpha"', b"null", b"5", b"{", b'{"model"', b'{"model":"alpha"',
        b'{"model":"alpha"}}',
        b'{"model":"alpha"} x', b'{model:"alpha"}', b'{"model":"alpha",}', b"{'model':'alpha'}",
        b'\xef\xbb\xbf{"model":"alpha"}', '{"model":"alpha"}'.encode("utf-16"), '{"model":"alpha"}'.encode("utf-16-le"),
        '{"model":"alpha"}'.encode("utf-32"),
    ],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(alphabet: Alphabet, body: bytes) -> None:
    """Python's parser also reads a byte order mark and UTF-16, in which a scanner of bytes would see no model."""
    check_error(alphabet.edge.post(CHAT, data=body), 400, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"alpha","model":"beta"}', b'{"model":"beta","x":1,"model":"beta"}',
        b'{"model":"alpha","\\u006dodel":"beta"}',
        b'{"model":"alpha","stream":true,"stream":false}',
    ],
)  # fmt: skip
def test_a_routing_key_that_stands_twice_is_refused(alphabet: Alphabet, body: bytes) -> None:
    """Parsers differ in which of two they take: the name that was checked might not be the one that is used."""
    check_error(alphabet.edge.post(CHAT, data=body), 400, "duplicate_key")


def test_another_key_that_stands_twice_is_the_engines_business(alphabet: Alphabet) -> None:
    body = b'{"model":"alpha","user":"a","user":"b","scripted":{"echo":true}}'
    assert alphabet.edge.post(CHAT, data=body).json()["sha256"] == hashlib.sha256(body).hexdigest()


def test_the_number_of_keys_is_bounded(alphabet: Alphabet) -> None:
    """A hundred thousand keys would hold a worker for 30 ms."""
    body: dict[str, Any] = {"model": "alpha", "scripted": {"echo": True}}
    fits = {**body, **{f"k{number}": number for number in range(254)}}
    assert alphabet.edge.post(CHAT, fits).status_code == 200
    check_error(alphabet.edge.post(CHAT, {**fits, "one": 1}), 400, "too_many_keys")
    many = {**body, **{f"k{number}": number for number in range(100_000)}}
    check_error(alphabet.edge.post(CHAT, many), 400, "too_many_keys")


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("brackets", ["[]", "{}"], ids=["lists", "objects"])
def test_a_bomb_of_brackets_is_refused_at_once(alphabet: Alphabet, brackets: str, closed: bool) -> None:
    """Recursive parsers overflow their stack; Python raises RecursionError at about a thousand."""
    opening = ("[" if brackets == "[]" else '{"a":') * 100_000
    body = f'{{"model":"alpha","x":{opening}' + (f"1{brackets[1] * 100_000}}}" if closed else "")
    began = time.monotonic()
    check_error(alphabet.edge.post(CHAT, data=body.encode()), 400, "too_deep")
    assert time.monotonic() - began < 1
    assert alphabet.edge.post(CHAT, chat("alpha")).status_code == 200


def test_deep_but_sane_nesting_passes(alphabet: Alphabet) -> None:
    body = '{"model":"alpha","scripted":{"echo":true},"x":' + "[" * 500 + "]" * 500 + "}"
    assert alphabet.edge.post(CHAT, data=body.encode()).status_code == 200
    body = body.replace("[" * 500, "[" * 513).replace("]" * 500, "]" * 513)
    check_error(alphabet.edge.post(CHAT, data=body.encode()), 400, "too_deep")


def test_kv_transfer_params_of_a_client_are_refused(alphabet: Alphabet) -> None:
    """They name hosts and cache blocks of the engines, or replace the prompt."""
    body = {**chat("alpha"), "kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}
    check_error(alphabet.edge.post(CHAT, body), 400, "field_not_allowed")
    escaped = b'{"model":"alpha","\\u006bv_transfer_params":{"remote_host":"10.0.0.1"}}'
    check_error(alphabet.edge.post(CHAT, data=escaped), 400, "field_not_allowed")


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_what_engines_tell_each_other_is_refused_in_every_place(alphabet: Alphabet, name: str) -> None:
    """vLLM reads them at the top level and copies the members of vllm_xargs to the same place."""
    check_error(alphabet.edge.post(CHAT, {**chat("alpha"), name: {}}), 400, "field_not_allowed")
    check_error(
        alphabet.edge.post(CHAT, {**chat("alpha"), "vllm_xargs": {"a": 1, name: "x"}}), 400, "field_not_allowed"
    )
    assert alphabet.edge.post(CHAT, {**chat("alpha"), "vllm_xargs": {"mine": 1}}).status_code == 200
    assert alphabet.edge.post(CHAT, {**chat("alpha"), "vllm_xargs": None}).status_code == 200


def test_names_that_are_not_utf8_get_json(alphabet: Alphabet) -> None:
    """An error that repeats a name must itself be JSON."""
    check_error(alphabet.edge.post(CHAT, data=b'{"model":"\xff","messages":[]}'), 400, "invalid_model")
    check_error(alphabet.edge.get("/v1/models/%ff"), 404, "model_not_found")
    message = check_error(alphabet.edge.post(CHAT, chat("a" + "é" * 100)), 404, "model_not_found")
    assert "é..." in message


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "deflate", "GZIP", "gzip, identity"])
def test_a_compressed_body_is_refused_by_name(alphabet: Alphabet, encoding: str) -> None:
    """Clients that compress were told "invalid JSON" or "model missing", and nobody knew why."""
    body = json.dumps(chat("alpha")).encode()
    answer = alphabet.edge.post(CHAT, data=body, headers={"Content-Encoding": encoding})
    check_error(answer, 415, "unsupported_encoding")


def test_identity_encoding_is_no_encoding(alphabet: Alphabet) -> None:
    answer = alphabet.edge.post(CHAT, chat("alpha"), headers={"Content-Encoding": "identity"})
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_another_content_type_is_refused(alphabet: Alphabet, kind: str) -> None:
    body = json.dumps(chat("alpha")).encode()
    check_error(alphabet.edge.post(CHAT, data=body, headers={"Content-Type": kind}), 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_with_parameters_is_json(alphabet: Alphabet, kind: str) -> None:
    body = json.dumps(chat("alpha")).encode()
    assert alphabet.edge.post(CHAT, data=body, headers={"Content-Type": kind}).status_code == 200


def test_a_refused_body_leaves_the_connection_usable(alphabet: Alphabet) -> None:
    with alphabet.edge.raw() as client:
        for _ in range(3):
            client.request(CHAT, b"nope")
            head = client.head()
            assert head.status == 400
            client.body(head)
            client.request(CHAT, chat("alpha"))
            head = client.head()
            assert head.status == 200
            client.body(head)


def test_expect_100_continue_is_answered(alphabet: Alphabet) -> None:
    """curl asks first when a body is larger than a kilobyte or a megabyte, by version."""
    body = sized("alpha", 10_000)
    with alphabet.edge.raw() as client:
        client.request(CHAT, b"", headers={"Content-Length": str(len(body)), "Expect": "100-continue"})
        assert client.head().status == 100
        client.send(body)
        head = client.head()
        assert head.status == 200
        assert json.loads(client.body(head))["length"] == len(body)
