"""Findings about what an engine's last start has told (log, /metrics, /v1/models), against the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control.engines.facts import Facts
from control.tuning.advise import Rules, Says
from control.tuning.static_facts import StaticFacts

_LOG = "control/engines/facts.py: start-up log, /metrics"
#: A KV cache below this share of the planned one is worth a look; estimates are better than that.
_PLANNED = 0.9
#: What vLLM takes on NVIDIA cards when nothing faster supports the model, its types or the card (platforms/cuda.py).
_FALLBACKS = ("TRITON_ATTN", "FLEX_ATTENTION", "TORCH_SDPA", "XFORMERS")


@dataclass(frozen=True)
class StartFacts:
    """What an engine runs with, and what was known before it started."""

    facts: Facts
    before: StaticFacts


RULES: Rules[StartFacts] = Rules("log")


@RULES.rule("warning", "chunked prefill is off, though nobody turned it off", _LOG)
def not_chunking(start: StartFacts) -> Iterator[Says]:
    """By what the engine says of its configuration. That a line is missing proves nothing."""
    if start.facts.chunked_prefill is not False or not start.before.told.chunked:
        return
    yield Says(
        "The engine reads prompts in one piece, though fleet.yaml does not say so: while it reads a long one, all "
        "running answers stand still.",
        "chunked_prefill: true. If it stays off, the model or release cannot; 'chunked_prefill: false' says you know.",
    )


@RULES.rule("warning", "prefix caching is off, though nobody turned it off", _LOG)
def not_caching(start: StartFacts) -> Iterator[Says]:
    """Some models cannot; some releases do not by default."""
    if start.facts.prefix_caching is not False or start.before.told.given.get("prefix_caching") is False:
        return
    yield Says(
        "The engine keeps no prefixes, though fleet.yaml does not say so: equal beginnings are computed for each "
        "prompt.",
        "prefix_caching: true. If it stays off, the model or release cannot; 'prefix_caching: false' says you know.",
    )


@RULES.rule("warning", f"a KV cache of less than {_PLANNED:.0%} of what was planned", _LOG)
def cache_below_plan(start: StartFacts) -> Iterator[Says]:
    """Somebody else uses the card, or a part is larger than it was estimated."""
    budget, tokens = start.before.budget, start.facts.kv_cache_tokens
    if budget is None or tokens is None or not budget.starts or tokens >= _PLANNED * budget.tokens:
        return
    given = start.facts.gpu_memory_utilization
    share = f" at gpu_memory_utilization {given:g}" if given is not None else ""
    yield Says(
        f"The KV cache has {tokens:,} tokens{share}; planned were {budget.tokens:,} on {budget.card.name} "
        f"({budget.card.bytes / 2**30:.1f} GiB). Another program may use the card, or hosts.gpu_memory says too much.",
        "Look at `nvidia-smi` of that host, and at 'Available KV cache memory' in the engine's log.",
    )


@RULES.rule("info", "fewer requests of full length fit than run at the same time", _LOG)
def concurrency_below_sequences(start: StartFacts) -> Iterator[Says]:
    """vLLM's own line, beside max_num_seqs."""
    fit, sequences = start.facts.max_concurrency, start.before.sequences
    if fit is None or sequences is None or fit >= sequences:
        return
    tokens = start.facts.kv_cache_tokens
    each = f" With all of them running, each may have {tokens // sequences:,} tokens." if tokens else ""
    length = f" of {start.facts.max_model_len:,} tokens" if start.facts.max_model_len else " of full length"
    yield Says(
        f"vLLM says that {fit:g} requests{length} fit at once, and max_num_seqs is {sequences:,}.{each} Beyond that it "
        "preempts.",
        f"Only if requests are that long: max_num_seqs: {max(1, int(fit))}.",
    )


@RULES.rule("info", "attention by a fallback", "vllm/platforms/cuda.py, the line 'Using ... attention backend'")
def slow_attention(start: StartFacts) -> Iterator[Says]:
    """Faster backends were passed over."""
    name = start.facts.attention_backend
    if name not in _FALLBACKS:
        return
    yield Says(
        f"Attention is computed by {name}, which vLLM takes on NVIDIA cards when FlashAttention and FlashInfer do not "
        "support the card, the model or its number formats. (On AMD it is the usual one.)",
        "Try dtype: bfloat16 and kv_cache_dtype: auto; the engine's log names the backends that were possible.",
    )


@RULES.rule("warning", "weights are kept in the machine's memory", "vllm/model_executor/offloader/uva.py, its log line")
def weights_offloaded(start: StartFacts) -> Iterator[Says]:
    """--cpu-offload-gb: every step fetches them over PCIe."""
    if not start.facts.cpu_offload_gib:
        return
    yield Says(
        f"{start.facts.cpu_offload_gib:g} GiB of weights lie in the machine's memory and cross the bus in every "
        "step: each token takes several times as long.",
        "Quantised weights, or tensor_parallel_size: 2; then remove --cpu-offload-gb.",
    )
