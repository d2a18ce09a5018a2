"""The watcher of containers: whose fault it is that an engine does not answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from control.engines import reconcile
from control.engines.docker import DockerHost
from control.engines.plan import Found
from control.engines.policy import Policy
from control.engines.reconcile import Reconciler
from control.paths import StatePaths
from tests.support.fleet_yaml import fleet_of

HOST = {"docker": "ssh://ops@box.lan", "tunnel": "ssh"}
ENGINE = {"image": "vllm/vllm-openai:v0.30.1", "start_timeout": "5s"}
MODEL = {"source": "org/m", "engine": ENGINE, "backends": [{"id": "m-1", "host": "box", "port": 8000}]}


def test_the_tunnel_is_named_and_its_time_is_not_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tunnel = ["the tunnel to it is down: no route to host"]
    stopped: list[str] = []
    monkeypatch.setattr(reconcile, "unready", lambda _: "does not listen yet")
    monkeypatch.setattr(DockerHost, "stop", lambda _, container, seconds: stopped.append(container))
    monkeypatch.setattr(DockerHost, "logs", lambda *_, **__: iter(()))
    loaded = fleet_of(tmp_path, {"hosts": {"box": HOST}, "models": {"m": MODEL}})
    one = Reconciler(loaded, StatePaths(tmp_path / "state"), Policy(), lambda _: lambda _: tunnel[0])
    (watcher,) = one._watchers
    watched = watcher.watched["m-1"]
    running = Found("c1", "signalbox-m-1", "box", "m-1", "h", "running", started=1.0)
    watcher._judge(watched, running)
    watched.alive_since = time.monotonic() - 60  # far longer than start_timeout
    watcher._judge(watched, running)
    (status,) = one.status()
    assert (status.state, status.detail) == ("starting", tunnel[0]) and stopped == []
    tunnel[0] = ""
    watcher._judge(watched, running)
    assert one.status()[0].detail == "does not listen yet" and stopped == []
    watched.alive_since = time.monotonic() - 60
    watcher._judge(watched, running)
    assert stopped == ["c1"] and "was not ready after 5 s" in one.status()[0].detail
