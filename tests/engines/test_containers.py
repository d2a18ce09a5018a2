"""From fleet.yaml to what Docker is asked, and to the plan. No Docker is needed here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.engines import docker_errors
from control.engines.adoption import unlike
from control.engines.containers import ContainerSpec, container_specs, device_requests
from control.engines.plan import Foreign, Found, Seen, Step, differences, plan
from control.engines.policy import Deaths, Policy
from control.engines.rollout import claims
from control.errors import EngineError
from tests.support.fleet_yaml import fleet_of

FLEET: dict[str, Any] = {
    "hosts": {
        "a": {"docker": "unix:///run/docker.sock", "gpus": 2, "volumes": ["/data/models:/models"]},
        "b": {"docker": "ssh://ops@192.168.1.11", "address": "192.168.1.11", "gpus": 1},
    },
    "models": {
        "m": {
            "aliases": ["alias"],
            "source": "/models/own",
            "engine": {
                "image": "vllm/vllm-openai:v0.30.1",
                "max_num_seqs": 8,
                "environment": {"OMP_NUM_THREADS": "4"},
                "secrets": {"HF_TOKEN": "hf.token"},
                "memory": "8g",
                "cpus": 1.5,
                "volumes": ["/data/models:/models", "cache:/root/.cache:rw"],
            },
            "backends": [
                {"host": "a", "port": 8000, "gpus": [0], "key_file": "engine.key"},
                {"host": "a", "port": 8001, "gpus": [1]},
                {"host": "b", "port": 8000, "gpus": ["GPU-1f2e"]},
            ],
        }
    },
}


def specs(folder: Path, **engine: Any) -> list[ContainerSpec]:
    (folder / "hf.token").write_text("hf_secret\n")
    (folder / "engine.key").write_text("sk-engine\n")
    content = json.loads(json.dumps(FLEET))
    content["models"]["m"]["engine"] |= engine
    return container_specs(fleet_of(folder, content))


def test_what_docker_is_asked(tmp_path: Path) -> None:
    first, _, third = specs(tmp_path)
    asked = first.create_arguments("f00", "signalbox-m-1")
    labels = asked.pop("labels")
    assert asked == {
        "image": "vllm/vllm-openai:v0.30.1",
        "name": "signalbox-m-1",
        "entrypoint": ["vllm", "serve"],
        "command": ["/models/own", "--served-model-name", "m", "alias", "--host", "0.0.0.0", "--port", "8000",
                    "--max-num-seqs", "8", "--shutdown-timeout", "23", "--max-num-queued-reqs", "256"],
        "environment": {
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75", "OMP_NUM_THREADS": "4", "HF_TOKEN": "hf_secret",
            "VLLM_API_KEY": "sk-engine",
        },
        "ports": {"8000/tcp": ("127.0.0.1", 8000)},
        "mounts": [
            {"Target": "/models", "Source": "/data/models", "Type": "bind", "ReadOnly": True},
            {"Target": "/root/.cache", "Source": "cache", "Type": "volume", "ReadOnly": False},
        ],
        "log_config": {"Type": "json-file", "Config": {"max-size": "20m", "max-file": "2"}},
        "restart_policy": {"Name": "no"},
        "ipc_mode": "host",
        "device_requests": [
            {"Driver": "nvidia", "Count": 0, "DeviceIDs": ["0"], "Capabilities": [["gpu"]], "Options": {}}
        ],
        "mem_limit": 8 * 1024**3,
        "memswap_limit": 8 * 1024**3,
        "nano_cpus": 1_500_000_000,
    }  # fmt: skip
    assert labels["signalbox.fleet"] == "f00" and labels["signalbox.backend"] == "m-1"
    assert labels["signalbox.spec"] == first.hash()
    assert "secret" not in str(labels).replace('"secrets"', "") and "sk-engine" not in str(labels)
    assert "hf_secret" not in repr(first)
    asked = third.create_arguments("f00", "x")
    assert asked["ports"] == {"8000/tcp": ("192.168.1.11", 8000)}
    assert asked["device_requests"][0]["DeviceIDs"] == ["GPU-1f2e"]


def test_shared_memory_of_its_own(tmp_path: Path) -> None:
    asked = specs(tmp_path, shm_size="4g")[0].create_arguments("f", "n")
    assert (asked["ipc_mode"], asked["shm_size"]) == ("private", 4 * 1024**3)


def test_the_image_says_which_flags_there_are(tmp_path: Path) -> None:
    old = specs(tmp_path, image="vllm/vllm-openai:v0.10.2")[0]
    assert "--shutdown-timeout" not in old.command and "--max-num-queued-reqs" not in old.command
    told = specs(tmp_path, image="ours/vllm:latest", version="0.18.0")[0]
    assert "--shutdown-timeout" in told.command and "--max-num-queued-reqs" not in told.command


def test_two_engines_on_one_gpu_are_told_of(tmp_path: Path) -> None:
    content = json.loads(json.dumps(FLEET))
    backends = [{"host": "a", "port": 8000, "gpus": [0]}, {"host": "a", "port": 8001, "gpus": [0]}]
    content["models"]["m"]["backends"] = backends
    (tmp_path / "hf.token").write_text("hf_secret")
    (warning,) = fleet_of(tmp_path, content).warnings
    assert "engines on GPU 0 of a want 180% of its memory together." in str(
        warning
    ) and "gpu_memory_utilization" in str(warning)
    content["models"]["m"]["engine"]["gpu_memory_utilization"] = 0.45
    assert fleet_of(tmp_path, content).warnings == ()


def test_never_a_count_with_ids() -> None:
    assert device_requests(()) == []
    (request,) = device_requests((0, 3))
    assert (request["DeviceIDs"], request["Count"]) == (["0", "3"], 0)


def test_a_name_on_the_hub_may_be_looked_up(tmp_path: Path) -> None:
    content = json.loads(json.dumps(FLEET))
    content["models"]["m"]["source"] = "Qwen/Qwen3-0.6B"
    (tmp_path / "hf.token").write_text("hf_secret")
    (tmp_path / "engine.key").write_text("sk-engine")
    spec = container_specs(fleet_of(tmp_path, content))[0]
    assert spec.command[0] == "Qwen/Qwen3-0.6B" and "HF_HUB_OFFLINE" not in spec.environment


def test_a_command_is_run_in_the_image(tmp_path: Path) -> None:
    spec = specs(tmp_path, command=["{python}", "-m", "server", "{host}:{port}", "{model}"])[0]
    assert spec.entrypoint == ("python3",)
    assert spec.command == ("-m", "server", "0.0.0.0:8000", "/models/own")


@pytest.mark.parametrize("text", ["", "\n", "two\nlines\n"])
def test_a_file_without_a_secret(tmp_path: Path, text: str) -> None:
    specs(tmp_path)
    (tmp_path / "hf.token").write_text(text)
    with pytest.raises(EngineError, match="holds no secret for HF_TOKEN") as caught:
        container_specs(fleet_of(tmp_path, FLEET))
    assert "lines" not in caught.value.message


def test_what_changes_a_container_and_what_does_not(tmp_path: Path) -> None:
    base = specs(tmp_path)[0].hash()
    for change in ({"max_num_seqs": 9}, {"image": "x:1"}, {"memory": "9g"}, {"volumes": ["/data:/models"]}):
        assert specs(tmp_path, **change)[0].hash() != base, change
    for change in ({"drain_timeout": "1m"}, {"start_timeout": "1m"}, {"min_ready": 0}):
        assert specs(tmp_path, **change)[0].hash() == base, change
    same = specs(tmp_path)[0]
    (tmp_path / "hf.token").write_text("another")
    assert container_specs(fleet_of(tmp_path, FLEET))[0].hash() != same.hash(), "a new secret"


# The plan.


def found(spec: ContainerSpec, **values: Any) -> Found:
    start = Found(
        "0123456789abcdef", spec.name, spec.host, spec.id, spec.hash(), "running", spec.facts(), "sha256:1",
        started=100.0, listen=(spec.engine.host, spec.engine.port),
    )  # fmt: skip
    return replace(start, **values)


def steps(desired: list[ContainerSpec], a: Seen, b: Seen | None = None, **options: Any) -> list[tuple[str, str, str]]:
    seen: Mapping[str, Seen] = {"a": a, "b": b or Seen()}
    return [(step.do, step.backend, step.why) for step in plan(desired, seen, **options)]


def only(spec: ContainerSpec, *ours: Found, **seen: Any) -> Step:
    (step,) = plan([spec], {spec.host: Seen(tuple(ours), **seen)})
    return step


def test_nothing_there_and_everything_there(tmp_path: Path) -> None:
    wanted = specs(tmp_path)
    assert steps(wanted, Seen()) == [("start", f"m-{n}", "it has no container") for n in (1, 2, 3)]
    a, b = Seen(tuple(map(found, wanted[:2]))), Seen((found(wanted[2]),))
    assert steps(wanted, a, b) == [("keep", f"m-{n}", "it runs as asked") for n in (1, 2, 3)]
    assert steps(wanted, a, b, names=["m-2"], anew=True) == [("replace", "m-2", "as you asked")]


def test_why_a_container_is_started_or_replaced(tmp_path: Path) -> None:
    spec, old = specs(tmp_path)[0], specs(tmp_path, max_num_seqs=4)[0]
    cases: list[tuple[Step, str, str]] = [
        (only(spec, found(old)), "replace", "its settings changed"),
        (only(spec, found(old, state="exited")), "start", "its container does not run, and its settings changed"),
        (only(spec, found(spec, state="created", started=0.0)), "start", "it was never started"),
        (only(spec, found(spec, state="exited", exit_code=1)), "start", "it has ended with exit code 1"),
        (only(spec, found(spec, state="exited", out_of_memory=True)), "start", "it has ended (out of memory)"),
        (only(spec, found(spec), images={spec.image: "sha256:2"}), "replace", f"{spec.image} is another image now"),
        (only(spec, found(spec), images={spec.image: "sha256:1"}), "keep", "it runs as asked"),
        (only(spec, found(spec), found(old, state="exited")), "wait", "its replacement was interrupted"),
        (only(spec, found(spec, state="created"), found(old)), "replace", "it was never started"),
        (only(spec, found(spec, state="paused")), "conflict", "somebody has paused it. Let it go on: docker unpause "),
    ]
    for step, do, why in cases:
        assert step.do == do and step.why.startswith(why), (step.do, step.why)
    assert cases[0][0].changes == ("--max-num-seqs: 4 → 8",)


def test_what_left_the_fleet_or_moved_is_stopped(tmp_path: Path) -> None:
    wanted = specs(tmp_path)
    gone = replace(found(wanted[0]), backend="old-1", id="f" * 64)
    assert steps(wanted[:1], Seen((found(wanted[0]), gone)))[1] == ("stop", "old-1", "it has left the fleet")
    moved = steps(wanted[:1], Seen(), Seen((found(wanted[0]),)))
    assert moved == [("start", "m-1", "it has no container"), ("stop", "m-1", "it belongs to a now")]
    assert [do for do, *_ in steps(wanted[:1], Seen((gone,)), names=["m"])] == ["start"], "only what was named"


def test_who_is_in_the_way(tmp_path: Path) -> None:
    spec = specs(tmp_path)[0]
    cases = [
        (
            Foreign("c" * 64, "theirs", "nginx:1", "running", (("0.0.0.0", 8000),)),
            "port 8000 is taken by the container",
        ),
        (
            Foreign("c" * 64, "theirs", "nginx:1", "running", (("127.0.0.1", 8000),)),
            "theirs (cccccccccccc, image",
        ),
        (Foreign("c" * 64, "signalbox-m-1", "nginx:1", "exited"), "the name signalbox-m-1 is taken by"),
    ]
    for other, words in cases:
        step = only(spec, foreign=(other,))
        assert step.do == "conflict" and words in step.why, step
    harmless = Foreign("c" * 64, "theirs", "nginx:1", "running", (("10.0.0.1", 8000), ("0.0.0.0", 8002)))
    assert only(spec, foreign=(harmless,)).do == "start"
    assert only(spec, foreign=(replace(cases[0][0], state="exited"),)).do == "start"


def test_differences_in_words(tmp_path: Path) -> None:
    old = specs(tmp_path)[0].facts()
    new = specs(tmp_path, max_num_seqs=16, image="x:2", environment={"OMP_NUM_THREADS": "8"}, prefix_caching=False)[0]
    assert differences(old, new.facts()) == [
        "image: vllm/vllm-openai:v0.30.1 → x:2",
        "--max-num-seqs: 8 → 16",
        "--no-enable-prefix-caching: none → given",
        "environment: OMP_NUM_THREADS: 4 → 8",
    ]
    (tmp_path / "hf.token").write_text("another")
    assert differences(old, container_specs(fleet_of(tmp_path, FLEET))[0].facts()) == ["secrets: HF_TOKEN: changed"]


def test_adoption_wants_the_same(tmp_path: Path) -> None:
    spec = specs(tmp_path)[0]
    row = {
        "State": {"Status": "running"},
        "Config": {"Image": spec.image, "Entrypoint": ["vllm", "serve"], "Cmd": list(spec.command),
                   "Env": ["OMP_NUM_THREADS=4", "PATH=/bin"]},
        "HostConfig": {"PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]}, "IpcMode": "host",
                       "DeviceRequests": [{"DeviceIDs": ["0"]}]},
        "Mounts": [{"Source": "/data/models", "Destination": "/models", "RW": False},
                   {"Name": "cache", "Destination": "/root/.cache", "RW": True}],
    }  # fmt: skip
    assert unlike(row, spec) == []
    row["Config"]["Env"] = ["OMP_NUM_THREADS=2"]  # type: ignore[index]
    assert unlike(row, spec)[-1] == "environment: OMP_NUM_THREADS: 2 → 4"
    assert unlike({**row, "State": {"Status": "exited"}}, spec) == ["it does not run (exited)"]


# Docker's own words.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "nvidia-container-toolkit"),
        (
            "driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port is already allocated",
            "ss -l",
        ),
        ('invalid mount config for type "bind": bind source path does not exist: /x', "Correct the volume"),
        ("error parsing manifest: invalid character '<' looking for beginning of value", "registry-mirrors"),
        ("failed to decode referrers index: invalid character '<' looking for beginning of value", "leave out --pull"),
        ("unexpected media type text/html for sha256:0a: not found", "containerd-snapshotter"),
        ("nvidia-container-cli: initialization error: WSL environment detected but no adapters were found", "wsl --up"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8", "newer GPU driver"),
        ("invoking the NVIDIA Container Runtime Hook directly is not supported", "nvidia-container-runtime.mode=auto"),
        ("write /var/lib/docker/x: no space left on device", "docker system df"),
        ("pull access denied for x, repository does not exist", "docker login"),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", "with its tag"),
        ('Get "https://registry/v2/": dial tcp: lookup registry: no such host', "docker save IMAGE"),
        ('exec: "vllm": executable file not found in $PATH', "is it an image of vLLM"),
    ],
)
def test_dockers_errors_have_a_cure(text: str, words: str) -> None:
    assert words in docker_errors.cure(text)


def test_an_unknown_error_has_none() -> None:
    assert docker_errors.cure("the moon is full") == ""


def test_pauses_grow_and_end() -> None:
    deaths = Deaths(Policy(pauses=(1, 5), quick=60, give_up_after=4))
    told = []
    for ready_for in (0, 0, 100, 0, 0, 0):
        deaths.add(ready_for)
        told.append((deaths.count, deaths.pause, deaths.too_many))
    assert told == [(1, 1, False), (2, 5, False), (1, 1, False), (2, 5, False), (3, 5, False), (4, 5, True)]


def test_engines_that_share_a_gpu_and_backends_that_are_replaced_take_turns(tmp_path: Path) -> None:
    first, second, _ = specs(tmp_path)
    old = specs(tmp_path, max_num_seqs=4)
    share = replace(second, gpus=(0,))
    starts = plan([first, share], {"a": Seen()})
    assert [claims(step) for step in starts] == [["gpu a 0"], ["gpu a 0"]]
    assert claims(plan([second], {"a": Seen()})[0]) == ["gpu a 1"]
    replaced = plan([first, second], {"a": Seen((found(old[0]), found(old[1])))})
    assert [claims(step) for step in replaced] == [["model m", "gpu a 0"], ["model m", "gpu a 1"]]
