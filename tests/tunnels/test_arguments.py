"""From hosts with ``tunnel`` to ssh's arguments, and what a fleet may say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.engines.containers import container_specs
from control.engines.prepare import local_engines
from control.fleet.resolve import resolve_backends
from control.tunnels.arguments import Target, target_of, tunnels
from tests.support.fleet_yaml import fleet_of, problems_of

IMAGE = {"image": "vllm/vllm-openai:v0.30.1", "drain_timeout": "5m"}


def fleet(hosts: dict[str, Any], backends: list[dict[str, Any]], **model: Any) -> dict[str, Any]:
    return {"hosts": hosts, "models": {"m": {"backends": backends, **model}}}


def test_engines_that_already_run_behind_ssh(tmp_path: Path) -> None:
    backends = [{"host": "box", "port": 8000, "model_name": "org/real"}, {"url": "http://10.0.0.5:8000"}]
    loaded = fleet_of(tmp_path, fleet({"box": {"tunnel": "ssh://root@gpu.lan:2222"}}, backends, aliases=["chat"]))
    first, _ = resolve_backends(loaded)
    assert (first.scheme, first.host, first.port, first.ours) == ("http", "127.0.0.1", 8000, False)
    assert (first.name, first.served, first.machine, first.engine) == ("org/real", ("org/real",), None, None)
    assert local_engines(loaded) == [] and container_specs(loaded) == []
    (tunnel,) = tunnels(loaded)
    assert (tunnel.id, tunnel.machine, tunnel.drain_seconds) == ("m-1", "box", 600)
    words = tunnel.launch().argv
    assert words[:3] == ("ssh", "-N", "-T")
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3",
                   "ControlMaster=no", "ControlPath=none", "ForwardAgent=no"):  # fmt: skip
        assert words[words.index(option) - 1] == "-o"
    assert not any(word.startswith(("StrictHostKeyChecking", "IdentityFile")) for word in words)  # the user's own
    end = ("-l", "root", "-p", "2222", "-L", "127.0.0.1:8000:127.0.0.1:8000", "--", "gpu.lan")
    assert words[-len(end) :] == end


def test_containers_of_ours_are_open_on_loopback_there_too(tmp_path: Path) -> None:
    hosts = {
        "box": {"docker": "ssh://root@198.51.100.7", "tunnel": "ssh", "address": "127.0.0.2", "volumes": ["/m:/m"]}
    }
    backends = [{"host": "box", "port": 8000}, {"host": "box", "port": 8001}]
    loaded = fleet_of(tmp_path, fleet(hosts, backends, source="/m", engine=IMAGE))
    opened = [spec.create_arguments("f", "n")["ports"] for spec in container_specs(loaded)]
    assert opened == [{"8000/tcp": ("127.0.0.2", 8000)}, {"8001/tcp": ("127.0.0.2", 8001)}]
    first, second = tunnels(loaded)
    assert first.launch().argv[-5:] == ("-l", "root", "-L", "127.0.0.2:8000:127.0.0.2:8000", "--", "198.51.100.7")[-5:]
    assert second.remote == ("127.0.0.2", 8001) and first.drain_seconds == 300
    assert resolve_backends(loaded)[0].ours


def test_an_ipv6_loopback_stands_in_brackets(tmp_path: Path) -> None:
    hosts = {"box": {"tunnel": "ssh://gpu", "address": "::1"}}
    (tunnel,) = tunnels(fleet_of(tmp_path, fleet(hosts, [{"host": "box", "port": 8000}])))
    assert tunnel.launch().argv[-4:] == ("-L", "[::1]:8000:127.0.0.1:8000", "--", "gpu")


@pytest.mark.parametrize(
    ("url", "target", "shown", "command"),
    [
        ("ssh://gpu", Target("gpu"), "gpu", "ssh gpu"),
        ("ssh://a-b@gpu.lan", Target("gpu.lan", "a-b"), "a-b@gpu.lan", "ssh a-b@gpu.lan"),
        ("ssh://root@10.0.0.5:22022", Target("10.0.0.5", "root", 22022), "root@10.0.0.5:22022",
         "ssh -p 22022 root@10.0.0.5"),
    ],
)  # fmt: skip
def test_where_ssh_goes(url: str, target: Target, shown: str, command: str) -> None:
    assert target_of(url) == target and str(target) == shown and target.command() == command


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ({"tunnel": "ssh"}, "tunnel: ssh goes the way of docker: ssh://...; without it write tunnel: ssh://user@host"),
        ({"tunnel": "ssh", "docker": "unix:///var/run/docker.sock"}, "tunnel: ssh goes the way of docker: ssh://"),
        ({"tunnel": "ssh://b", "docker": "ssh://b"}, "with docker: ssh://... write tunnel: ssh"),
        ({"tunnel": "ssh://b", "local": True}, "tunnel is for other machines, and local: true is this one"),
        ({"tunnel": "ssh://b", "address": "10.0.0.5"}, "a loopback address such as 127.0.0.2"),
        ({"tunnel": "ssh://b", "address": "localhost"}, "a loopback address such as 127.0.0.2"),
        ({"tunnel": "ssh://b", "gpus": 1}, "gpu_memory, dcgm and volumes are for hosts with docker"),
        ({"tunnel": "ssh://-oProxyCommand=x@b"}, "tunnel: must be ssh (beside docker: ssh://...), or ssh://user@host"),
        ({"tunnel": "ssh://b/path"}, "tunnel: must be ssh (beside docker: ssh://...), or ssh://user@host"),
        ({"tunnel": "ssh://b:99999"}, "hosts.box.tunnel: the port must be from 1 to 65535, not 99999"),
    ],
)  # fmt: skip
def test_hosts_that_make_no_sense(tmp_path: Path, host: dict[str, Any], told: str) -> None:
    problems = problems_of(
        tmp_path, fleet({"box": host}, [{"host": "box", "port": 8000}], engine=IMAGE, source="hub/m")
    )
    assert any(told in str(problem) for problem in problems), [str(problem) for problem in problems]


def test_two_ends_at_one_place_and_the_cure(tmp_path: Path) -> None:
    hosts = {"a": {"tunnel": "ssh://a"}, "b": {"tunnel": "ssh://b"}}
    backends = [{"host": "a", "port": 8000}, {"host": "b", "port": 8000}]
    (problem,) = problems_of(tmp_path, fleet(hosts, backends))
    assert "port 8000 is already taken by models.m.backends[0].port" in str(problem)
    assert "'address: 127.0.0.2'" in str(problem)
    hosts["b"]["address"] = "127.0.0.2"
    assert problems_of(tmp_path, fleet(hosts, backends)) == []
