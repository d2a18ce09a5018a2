"""Findings about the memory of one engine on one card, and of GPUs that engines share, before they start. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control.tuning.advise import Rules, Says
from control.tuning.cards import gib
from control.tuning.memory import Budget, activation_peak, graph_memory
from control.tuning.static_facts import StaticFacts
from control.tuning.weights import Weights

RULES: Rules[StaticFacts] = Rules("static")

_CACHE = "vllm/v1/core/kv_cache_utils.py, control/tuning/kv_cache.py"
#: Requests with fewer tokens, prompt and answer together, are rare.
_SHORT = 256


@RULES.rule("error", "the weights, or one sequence of `max_model_len`, do not fit", _CACHE)
def does_not_fit(facts: StaticFacts) -> Iterator[Says]:
    """vLLM says the same after it has loaded everything."""
    if facts.budget is not None and facts.weights is not None and not facts.budget.starts:
        yield _why_not(facts.budget, facts.weights)


def _why_not(budget: Budget, weights: Weights) -> Says:
    chosen, kv = budget.resolved, budget.layout
    needed = (kv.blocks_for(chosen.max_model_len) + 1) * kv.bytes_per_block
    if budget.beyond and budget.card.bytes > budget.beside_cache:
        most = budget.card.bytes - budget.beside_cache
        return Says(
            f"Does not fit: {gib(budget.kv_memory)} of KV cache (kv_cache_memory) are {gib(budget.beyond)} "
            "more than the card has beside everything else.",
            f"kv_cache_memory: {max(1, most // 1024**2)}MiB at most.",
        )
    if budget.longest and not budget.beyond:
        return Says(
            f"Does not start: one sequence of {chosen.max_model_len:,} tokens takes {gib(needed)} of KV cache, and "
            f"{gib(budget.kv_memory)} are left.",
            f"Longest that fits: max_model_len: {budget.longest}.",
        )
    beside = gib(budget.beside_cache - budget.weights)
    return Says(
        f"Does not fit: {gib(budget.weights)} of weights and {beside} beside them leave nothing "
        f"of {gib(budget.usable)} for a KV cache.",
        _more_gpus(budget, weights),
    )


def _more_gpus(budget: Budget, weights: Weights) -> str:
    settings = budget.resolved.settings
    for count in (2, 4, 8, 16):
        if count <= settings.tensor_parallel_size:
            continue
        room = budget.usable - weights.per_gpu(count, settings.pipeline_parallel_size)
        if room > 0.15 * budget.usable:  # less than that left beside the weights serves nobody well
            return f"Spread it: tensor_parallel_size: {count}."
    return "Take quantised weights or larger cards."


def _room(budget: Budget) -> str:
    return f"The KV cache ({gib(budget.kv_memory)}) holds {budget.tokens:,} tokens"


@RULES.rule(
    "warning",
    f"`max_num_seqs` requests of the expected length do not fit at once; without one, not even {_SHORT} tokens each",
    _CACHE,
)
def more_sequences_than_cache(facts: StaticFacts) -> Iterator[Says]:
    """What does not fit is preempted: its cache is thrown away and computed again."""
    budget = facts.budget
    if budget is None or not budget.starts:
        return
    sequences, each = budget.resolved.max_num_seqs, budget.tokens_each
    length = max(facts.expected.lengths, default=0)
    fit = budget.sequences(length or _SHORT)
    if fit >= sequences or (not length and each >= budget.resolved.max_model_len):
        return
    kind = f"of {length:,} tokens" if length else f"even of {_SHORT} tokens"
    held = " (The edge holds the others back by queue.kv_budget, as far as it can estimate them.)"
    yield Says(
        f"{_room(budget)}: {fit:,} requests {kind} at the same time, not {sequences:,}; or {each:,} tokens for each of "
        f"{sequences:,}. Those that run beyond that are preempted: vLLM throws their cache away and computes it again."
        f"{held if facts.around.kv_budget and facts.around.limits else ''}",
        f"max_num_seqs: {max(1, fit)}{_more_room(facts)}.",
    )


def _more_room(facts: StaticFacts) -> str:
    """Other ways to the same end."""
    narrow = facts.budget is not None and facts.budget.resolved.kv_bytes == 1
    return "" if narrow else "; or kv_cache_dtype: fp8, which halves the cache of each token"


@RULES.rule("info", "what the KV cache holds", _CACHE)
def cache_shared(facts: StaticFacts) -> Iterator[Says]:
    """The one number that everybody asks for."""
    budget = facts.budget
    if budget is None or not budget.starts:
        return
    sequences, longest, each = budget.resolved.max_num_seqs, budget.resolved.max_model_len, budget.tokens_each
    whole, length = budget.sequences(longest), max(facts.expected.lengths, default=longest)
    if budget.sequences(length) >= sequences:
        even = f"even at {length:,}" if length == longest else f"at {length:,}"
        yield Says(f"{_room(budget)}: all {sequences:,} sequences fit, {even} tokens each.", "Nothing is to be done.")
        return
    needed = sequences * budget.layout.blocks_for(longest) * budget.layout.bytes_per_block
    yield Says(
        f"{_room(budget)}: {whole:,} sequences of {longest:,}, or {each:,} tokens for each of {sequences:,}. "
        f"{sequences:,} sequences of {longest:,} would take {gib(needed)}.",
        "To know what that means for yours, say how long they are: `signalbox advise --length N`.",
    )


@RULES.rule("info", "a step that takes a tenth of the KV cache or more", "control/tuning/memory.py")
def step_costs_cache(facts: StaticFacts) -> Iterator[Says]:
    """Activations and CUDA graphs come out of the same memory."""
    if facts.budget is None or facts.model is None or not facts.budget.starts:
        return
    chosen, budget = facts.budget.resolved, facts.budget
    step = activation_peak(facts.model, chosen) + graph_memory(chosen)
    if chosen.settings.kv_cache_memory is not None or step < 0.1 * budget.kv_memory:
        return
    tokens = step // max(1, budget.layout.bytes_per_token)
    yield Says(
        f"Steps of {chosen.max_num_batched_tokens:,} tokens for {chosen.max_num_seqs:,} sequences take about "
        f"{gib(step)}, as much as {tokens:,} tokens of KV cache.",
        "A smaller max_num_batched_tokens leaves more for the KV cache.",
    )


@RULES.rule("info", "more GPUs than heads of keys and values", "vllm/config/model.py")
def copies_of_heads(facts: StaticFacts) -> Iterator[Says]:
    """Beyond them, tensor parallelism copies the cache."""
    size = facts.settings.tensor_parallel_size
    layers = facts.model.layers if facts.model is not None else ()
    heads = max((layer.heads for layer in layers if layer.kind in ("full", "window")), default=0)
    if not heads or size <= heads:
        return
    yield Says(
        f"{size} GPUs share {heads} heads of keys and values: each head is kept on {size // heads} of them, so a token "
        f"takes as much KV cache on each of {size} GPUs as on each of {heads}.",
        f"tensor_parallel_size: {heads}, and more engines.",
    )


@RULES.rule("warning", "more pipeline stages than layers", "get_pp_indices of vllm/distributed/utils.py")
def stages_without_layers(facts: StaticFacts) -> Iterator[Says]:
    """GPUs that have nothing to compute."""
    count, layers = facts.settings.pipeline_parallel_size, len(facts.model.layers) if facts.model is not None else 0
    if not layers or count <= layers:
        return
    yield Says(
        f"{layers} layers are shared out to {count} groups of GPUs: {count - layers} of them have none.",
        f"pipeline_parallel_size: {layers} at most, better far fewer.",
    )


@dataclass(frozen=True)
class GpuFacts:
    """Engines that are started on one GPU. ``shares``: backend → the share of its memory that it takes."""

    shares: dict[str, float]


GPU_RULES: Rules[GpuFacts] = Rules("static")


@GPU_RULES.rule(
    "warning", "engines on one GPU that together take more than all of its memory", "vllm/v1/worker/utils.py"
)
def gpu_promised_twice(facts: GpuFacts) -> Iterator[Says]:
    """The second one finds less than it wants, and ends."""
    total = sum(facts.shares.values())
    if len(facts.shares) < 2 or total <= 1.0001:
        return
    parts = ", ".join(f"{backend} {share:.0%}" for backend, share in facts.shares.items())
    yield Says(
        f"{parts}: together {total:.0%} of its memory. The last one that starts finds less free than it wants, and "
        "ends.",
        f"gpu_memory_utilization: {int(95 / len(facts.shares)) / 100:g} for each.",
    )
