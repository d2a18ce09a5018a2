"""The budget of a GPU's memory: what is there, who takes it, and what is left for the KV cache. Pure.

Exact: the KV cache (``kv_cache.py``) and weights that were read from files. Estimates: what a step needs on the way
(activations), CUDA graphs, and the CUDA runtime. vLLM itself measures these at its start, so they stand in its log.
"""

from __future__ import annotations

from dataclasses import dataclass

from control.tuning.architecture import Architecture
from control.tuning.cards import GIB, Card
from control.tuning.kv_cache import Layout, layout
from control.tuning.settings import Resolved, Settings, resolved
from control.tuning.weights import Weights

#: Bytes for each number of the sampler's scores: in 16 and 32 bits, as probabilities, and one copy to sort.
_SAMPLER_BYTES = 16
#: CUDA graphs: a pool and a part for each graph. Between two published starts of 0.2x ("Estimated CUDA graph memory"):
#: 51 + 35 graphs took 0.73 GiB, 16 took 0.36 GiB.
_GRAPH_POOL, _GRAPH_EACH = int(0.25 * GIB), int(5.6 * 1024**2)
#: What vLLM logs as "non_torch_memory": 0.16 to 0.20 GiB on one GPU; more where NCCL connects several.
_RUNTIME, _NCCL = int(0.25 * GIB), int(0.75 * GIB)


@dataclass(frozen=True)
class Budget:
    """One card's memory in bytes, per GPU.

    ``usable``: the share that vLLM takes. ``kv_memory``: what is left of it, below 0 when the rest does not fit.
    ``activations``, ``graphs`` and ``runtime`` are estimates; ``weights`` too unless ``weights_exact``.
    """

    card: Card
    resolved: Resolved
    layout: Layout
    usable: int
    weights: int
    weights_exact: bool
    activations: int
    graphs: int
    runtime: int
    kv_memory: int

    @property
    def beside_cache(self) -> int:
        """Bytes of everything but the KV cache."""
        return self.weights + self.activations + self.graphs + self.runtime

    @property
    def beyond(self) -> int:
        """Bytes that all together want and the card does not have: a ``kv_cache_memory`` that is too large."""
        return max(0, self.kv_memory + self.beside_cache - self.card.bytes)

    @property
    def starts(self) -> bool:
        """Whether vLLM starts with these settings: one sequence of the greatest length fits."""
        return not self.beyond and self.layout.fits(self.kv_memory, self.resolved.max_model_len)

    @property
    def tokens(self) -> int:
        """Tokens that the KV cache holds, in sequences of the greatest length: what vLLM prints at its start."""
        return self.layout.tokens(self.kv_memory, self.resolved.max_model_len)

    @property
    def concurrency(self) -> float:
        """Sequences of the greatest length at the same time: "Maximum concurrency" of vLLM's log."""
        return self.layout.concurrency(self.kv_memory, self.resolved.max_model_len)

    @property
    def longest(self) -> int:
        """The greatest ``max_model_len``, up to the one asked for, with which it starts; 0: none."""
        return self.layout.longest(self.kv_memory, self.resolved.max_model_len)

    def sequences(self, length: int) -> int:
        """Sequences of ``length`` tokens (prompt and answer) at the same time without preemption."""
        return self.layout.sequences(self.kv_memory, length)

    @property
    def tokens_each(self) -> int:
        """Tokens that each sequence may have when ``max_num_seqs`` of them run at the same time."""
        most = self.resolved.max_num_seqs
        low, high = 0, self.resolved.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.sequences(middle) >= most else (low, middle - 1)
        return low


def budget(model: Architecture, weights: Weights, settings: Settings, card: Card) -> Budget:
    """The budget of this model with these settings on each GPU of this kind. Raises TuningError."""
    chosen = resolved(settings, model, card)
    parallel = (settings.tensor_parallel_size, settings.pipeline_parallel_size)
    usable = int(card.bytes * settings.gpu_memory_utilization)
    own, peak, graphs = weights.per_gpu(*parallel), activation_peak(model, chosen), graph_memory(chosen)
    runtime = _RUNTIME + (_NCCL if max(parallel) > 1 else 0)
    left = usable - own - peak - graphs - runtime
    return Budget(
        card=card, resolved=chosen, layout=layout(model, chosen), usable=usable, weights=own,
        weights_exact=weights.exact and max(parallel) == 1, activations=peak, graphs=graphs, runtime=runtime,
        kv_memory=settings.kv_cache_memory if settings.kv_cache_memory is not None else left,
    )  # fmt: skip


def activation_peak(model: Architecture, chosen: Resolved) -> int:
    """About the bytes that a step needs on the way: the widest layer for all its tokens, and the sampler's scores.

    vLLM measures it with a step of ``max_num_batched_tokens`` and ``max_num_seqs`` (``profile_run``). A published start
    of Llama 3 8B (8192 tokens, 256 sequences) logged 1.26 GiB, where this says 1.33.
    """
    text, tensor = model.text, chosen.settings.tensor_parallel_size
    wide = int(text.get("intermediate_size") or 4 * model.hidden_size)
    used = int(text.get("num_experts_per_tok") or text.get("experts_per_token") or 0)
    if used:
        narrow = int(text.get("moe_intermediate_size") or wide)
        wide = max(wide, used * narrow)
    heads = int(text.get("num_attention_heads") or 1)
    first = next((layer for layer in model.layers if layer.kind != "state"), model.layers[0])
    size = (
        first.key_size
        if first.kind != "mla"
        else int(text.get("qk_nope_head_dim") or 0) + int(text.get("qk_rope_head_dim") or 0)
    )
    across = max(3 * wide, (2 * heads + 2 * first.heads) * size) // tensor + 3 * model.hidden_size
    if used:
        across += used * model.hidden_size  # every token once for each of its experts
    scores = min(chosen.max_num_seqs, chosen.max_num_batched_tokens) * model.vocab_size * _SAMPLER_BYTES
    return chosen.max_num_batched_tokens * across * chosen.weight_bytes + scores


def graph_sizes(chosen: Resolved) -> tuple[int, int]:
    """How many CUDA graphs vLLM records: in pieces, and whole ones (``_set_cudagraph_sizes``, vllm/config/vllm.py)."""
    largest = min(2 * chosen.max_num_seqs, 512, chosen.max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return sum(size <= largest for size in sizes), sum(size <= min(largest, chosen.max_num_seqs) for size in sizes)


def graph_memory(chosen: Resolved) -> int:
    """About the bytes of CUDA graphs; 0 with ``--enforce-eager``."""
    return 0 if chosen.settings.enforce_eager else _GRAPH_POOL + _GRAPH_EACH * sum(graph_sizes(chosen))
