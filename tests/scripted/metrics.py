"""GET /metrics as vLLM 0.32 writes it, with this process's own numbers."""

from __future__ import annotations

from tests.scripted.state import BUCKETS, Engine, Histogram


def _histogram(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines = [f"# HELP {name} Seconds.", f"# TYPE {name} histogram"]
    seen = 0
    for bound, count in zip((*BUCKETS, "+Inf"), histogram.counts, strict=True):
        seen += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {seen}.0')
    return [*lines, f"{name}_count{{{labels}}} {seen}.0", f"{name}_sum{{{labels}}} {histogram.total}"]


def exposition(engine: Engine) -> bytes:
    """Prometheus text of one engine."""
    name = engine.names[0].replace("\\", "\\\\").replace('"', '\\"')
    labels = f'engine="0",model_name="{name}"'
    gauges = {"num_requests_running": engine.running - engine.queued,
              "num_requests_waiting": engine.waiting + engine.queued,
              "kv_cache_usage_perc": engine.kv_usage}  # fmt: skip
    counters = {
        "prefix_cache_queries": engine.prompt_tokens, "prefix_cache_hits": 0, "external_prefix_cache_queries": 0,
        "external_prefix_cache_hits": 0, "num_preemptions": 0, "prompt_tokens": engine.prompt_tokens,
        "generation_tokens": engine.generation_tokens,
    }  # fmt: skip
    lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {engine.started_at}"]
    for key, value in gauges.items():
        lines += [f"# HELP vllm:{key} Scripted.", f"# TYPE vllm:{key} gauge", f"vllm:{key}{{{labels}}} {float(value)}"]
    lines += ["# TYPE vllm:num_requests_waiting_by_reason gauge"]
    lines += [f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} 0.0'
              for reason in ("capacity", "deferred")]  # fmt: skip
    for key, value in counters.items():
        lines += [f"# HELP vllm:{key}_total Scripted.", f"# TYPE vllm:{key}_total counter",
                  f"vllm:{key}_total{{{labels}}} {value}.0",
                  f"# TYPE vllm:{key}_created gauge",
                  f"vllm:{key}_created{{{labels}}} {engine.started_at}"]  # fmt: skip
    lines += ["# TYPE vllm:request_success_total counter"]
    lines += [f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{name}"}} '
              f"{engine.reasons[reason]}.0" for reason in ("stop", "length", "abort", "error")]  # fmt: skip
    lines += ["# TYPE vllm:cache_config_info gauge",
              f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{engine.kv_tokens // 16}",'
              f'kv_cache_size_tokens="{engine.kv_tokens}"}} 1.0']  # fmt: skip
    lines += _histogram("vllm:time_to_first_token_seconds", labels, engine.ttft)
    lines += _histogram("vllm:inter_token_latency_seconds", labels, engine.itl)
    lines += _histogram("vllm:e2e_request_latency_seconds", labels, engine.e2e)
    tokens, steps = engine.prompt_tokens + engine.generation_tokens, engine.steps + engine.generation_tokens
    lines += ["# TYPE vllm:iteration_tokens_total histogram",
              f'vllm:iteration_tokens_total_bucket{{{labels},le="+Inf"}} {steps}.0',
              f"vllm:iteration_tokens_total_count{{{labels}}} {steps}.0",
              f"vllm:iteration_tokens_total_sum{{{labels}}} {tokens}.0"]  # fmt: skip
    return ("\n".join(lines) + "\n").encode()
