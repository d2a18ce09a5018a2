"""What a budget means, in sentences with the numbers put in. Pure."""

from __future__ import annotations

from control.tuning.architecture import Architecture
from control.tuning.cards import GIB
from control.tuning.memory import Budget, activation_peak, graph_memory
from control.tuning.weights import Weights


def gib(size: float) -> str:
    """Bytes as GiB, for people."""
    return f"{size / GIB:.1f} GiB" if abs(size) >= 0.1 * GIB else f"{size / 1024**2:.0f} MiB"


def refused(model: Architecture, length: int) -> str | None:
    """Why vLLM refuses this ``max_model_len`` on any card, if it does."""
    if length <= model.max_length:
        return None
    return (
        f"max_model_len {length:,} is more than the model was made for ({model.max_length:,} in its config.json): "
        f"vLLM refuses to start. At most: max_model_len: {model.max_length}."
    )


def findings(budget: Budget, model: Architecture, weights: Weights) -> list[str]:
    """What is to be known of this budget: why it does not start, or what it holds."""
    if not budget.starts:
        return [_why_not(budget, weights)]
    found = [_together(budget)]
    cost = _cost_of_step(budget, model)
    return [*found, cost] if cost else found


def _why_not(budget: Budget, weights: Weights) -> str:
    chosen, kv = budget.resolved, budget.layout
    needed = (kv.blocks_for(chosen.max_model_len) + 1) * kv.bytes_per_block
    if budget.beyond and budget.card.bytes > budget.beside_cache:
        return (
            f"Does not fit: {gib(budget.kv_memory)} of KV cache (kv_cache_memory) are {gib(budget.beyond)} "
            "more than the card has beside everything else."
        )
    if budget.longest and not budget.beyond:
        return (
            f"Does not start: one sequence of {chosen.max_model_len:,} tokens takes {gib(needed)} of KV cache, and "
            f"{gib(budget.kv_memory)} are left. Longest that fits: max_model_len: {budget.longest}."
        )
    beside = gib(budget.beside_cache - budget.weights)
    return (
        f"Does not fit: {gib(budget.weights)} of weights and {beside} beside them leave nothing "
        f"of {gib(budget.usable)} for a KV cache.{_more_gpus(budget, weights)}"
    )


def _more_gpus(budget: Budget, weights: Weights) -> str:
    settings = budget.resolved.settings
    for count in (2, 4, 8, 16):
        if count <= settings.tensor_parallel_size:
            continue
        room = budget.usable - weights.per_gpu(count, settings.pipeline_parallel_size)
        if room > 0.15 * budget.usable:  # less than that left beside the weights serves nobody well
            return f" Spread it: tensor_parallel_size: {count}."
    return " Take quantised weights or larger cards."


def _together(budget: Budget) -> str:
    chosen, each = budget.resolved, budget.tokens_each
    whole = budget.sequences(chosen.max_model_len)
    if whole >= chosen.max_num_seqs:
        every = f"All {chosen.max_num_seqs:,} sequences fit, even at {chosen.max_model_len:,} tokens each"
        return f"{every}: none is preempted."
    needed = chosen.max_num_seqs * budget.layout.blocks_for(chosen.max_model_len) * budget.layout.bytes_per_block
    return (
        f"{chosen.max_num_seqs:,} sequences of {chosen.max_model_len:,} tokens would take {gib(needed)}; "
        f"{gib(budget.kv_memory)} hold {whole:,} of them, or {each:,} tokens for each of {chosen.max_num_seqs:,}. "
        "Beyond that vLLM preempts: it throws away and computes again."
    )


def _cost_of_step(budget: Budget, model: Architecture) -> str | None:
    """What the size of a step takes away from the KV cache, where that is much."""
    chosen = budget.resolved
    step = activation_peak(model, chosen) + graph_memory(chosen)
    if chosen.settings.kv_cache_memory is not None or step < 0.1 * budget.kv_memory:
        return None
    tokens = step // max(1, budget.layout.bytes_per_token)
    return (
        f"Steps of {chosen.max_num_batched_tokens:,} tokens for {chosen.max_num_seqs:,} sequences take about "
        f"{gib(step)}, as much as {tokens:,} tokens of KV cache."
    )
