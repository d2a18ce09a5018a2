"""Phases and their times from log lines that vLLM 0.32 really wrote."""

from __future__ import annotations

import pytest

from control.engines.phases import FIRST_TOKEN, LIMITS, LISTING, SERVING, Span, Timeline, times
from control.engines.readiness import StartupLog

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


def test_the_phases_of_a_real_start() -> None:
    log, seen = StartupLog(Timeline(100.0)), []
    for number, line in enumerate(START.splitlines()):
        log.feed(line, 100.0 + number)
        if not seen or seen[-1] != (log.phase, log.timeline.detail):
            seen.append((log.phase, log.timeline.detail))
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
        ("listing models", ""),
    ]
    assert log.facts.kv_cache_tokens == 46_592 and log.facts.max_concurrency == 11.38
    assert not log.evidence
    log.timeline.enter(FIRST_TOKEN, 120.0)
    log.timeline.enter(SERVING, 121.5)
    assert log.timeline.spans == [
        Span("starting", 6.0), Span("loading weights", 6.0), Span("sizing KV cache", 2.0), Span("warming up", 4.0),
        Span("listing models", 2.0), Span("first token", 1.5),
    ]  # fmt: skip
    assert times(log.timeline.spans[-2:]) == "listing models 2.0 s, first token 1.5 s"


def test_a_gpu_start_compiles_and_captures_graphs() -> None:
    lines = (
        "(EngineCore pid=1) INFO 11-29 14:00:00 [gpu_model_runner.py:1] Starting to load model m...",
        "(EngineCore pid=1) INFO 11-29 14:00:01 [backends.py:1] Using cache directory: /c for vLLM's torch.compile",
        "(EngineCore pid=1) INFO 11-29 14:00:09 [gpu_worker.py:1] Available KV cache memory: 12.34 GiB",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█   | 5/51 [00:01<00:10,  4.43it/s]",
    )
    log, phases = StartupLog(), []
    for line in lines:
        log.feed(line)
        phases.append(log.phase)
    assert phases == ["loading weights", "compiling", "sizing KV cache", "warming up"]
    assert log.timeline.detail == "10 % of the graphs"


def test_phases_never_go_back() -> None:
    log = StartupLog()
    for line in START.splitlines():
        log.feed(line)
    log.feed("(Worker pid=18796) INFO 11-29 14:26:16 [cpu_model_runner.py:68] Starting to load model MODELS/smollm2...")
    assert log.phase == LISTING


@pytest.mark.parametrize(("start_timeout", "factor"), [(600.0, 1), (60.0, 1), (1800.0, 3)])
def test_each_phase_has_a_time_out_of_its_own(start_timeout: float, factor: int) -> None:
    """It counts from the last sign of progress; a longer start_timeout stretches it."""
    line = Timeline(0.0)
    line.feed("Starting to load model m", 50.0)
    limit = LIMITS["loading weights"] * factor
    line.feed("Loading safetensors checkpoint shards:  50% Completed", 100.0)
    line.feed("Loading safetensors checkpoint shards:  50% Completed", 150.0)  # no progress
    assert line.overdue(100.0 + limit, start_timeout) == ""
    words = f"showed nothing new for {limit:g} s (loading weights, 50 % of the shards)"
    assert line.overdue(101.0 + limit, start_timeout) == words
    line.enter(SERVING, 200.0)
    assert line.overdue(1e9, start_timeout) == ""


def test_pydantics_reason_stands_below_its_heading() -> None:
    log = StartupLog()
    for line in (
        "(APIServer pid=2) WARNING 11-29 14:07:20 [arg_utils.py:3005] This model does not officially support it.",
        "(APIServer pid=2) pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig",
        "  Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128). "
        "[type=value_error, input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), input_type=ArgsKwargs]",
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
    ):
        log.feed(line)
    assert log.evidence.first == "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128)."
