"""extra_args: what vLLM would refuse is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.cli import main
from control.engines.containers import container_specs
from control.vllm.extra import complaints
from control.vllm.flags import flags_of
from tests.support.fleet_yaml import FULL, changed, fleet_of, make_files, problems_of, write

ENGINE = ("models", "org/own:1", "engine")


def said(*words: str, release: tuple[int, int, int] = (0, 32, 0)) -> list[str]:
    return [f"[{c.index}] {c.message} {c.hint}".strip() for c in complaints(words, flags_of(release))]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--enforce-eager", "--no-enable-lora", "--seed", "-1", "--block-size=32"),
        ("--lora-modules", "a=/loras/a", "b=/loras/b", "--max_loras", "2"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
        ("--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=3"),
        ("--kv-events-config", '{"hwm": 80k}'),
        ("-O3",),
        ("-O", "3"),
        ("--hf-overrides", "{}", "--chat-template", "/t.jinja", "--middleware", "a.b", "--middleware", "c.d"),
        ("--cpu-offload-gb", "0.5", "--reasoning-parser", "deepseek_r1", "--moe-backend", "Triton"),
        ("--uvicorn-log-level", "warning", "--tokenizer-mode", "auto"),
    ],
)
def test_what_vllm_takes_is_not_complained_of(words: tuple[str, ...]) -> None:
    assert said(*words) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # what old articles say
        (("--chunked-prefill",), "vLLM 0.32.0 has no flag '--chunked-prefill'. Did you mean '--enable-chunked-prefill'?"
         " Write 'chunked_prefill:' under engine."),
        (("--swap-space", "4"), "vLLM 0.32.0 has no --swap-space: it was there until 0.17.1. Remove it."),
        (("--enforce-egaer",), "vLLM 0.32.0 has no flag '--enforce-egaer'. Did you mean '--enforce-eager'?"),
        (("--zzzzzzzz",), "vLLM 0.32.0 has no flag '--zzzzzzzz'. `vllm serve --help=all` lists all."),
        (("--enf",), "vLLM 0.32.0 has no flag '--enf'."),  # argparse would guess; a later release might not
        # values
        (("--enable-lora", "True"), "[1] 'True' belongs to no flag. A switch takes no value: --x turns it on"),
        (("--enable-lora=true",), "takes no value. --enable-lora alone turns it on, --no-enable-lora off."),
        (("--headers",), "has no flag '--headers'"),
        (("--seed",), "[0] --seed needs a value. Write it as the next entry of the list."),
        (("--seed", "--enforce-eager"), "[0] --seed needs a value."),
        (("--seed", "many"), "[1] --seed needs a whole number, not 'many'."),
        (("--cpu-offload-gb=x",), "[0] --cpu-offload-gb needs a number, not 'x'."),
        (("--tokenizer-mode", "auto", "slow"), "[2] 'slow' belongs to no flag."),
        (("--scheduling-policy", "lifo"), "[1] --scheduling-policy of vLLM 0.32.0 does not know 'lifo'. Known: fcfs"),
        (("--hf-overrides-x", "{"), "has no flag '--hf-overrides-x'"),
        (("--speculative-config", "{method"), "[1] --speculative-config needs JSON, not '{method'."),
        (("stray",), "[0] 'stray' belongs to no flag. A flag begins with '--'."),
        # what Signalbox sets itself
        (("--port", "8000"), "[0] --port is set by Signalbox. Write 'port:' in the backend."),
        (("--host=0.0.0.0",), "[0] --host is set by Signalbox. It listens on the 'address:' of its host."),
        (("--api-key", "secret"), "[0] --api-key is set by Signalbox. Write 'key_file:' or 'key_env:' in the backend"),
        (("--served-model-name", "a", "b"), "[0] --served-model-name is set by Signalbox."),
        (("--max_model_len", "8k"), "[0] --max-model-len is set by Signalbox. Write 'max_model_len:' under engine."),
        (("-tp", "2"), "[0] -tp is set by Signalbox. Write 'tensor_parallel_size:' under engine."),
        (("--no-enable-prefix-caching",), "--no-enable-prefix-caching is set by Signalbox. Write 'prefix_caching:'"),
        (("--device-memory-utilization", "0.9"), "Write 'gpu_memory_utilization:' under engine."),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_named(words: tuple[str, ...], message: str) -> None:
    found = said(*words)
    assert len(found) == 1 and message in found[0], found


def test_every_mistake_is_named_at_once() -> None:
    found = said("--port", "1", "--seed", "x", "--enforce-eager", "yes", "--nope-at-all")
    assert [line[: line.index("]") + 1] for line in found] == ["[0]", "[3]", "[5]", "[6]"]


def test_a_secret_is_not_repeated() -> None:
    assert "s3cret" not in " ".join(said("--api-key", "s3cret") + said("--api-key=s3cret"))


def test_releases_differ() -> None:
    assert said("--limit-mm-per-prompt", "image=4,video=1", release=(0, 9, 2)) == []
    assert "needs JSON" in said("--limit-mm-per-prompt", "image=4,video=1", release=(0, 10, 0))[0]
    assert said("--swap-space", "4", release=(0, 10, 0)) == []
    assert "it came with 0.18.0" in said("--grpc", release=(0, 10, 0))[0]
    assert said("--no-enforce-eager", release=(0, 9, 0)) == []
    assert "has no flag '--no-enforce-eager'" in said("--no-enforce-eager", release=(0, 8, 5))[0]
    assert "does not know '7'" in said("--block-size", "7", release=(0, 10, 0))[0]


@pytest.mark.parametrize(
    ("field", "value", "problems"),
    [
        (
            "extra_args",
            ["--enforce-eager", "--max-nun-seqs", "4"],
            ["engine.extra_args[1]: vLLM 0.32.0 has no flag '--max-nun-seqs'. Did you mean '--max-num-seqs'?"],
        ),
        ("version", "0.10.0", ["engine.kv_cache_memory: vLLM 0.10.0 has no such setting. It is there since",
                               "engine.chunked_prefill: vLLM 0.10.0 always cuts long prompts"]),
        ("version", "0.7.3", ["engine.version: vLLM 0.7.3 is older than 0.8.0, the oldest whose flags are known."]),
        ("version", "99.0.0", []),
        ("dtype", "int3", ["engine.dtype: vLLM 0.32.0 does not know 'int3'. It knows: auto, bfloat16, float, float16"]),
        ("kv_cache_dtype", "fp9", ["engine.kv_cache_dtype: vLLM 0.32.0 does not know 'fp9'."]),
        ("long_prefill_token_threshold", 5000, ["5000 is more than max_model_len (4096); vLLM would not start."]),
        ("gpu_memory_utilization", 1.5, ["engine.gpu_memory_utilization: must be at most 1.0, not 1.5."]),
        ("gpu_memory_utilization", "much", ["engine.gpu_memory_utilization: must be a number, not 'much'."]),
        ("gpu_memory_utilization", 1, []),
        ("profile", "chatty", ["engine.profile: must be 'default', 'mixed', 'chat', 'rag' or 'throughput'"]),
        ("tensor_parallel_size", 0, ["engine.tensor_parallel_size: must be at least 1"]),
    ],
)  # fmt: skip
def test_fleet_yaml_is_told_where(tmp_path: Path, field: str, value: Any, problems: list[str]) -> None:
    make_files(tmp_path)
    found = problems_of(tmp_path, changed(FULL, (*ENGINE, field), value))
    assert len(found) == len(problems), found
    for problem, expected in zip(found, sorted(problems, key=lambda text: "chunked" in text), strict=True):
        assert expected in str(problem)
        assert problem.line > 1


def test_a_release_newer_than_all_that_are_known_is_a_warning(tmp_path: Path) -> None:
    make_files(tmp_path)
    (warning,) = fleet_of(tmp_path, changed(FULL, (*ENGINE, "version"), "99.0.0")).warnings
    assert "engine.version: vLLM 99.0.0 is newer than" in str(warning)
    line = write(tmp_path, changed(FULL, (*ENGINE, "version"), "99.0.0")).read_text().splitlines()[warning.line - 1]
    assert line.strip() == "version: 99.0.0"
    assert fleet_of(tmp_path, FULL).warnings == ()


def in_image(image: str, **engine: Any) -> dict[str, Any]:
    """A fleet whose engines run vLLM out of ``image``."""
    host = {"docker": "unix:///var/run/docker.sock", "address": "192.0.2.7", "volumes": ["/data/models:/models"]}
    model = {
        "source": "/models/m",
        "engine": {"image": image, **engine},
        "backends": [{"host": "gpu", "port": 8000}],
    }
    return {"hosts": {"gpu": host}, "models": {"m": model}}


def test_the_release_of_an_image_is_that_of_its_tag(tmp_path: Path) -> None:
    old = in_image("vllm/vllm-openai:v0.10.0", kv_cache_memory="1GiB", extra_args=["--swap-space", "4"])
    (problem,) = problems_of(tmp_path, old)
    assert "models.m.engine.kv_cache_memory: vLLM 0.10.0 has no such setting. It is there since" in str(problem)
    (problem,) = problems_of(tmp_path, in_image("vllm/vllm-openai:v0.30.1", extra_args=["--swap-space", "4"]))
    assert "engine.extra_args[0]: vLLM 0.30.1 has no --swap-space: it was there until 0.17.1." in str(problem)
    loaded = fleet_of(tmp_path, in_image("vllm/vllm-openai:v0.30.1", profile="rag"))
    assert [warning for warning in loaded.warnings if "vLLM" in str(warning)] == []


def test_a_flag_that_will_go_is_a_warning_with_what_to_write_instead(tmp_path: Path) -> None:
    """And the engine is started with it: the release still takes it."""
    old = in_image("vllm/vllm-openai:v0.11.0", extra_args=["--guided-decoding-backend", "auto", "--task=embed"])
    loaded = fleet_of(tmp_path, old)
    first, second = map(str, loaded.warnings)
    assert "engine.extra_args[0]: --guided-decoding-backend is deprecated in vLLM 0.11.0: " in first
    assert "releases after 0.11.2 do not have it. Write '--structured-outputs-config'" in first
    assert "engine.extra_args[2]: --task is deprecated" in second and "'--runner'" in second
    assert container_specs(loaded)[0].command[-1] == "--task=embed"
    (problem,) = problems_of(tmp_path, in_image("vllm/vllm-openai:v0.20.0", extra_args=["--task", "embed"]))
    assert "it was there until 0.12.0. Write '--runner'" in str(problem)
    new = in_image("vllm/vllm-openai:v0.33.0", extra_args=["--log-config-file", "/l.json"])
    (warning,) = fleet_of(tmp_path, new).warnings
    assert "a later release will not have it. vLLM says: Use --logging-config.pylogging_config_file" in str(warning)


def test_an_image_that_does_not_say_its_release_is_a_warning(tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, in_image("vllm/vllm-openai:latest", profile="rag"))
    (warning,) = loaded.warnings
    assert "engine.image: vllm/vllm-openai:latest does not say which vLLM is in it" in str(warning)
    assert fleet_of(tmp_path, in_image("vllm/vllm-openai:latest", version="0.30.1", profile="rag")).warnings == ()


@pytest.mark.parametrize(
    ("gpus", "engine", "said"),
    [
        ([0], {}, ""),
        ([0, 1], {"tensor_parallel_size": 2}, ""),
        ([0, 1], {"pipeline_parallel_size": 2}, ""),
        ([0, 1], {"extra_args": ["--data-parallel-size", "2"]}, ""),
        ([], {"tensor_parallel_size": 2}, ""),  # on a CPU these are processes
        ([0], {"tensor_parallel_size": 2}, "backends[0].gpus: the model is spread over 2 GPUs, but this engine gets 1"),
        (
            [0, 1],
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            "spread over 4 GPUs, but this engine gets",
        ),
        ([0, 1], {}, "this engine gets 2 GPUs, and uses 1 of them. Set 'tensor_parallel_size: 2', or name fewer."),
    ],
)
def test_a_model_gets_as_many_gpus_as_it_is_spread_over(
    tmp_path: Path, gpus: list[int], engine: dict[str, Any], said: str
) -> None:
    fleet = in_image("vllm/vllm-openai:v0.30.1", **engine)
    fleet["models"]["m"]["backends"][0]["gpus"] = gpus
    problems = problems_of(tmp_path, fleet)
    found = problems or fleet_of(tmp_path, fleet).warnings
    assert [said in str(one) for one in found] == [True] * bool(said), found
    assert bool(problems) == ("spread over" in said)


def test_settings_beside_a_command_are_a_warning(tmp_path: Path) -> None:
    make_files(tmp_path)
    engine = {"command": ["serve"], "max_num_seqs": 4, "profile": "chat", "dtype": "half", "extra_args": ["--x"]}
    warnings = fleet_of(tmp_path, changed(FULL, ENGINE, engine)).warnings
    assert [warning.key.rpartition(".")[2] for warning in warnings] == ["profile", "dtype", "extra_args"]
    assert "has no effect beside 'command:'" in str(warnings[0])


def test_render_prints_the_warning_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    model = {
        "source": "weights",
        "engine": {"runtime": "vllm-cpu", "version": "99.0.0"},
        "backends": [{"host": "here", "port": 8101}],
    }
    path = write(tmp_path, {"hosts": {"here": {"local": True}}, "models": {"m": model}})
    done = CliRunner().invoke(main, ["--fleet", str(path), "render"])
    assert done.exit_code == 0, done.output
    assert f"warning: {path}:" in done.stderr and "vLLM 99.0.0 is newer than" in done.stderr
    assert "warning" not in done.stdout
