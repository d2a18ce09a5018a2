"""Phases, facts and reasons from log lines that vLLM 0.32 really wrote."""

from __future__ import annotations

import pytest

from control.engines.readiness import KvCache, StartupLog

START = """\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(APIServer pid=18577) INFO 11-29 14:25:57 [api_utils.py:347]        █     █     █▄   ▄█
(APIServer pid=18577) INFO 11-29 14:25:57 [api_utils.py:286] non-default args: {'model_tag': 'MODELS/smollm2'}
(APIServer pid=18577) INFO 11-29 14:26:03 [model.py:2152] Using max model len 4096
(EngineCore pid=18720) INFO 11-29 14:26:09 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'
(Worker pid=18796) INFO 11-29 14:26:16 [parallel_state.py:1906] world_size=1 rank=0 local_rank=0 \
distributed_init_method=file://TMPFILE backend=gloo
(Worker pid=18796) INFO 11-29 14:26:16 [cpu_model_runner.py:68] Starting to load model MODELS/smollm2...

Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]

Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  7.76it/s]
(Worker pid=18796) INFO 11-29 14:26:16 [default_loader.py:501] Loading weights took 0.13 seconds
(Worker pid=18796) INFO 11-29 14:26:17 [cpu_worker.py:260] Explicitly set (1.0/19.59) GiB for KV cache on node 0.
(EngineCore pid=18720) INFO 11-29 14:26:17 [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, \
Maximum concurrency for 4,096 tokens per request: 11.38x
(EngineCore pid=18720) INFO 11-29 14:26:18 [core.py:402] init engine (profile, create kv cache, warmup model) took 1 s
(APIServer pid=18577) INFO 11-29 14:26:20 [entry.py:140] Starting vLLM server on http://127.0.0.1:8141
INFO:     Started server process [18577]
INFO:     Waiting for application startup.
INFO:     Application startup complete.
INFO:     127.0.0.1:59172 - "GET /health HTTP/1.1" 200 OK
"""

KV_TOO_SMALL = """\
(EngineCore pid=5) ERROR 11-29 14:09:25 [core.py:1510] EngineCore failed to start.
(EngineCore pid=5) ERROR 11-29 14:09:25 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=5) ERROR 11-29 14:09:25 [core.py:1510]     raise ValueError(
(EngineCore pid=5) ERROR 11-29 14:09:25 [core.py:1510] ValueError: To serve at least one request with the model's max \
seq len (2048), (0.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB).
(APIServer pid=4) Traceback (most recent call last):
(APIServer pid=4) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

PYDANTIC = """\
(APIServer pid=24015) WARNING 11-29 14:07:20 [arg_utils.py:3005] This model does not officially support disabling it.
(APIServer pid=24015) pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128). [type=value_error, \
input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


def read(text: str) -> StartupLog:
    log = StartupLog()
    for line in text.splitlines(keepends=True):
        log.feed(line)
    return log


def test_the_phases_of_a_real_start() -> None:
    log, seen = StartupLog(), []
    for line in START.splitlines():
        log.feed(line)
        if not seen or seen[-1] != (log.phase, log.detail):
            seen.append((log.phase, log.detail))
    assert seen == [
        ("starting", ""),
        ("starting", "reading the model's configuration"),
        ("starting", "starting the engine process"),
        ("starting", "starting the workers"),
        ("loading weights", ""),
        ("loading weights", "0 % of the shards"),
        ("loading weights", "100 % of the shards"),
        ("sizing KV cache", ""),
        ("warming up", ""),
        ("serving", ""),
    ]
    assert log.kv_cache == KvCache(tokens=46_592, length=4_096, requests=11.38)
    assert log.error == ""


def test_a_gpu_start_compiles_and_captures_graphs() -> None:
    lines = (
        "(EngineCore pid=1) INFO 11-29 14:00:00 [gpu_model_runner.py:1] Starting to load model m...",
        "(EngineCore pid=1) INFO 11-29 14:00:01 [backends.py:1] Using cache directory: /c for vLLM's torch.compile",
        "(EngineCore pid=1) INFO 11-29 14:00:09 [gpu_worker.py:1] Available KV cache memory: 12.34 GiB",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 10%",
    )
    log, phases = StartupLog(), []
    for line in lines:
        log.feed(line)
        phases.append(log.phase)
    assert phases == ["loading weights", "compiling", "sizing KV cache", "warming up"]


def test_phases_never_go_back() -> None:
    log = read(START)
    log.feed("(Worker pid=18796) INFO 11-29 14:26:16 [cpu_model_runner.py:68] Starting to load model MODELS/smollm2...")
    assert log.phase == "serving"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (KV_TOO_SMALL, "ValueError: To serve at least one request with the model's max seq len (2048), "),
        (PYDANTIC, "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)."),
        ("vllm: error: unrecognized arguments: --swap-space 4", "vllm: error: unrecognized arguments: --swap-space 4"),
        (
            "vllm serve: error: argument --enable-chunked-prefill: ignored explicit argument 'True'",
            "vllm serve: error: argument --enable-chunked-prefill: ignored explicit argument 'True'",
        ),
        ("KeyError: 'invalid tool call parser: nope (chose from { x })'", "KeyError: 'invalid tool call parser: nope"),
        ("    raise ValueError(\nValueError: No available memory for", "ValueError: No available memory"),
        ("OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use"),
        (START, ""),
    ],
)  # fmt: skip
def test_the_line_that_decided_a_failure(text: str, reason: str) -> None:
    log = read(text)
    assert log.failed().startswith(reason) and bool(log.error) == bool(reason)
    assert (log.phase, log.detail) == ("failed", log.error)


def test_the_first_reason_counts() -> None:
    log = read("ValueError: the cause\nTypeError: what came of it\n")
    assert log.failed() == "ValueError: the cause"


def test_a_line_of_any_length_is_bounded() -> None:
    log = read("ValueError: " + "x" * 1_000_000)
    assert len(log.failed()) <= 600
