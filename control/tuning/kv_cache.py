"""The KV cache in blocks, as vLLM shares it out. Pure.

Follows vllm/v1/kv_cache_interface.py and vllm/v1/core/kv_cache_utils.py of 0.32. Layers that keep the same amount for
the same tokens form a group; a block belongs to one group at a time, and is as large as the largest group needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from control.tuning.architecture import Architecture, Cache, stages
from control.tuning.settings import Resolved


@dataclass(frozen=True)
class Page:
    """What one layer keeps in one block, on one GPU: ``bytes`` for ``tokens``."""

    cache: Cache
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """The blocks of one engine.

    ``bytes_per_token``: of all layers, on the GPU that has most; ``beyond_window``: of those layers that keep every
    token, however long a sequence is. ``bytes_per_block``: on the GPU that has most. ``groups``: one page of each.
    ``states``: how many states of linear attention a sequence has, in each layer of that kind.
    """

    bytes_per_token: int
    beyond_window: int
    bytes_per_block: int
    groups: tuple[Page, ...]
    in_flight_tokens: int
    states: int

    def blocks(self, kv_memory: int) -> int:
        """Blocks that ``kv_memory`` bytes on each GPU hold."""
        return max(0, kv_memory) // self.bytes_per_block

    def blocks_for(self, length: int) -> int:
        """Blocks that a sequence of ``length`` tokens takes at most, in all groups."""
        return sum(self._group_blocks(page, length) for page in self.groups)

    def _group_blocks(self, page: Page, length: int) -> int:
        if page.cache.kind == "state":
            return self.states
        if page.cache.kind != "window":
            return -(-length // page.tokens)
        # The window itself and all that is under way; one more, as a window seldom begins where a block does.
        held = min(page.cache.window - 1 + self.in_flight_tokens, length)
        return -(-held // page.tokens) + 1

    def concurrency(self, kv_memory: int, length: int) -> float:
        """Sequences of ``length`` tokens that fit at the same time, as vLLM prints it (its reserved block included)."""
        return self.blocks(kv_memory) / self.blocks_for(length)

    def tokens(self, kv_memory: int, length: int) -> int:
        """The size that vLLM prints, "KV cache size: N tokens", for sequences of ``length`` tokens."""
        return int(self.concurrency(kv_memory, length) * length)

    def fits(self, kv_memory: int, length: int) -> bool:
        """Whether vLLM starts: one sequence of ``length`` tokens beside the block that it keeps for itself."""
        usable = kv_memory - self.bytes_per_block
        return usable > 0 and self.bytes_per_block * self.blocks_for(length) <= usable

    def longest(self, kv_memory: int, most: int) -> int:
        """The longest sequence up to ``most`` tokens with which vLLM starts; 0: none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(kv_memory, middle) else (low, middle - 1)
        return low

    def sequences(self, kv_memory: int, length: int) -> int:
        """Whole sequences of ``length`` tokens that run at the same time without preemption."""
        return max(0, self.blocks(kv_memory) - 1) // self.blocks_for(length)


def layout(model: Architecture, resolved: Resolved) -> Layout:
    """How the KV cache of this model is laid out with these settings."""
    settings = resolved.settings
    pages = [_page(cache, resolved, block_size(model, resolved)) for cache in model.layers]
    grouped, members = _groups(pages)
    parts = stages(len(pages), settings.pipeline_parallel_size)

    def of_stage(stage: range) -> int:
        return max(sum(grouped[layer].bytes for layer in group if layer in stage) for group in members)

    def per_token(stage: range, kinds: tuple[str, ...]) -> int:
        return sum(pages[layer].bytes // pages[layer].tokens for layer in stage if pages[layer].cache.kind in kinds)

    return Layout(
        bytes_per_token=max(per_token(stage, ("full", "mla", "window")) for stage in parts),
        beyond_window=max(per_token(stage, ("full", "mla")) for stage in parts),
        bytes_per_block=max(map(of_stage, parts)),
        groups=tuple(grouped[group[0]] for group in members),
        in_flight_tokens=settings.in_flight * resolved.max_num_batched_tokens,
        states=2 if settings.prefix_caching else 1,  # the last one at a block's end, to be found again, and its own
    )


def block_size(model: Architecture, resolved: Resolved) -> int:
    """Tokens of a block: beside linear attention so many that a state fits (``_align_hybrid_block_size``)."""
    given = resolved.settings.block_size
    state = max(_state_bytes(cache, resolved) for cache in model.layers)
    token = max(_token_bytes(cache, resolved) for cache in model.layers)
    return max(given, given * -(-state // (given * token))) if token else given


def _page(cache: Cache, resolved: Resolved, tokens: int) -> Page:
    if cache.kind == "state":
        return Page(cache, tokens, _state_bytes(cache, resolved))
    return Page(cache, tokens, _token_bytes(cache, resolved) * tokens)


def _token_bytes(cache: Cache, resolved: Resolved) -> int:
    heads = max(1, cache.heads // resolved.settings.tensor_parallel_size)
    return heads * (cache.key_size + cache.value_size) * resolved.kv_bytes


def _state_bytes(cache: Cache, resolved: Resolved) -> int:
    return (cache.state * resolved.weight_bytes + cache.wide_state * 4) // resolved.settings.tensor_parallel_size


def _groups(pages: list[Page]) -> tuple[list[Page], list[list[int]]]:
    """The pages with one size for all, and which layers form each group (``get_kv_cache_groups``)."""
    everything = list(range(len(pages)))
    kept = {(page.cache.kind == "state", page.cache.window) for page in pages}
    if len(kept) == 1:  # all keep every token, or all the same window: one group, whatever their sizes
        return pages, [everything]
    pages = _one_size(pages)
    kinds: dict[Page, list[int]] = {}
    for layer, page in enumerate(pages):
        kinds.setdefault(page, []).append(layer)
    smallest, largest = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = largest if largest < smallest * 1.5 else smallest
    groups = []
    for layers in kinds.values():
        count = -(-len(layers) // size)
        groups += [layers[first::count] for first in range(count)]
    return pages, groups


def _one_size(pages: list[Page]) -> list[Page]:
    """Smaller pages hold more tokens, or are padded (``unify_kv_cache_spec_page_size``)."""
    largest = max(page.bytes for page in pages)
    return [replace(page, tokens=page.tokens * _larger(page, largest), bytes=largest) for page in pages]


def _larger(page: Page, largest: int) -> int:
    return largest // page.bytes if page.cache.kind != "state" and largest % page.bytes == 0 else 1
