"""Docker hosts that have left fleet.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.engines.docker import DockerHost
from control.engines.hosts import Hosts
from control.engines.left_hosts import forget, left, remember
from control.engines.plan import Found, Seen
from control.errors import EngineError
from control.fleet.host_schema import Host
from control.paths import StatePaths
from tests.support.fleet_yaml import fleet_of

HERE = {"docker": "unix:///run/a.sock", "gpus": 2}
THERE = {"docker": "ssh://ops@192.168.1.11", "address": "192.168.1.11"}
ENGINE = {"image": "vllm/vllm-openai:v0.30.1"}
MODEL = {"source": "org/m", "engine": ENGINE, "backends": [{"id": "m-1", "host": "a", "port": 8000, "gpus": [0]}]}


def test_what_is_remembered(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    a, b = Host.model_validate(HERE), Host.model_validate(THERE)
    for name, host in (("a", a), ("b", b)):
        remember(paths, name, host)
        remember(paths, name, host)
    assert left(paths, {"a": a, "b": b}) == {}
    assert left(paths, {"renamed": a, "b": b}) == {}, "the same engine under another name"
    found = left(paths, {"a": a})
    assert found.keys() == {"b"} and found["b"].docker == b.docker and found["b"].address == "192.168.1.11"
    assert left(paths, {"b": a}).keys() == {"b (before)"}, "the name has moved on to another machine"
    (paths.root / "hosts" / "broken.json").write_text("{")
    forget(paths, "b (before)", b)
    assert left(paths, {"a": a}) == {}


def found(identity: str, host: str, backend: str = "m-1") -> Found:
    return Found(identity, "n", host, backend, "h", "running")


def test_what_runs_on_a_host_that_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its containers are found there; not those of the same engine in another way, nor while that is not known."""
    loaded = fleet_of(tmp_path, {"hosts": {"a": HERE}, "models": {"m": MODEL}})
    paths = StatePaths(tmp_path / "state")
    remember(paths, "b", Host.model_validate(THERE))
    there: dict[str, Seen | EngineError] = {}

    def see(host: DockerHost, *_: object) -> Seen:
        answer = there[host.name]
        if isinstance(answer, EngineError):
            raise answer
        return answer

    monkeypatch.setattr(DockerHost, "see", see)
    there = {"a": Seen((found("1", "a"),)), "b": Seen((found("2", "b"),))}
    seen, problems = Hosts(loaded, paths).see()
    assert [one.id for one in seen["b"].ours] == ["2"] and problems == {}

    there["a"] = EngineError("a is away.")
    seen, problems = Hosts(loaded, paths).see()
    assert "b" not in seen and "b has left fleet.yaml, and has 1 containers" in problems["b"].message

    there = {"a": Seen((found("1", "a"),)), "b": EngineError("b is away.", "Is it on?")}
    seen, problems = Hosts(loaded, paths).see()
    assert "b has left fleet.yaml with containers of this fleet. b is away." in problems["b"].message
    hint = f"Is it on? If that machine is gone for good, remove its file from {paths.root / 'hosts'}."
    assert problems["b"].hint == hint

    there["b"] = Seen((found("1", "b"),))
    seen, problems = Hosts(loaded, paths).see()
    assert seen["b"].ours == () and problems == {} and len(list((paths.root / "hosts").iterdir())) == 1, "only a"
    assert Hosts(loaded, paths).by_name.keys() == {"a"}
