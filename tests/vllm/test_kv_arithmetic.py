"""The KV cache as Signalbox calculates it, beside vLLM's own code: its model classes, its cache groups, its log."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from control.tuning.architecture import read
from control.tuning.kv_cache import Layout, layout
from control.tuning.settings import Resolved, Settings
from tests.support.model_configs import ALL
from tests.vllm.kv_cases import CASES, GIB


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
def test_as_vllm_calculates(beside_vllm: dict[str, list[Any]], number: int) -> None:
    given, theirs = CASES[number], beside_vllm["caches"][number]
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
