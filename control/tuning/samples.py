"""What an engine's and an edge's /metrics say at one moment. Pure: text in, numbers out.

What is not there is None, never 0: a zero is a measurement. vLLM has renamed some metrics; the newest name that a
version has counts (as in ``lua/edge/promread.lua``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from control.tuning.histogram import Histogram

#: More than this is nobody's /metrics.
MAX_BYTES = 4 * 1024 * 1024

#: Field of EngineSample → names that vLLM has had for it, the newest first.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "started": ("process_start_time_seconds",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total",
                       "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
                    "vllm:gpu_prefix_cache_hits"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
}  # fmt: skip
_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds",),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
    "prompts": ("vllm:request_prompt_tokens",),
    "iterations": ("vllm:iteration_tokens_total",),
}
_CACHE = "vllm:cache_config_info"
_MEANS = ("kv_usage", "started")
_ENGINE_NAMES = tuple(
    name for names in (*_NUMBERS.values(), *_HISTOGRAMS.values(), (_CACHE,)) for name in names
)  # fmt: skip
_EDGE_NAMES = ("signalbox_queue_", "signalbox_ttft_", "signalbox_itl_", "signalbox_in_flight",
               "signalbox_backend_limit", "signalbox_prefix_")  # fmt: skip

Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What an engine counts: since its start in a sample, in a window in facts. None: nothing told it."""

    preemptions: float | None = None
    #: Tokens looked up in the prefix cache, and those found there.
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    #: Seconds. Queue, prefill and decode are counted when a request ends, the first two when a token comes.
    ttft: Histogram | None = None
    itl: Histogram | None = None
    queue: Histogram | None = None
    prefill: Histogram | None = None
    decode: Histogram | None = None
    #: Tokens of the prompts of requests that ended.
    prompts: Histogram | None = None
    #: Tokens of each step. A prompt that was cut counts whole in the step that ends it (vllm/v1/metrics/stats.py).
    iterations: Histogram | None = None
    kv_tokens: int | None = None
    prefix_caching: bool | None = None


@dataclass(frozen=True)
class EngineSample(Counted):
    """One engine at ``at`` (monotonic seconds). Counters and histograms since its start; ``kv_usage`` 0 to 1."""

    at: float
    #: When the server's process began (Unix seconds): another one counts from 0 again.
    started: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


@dataclass(frozen=True)
class BackendSample:
    """What the edge counts of one backend. Bytes of prompts, since the edge's first start."""

    in_flight: float | None = None
    limit: float | None = None
    #: Hashed bytes of prompts; of these, what this backend had seen, and what any backend of the model had.
    prompt_bytes: float = 0.0
    known_bytes: float = 0.0
    shared_bytes: float = 0.0
    #: Of prompts that only their cache_salt keeps apart from earlier ones.
    salted_bytes: float = 0.0


@dataclass(frozen=True)
class ModelSample:
    """What the edge counts of one model: requests that wait now; seconds."""

    waiting: float = 0.0
    wait: Histogram | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None


@dataclass(frozen=True)
class EdgeSample:
    """One edge at ``at`` (monotonic seconds), by ids of backends and names of models."""

    at: float
    backends: Mapping[str, BackendSample] = field(default_factory=dict)
    models: Mapping[str, ModelSample] = field(default_factory=dict)


def engine_sample(text: str, at: float) -> EngineSample:
    """A sample of vLLM's exposition; several engines of one server are added up. Raises ValueError for other text."""
    found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for name, labels, value in _read(text, _ENGINE_NAMES):
        found[name].append((labels, value))
    values: dict[str, float | Histogram | int | bool | None] = {}
    for key, names in _NUMBERS.items():
        numbers = next(([value for _, value in found[name]] for name in names if name in found), None)
        if numbers:
            values[key] = sum(numbers) / (len(numbers) if key in _MEANS else 1)
    for key, names in _HISTOGRAMS.items():
        values[key] = next((one for name in names if (one := _histogram(found, name)) is not None), None)
    if found[_CACHE]:
        values |= _cache([labels for labels, _ in found[_CACHE]])
    return EngineSample(at, **values)  # type: ignore[arg-type]  # the tables above name fields of these types


def edge_sample(text: str, at: float) -> EdgeSample:
    """A sample of an edge's exposition. Raises ValueError for other text."""
    by_backend: dict[str, dict[str, float]] = defaultdict(dict)
    by_model: dict[str, dict[str, list[tuple[Labels, float]]]] = defaultdict(lambda: defaultdict(list))
    waiting: dict[str, float] = defaultdict(float)
    fields = {"signalbox_in_flight": "in_flight", "signalbox_backend_limit": "limit",
              "signalbox_prefix_prompt_bytes_total": "prompt_bytes",
              "signalbox_prefix_known_bytes_total": "known_bytes",
              "signalbox_prefix_shared_bytes_total": "shared_bytes",
              "signalbox_prefix_salted_bytes_total": "salted_bytes"}  # fmt: skip
    for name, labels, value in _read(text, _EDGE_NAMES):
        if name in fields:
            by_backend[labels.get("backend", "")][fields[name]] = value
        elif name == "signalbox_queue_length":
            waiting[labels.get("model", "")] += value
        else:
            by_model[labels.get("model", "")][name].append((labels, value))
    models = {
        model: ModelSample(
            waiting[model],
            *(_histogram(by_model[model], f"signalbox_{name}_seconds") for name in ("queue_wait", "ttft", "itl")),
        )
        for model in {*by_model, *waiting}
    }
    return EdgeSample(at, {backend: BackendSample(**values) for backend, values in by_backend.items()}, models)


def _read(text: str, names: tuple[str, ...]) -> Iterator[tuple[str, Labels, float]]:
    """Samples whose names begin with one of ``names``: parsing all of vLLM's 70 KB would take four times as long."""
    from prometheus_client.parser import text_string_to_metric_families

    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(text):,} bytes are nobody's /metrics")
    lines = "\n".join(line for line in text.splitlines() if line.startswith(names))
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                if math.isfinite(sample.value) and sample.value >= 0:
                    yield sample.name, sample.labels, sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"no Prometheus text: {error}") from error


def _histogram(found: Mapping[str, list[tuple[Labels, float]]], name: str) -> Histogram | None:
    cumulated: dict[float, float] = defaultdict(float)
    for labels, value in found.get(f"{name}_bucket", ()):
        cumulated[float(labels["le"])] += value
    if math.inf not in cumulated:
        return None
    bounds = sorted(cumulated)
    counts, seen = [], 0.0
    for bound in bounds:
        counts.append(max(0.0, cumulated[bound] - seen))
        seen = cumulated[bound]
    total = sum(value for _, value in found.get(f"{name}_sum", ()))
    return Histogram(tuple(bounds[:-1]), tuple(counts), total)


def _cache(infos: Iterable[Labels]) -> dict[str, int | bool | None]:
    """Size of the KV cache in tokens (older versions tell blocks only) and whether beginnings are kept."""
    tokens, caching = 0, None
    for labels in infos:
        size = labels.get("kv_cache_size_tokens", "")
        blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if size.isdecimal():
            tokens += int(size)
        elif blocks.isdecimal() and block.isdecimal():
            tokens += int(blocks) * int(block)
        said = labels.get("enable_prefix_caching")
        caching = said == "True" if said in ("True", "False") else caching
    return {"kv_tokens": tokens or None, "prefix_caching": caching}
