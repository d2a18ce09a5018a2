"""Models and settings for which vLLM's own arithmetic of the KV cache is asked (kv_side.py)."""

from __future__ import annotations

from typing import Any

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
