"""vLLM's own arithmetic, run by the Python of its runtime: which cache its model code asks for, and how many blocks.

Standard input: JSON, ``caches`` with cases {config, tensor_parallel_size, pipeline_parallel_size, block_size,
kv_memory, max_model_len, max_num_batched_tokens, lengths}, and ``settings`` as tests/tuning/config_side.py takes them;
standard output: JSON with what vLLM says of each, under the same names. The model is built from config.json by vLLM's
own classes without memory for its weights (meta device), layer by layer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1")

sys.path.insert(0, str(Path(__file__).parents[1] / "tuning"))

import torch
from config_side import verdicts
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.utils import get_pp_indices
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils as kv


def specs_of(config: dict[str, Any], folder: Path, case: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """vLLM's configuration for this case, and the cache specification of each layer on one GPU."""
    (folder / "config.json").write_text(json.dumps(config))
    arguments = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, max_model_len=case["max_model_len"], max_num_seqs=16,
        max_num_batched_tokens=case["max_num_batched_tokens"], block_size=case["block_size"], load_format="dummy",
        kv_cache_dtype=case.get("kv_cache_dtype", "auto"), language_model_only=True,
        disable_hybrid_kv_cache_manager=False,
    )  # fmt: skip
    vllm_config = arguments.create_engine_config()
    with set_current_vllm_config(vllm_config), torch.device("meta"):
        initialize_model(vllm_config)
    # CPUs want another state; this is what GPUs get.
    ssm = getattr(vllm_config.model_config.hf_text_config, "mamba_ssm_dtype", None)
    vllm_config.cache_config.mamba_ssm_cache_dtype = ssm or "auto"
    current_platform.update_block_size_for_backend(vllm_config)  # blocks that hold a whole state of linear attention
    layers = vllm_config.compilation_config.static_forward_context
    parallel = replace(vllm_config.parallel_config)
    object.__setattr__(parallel, "tensor_parallel_size", case["tensor_parallel_size"])
    found = {}
    for name, layer in layers.items():
        if isinstance(layer, AttentionLayerBase) and (spec := layer.get_kv_cache_spec(vllm_config)) is not None:
            whole = vllm_config.model_config.get_total_num_kv_heads()
            if getattr(spec, "num_kv_heads", 0) == whole:  # not the single latent vector of MLA
                spec = replace(spec, num_kv_heads=vllm_config.model_config.get_num_kv_heads(parallel))
            found[name] = spec
    return vllm_config, found


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of one case."""
    with tempfile.TemporaryDirectory() as folder:
        vllm_config, specs = specs_of(case["config"], Path(folder), case)
    count = case["pipeline_parallel_size"]
    object.__setattr__(vllm_config.parallel_config, "pipeline_parallel_size", count)
    object.__setattr__(vllm_config.scheduler_config, "async_scheduling", True)  # the default on GPUs
    names = sorted(specs, key=lambda name: int(next(part for part in name.split(".") if part.isdigit())))
    bounds = [get_pp_indices(len(names), rank, count) for rank in range(count)]
    workers = [{name: specs[name] for name in names[first:last]} for first, last in bounds]
    vllm_config.cache_config.kv_cache_layout = "LBNHC"
    vllm_config.model_config.max_model_len = 1  # its own check of the memory passes
    configs = kv.get_kv_cache_configs(vllm_config, workers, [case["kv_memory"]] * count)
    scheduler = kv.generate_scheduler_kv_cache_config(configs)
    lengths = {}
    # The second model runner is what GPUs get (it needs Triton); it decides how many steps may be under way.
    with mock.patch.object(type(vllm_config), "use_v2_model_runner", property(lambda _: True)):
        for length in case["lengths"]:
            vllm_config.model_config.max_model_len = length
            lengths[str(length)] = kv.get_kv_cache_capacity(vllm_config, scheduler)
        most = longest(vllm_config, configs, case["kv_memory"], max(case["lengths"]))
    return {
        "bytes_per_token": max(
            sum(spec.page_size_bytes // spec.block_size for spec in worker.values() if hasattr(spec, "num_kv_heads"))
            for worker in workers
        ),
        "blocks": configs[0].num_blocks,
        "lengths": lengths,
        "longest": most,
    }


def longest(vllm_config: Any, configs: list[Any], kv_memory: int, most: int) -> int:
    """The greatest length with which vLLM's own check of the memory passes on every worker."""
    vllm_config.model_config.max_model_len = most
    found = []
    for config in configs:
        groups = config.kv_cache_groups
        usable = kv_memory - kv._pool_bytes_per_block(vllm_config, groups)
        found.append(kv._estimate_max_model_len_from_groups(vllm_config, groups, usable))
    return min(found)


def main() -> None:
    """Answer all cases; what fails says so in its place."""
    # Without AMX vLLM's CPU code lacks kernels and has other blocks. None is run here, and the question is about GPUs.
    torch.cpu._is_amx_tile_supported = lambda: True
    with tempfile.NamedTemporaryFile() as rendezvous:
        from vllm.config import VllmConfig

        with set_current_vllm_config(VllmConfig()):
            init_distributed_environment(1, 0, f"file://{rendezvous.name}", 0, "gloo")
            initialize_model_parallel(1, 1)
        asked = json.load(sys.stdin)
        answers = []
        for case in asked["caches"]:
            try:
                answers.append(answer(case))
            except Exception:  # the test reports it and fails
                answers.append({"error": traceback.format_exc()[-3000:]})
        settings = verdicts(asked["settings"])
        sys.stdout.write("\n" + json.dumps({"caches": answers, "settings": settings}))


main()
