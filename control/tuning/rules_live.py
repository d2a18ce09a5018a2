"""Findings about a running engine, from its metrics and the edge's over a window. Pure.

A rule stays silent when what it needs is unknown, or too little was seen to say anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from control.tuning.advise import Rules, Says
from control.tuning.live_facts import EngineFacts

#: The edge sends this many more than run, so that the next ones are there when a place falls free.
AHEAD = 2
#: A share of the KV cache above which the next long answer may find no block.
FULL = 0.9
#: Seconds between two tokens at which an answer is slower than people read (about five words a second).
READING = 0.2
#: Gaps that count as held up: longer than READING and than so many usual ones.
USUAL = 4
#: Gaps, requests and hashed bytes below which nothing is said.
ENOUGH_GAPS, ENOUGH_REQUESTS, ENOUGH_BYTES = 50, 10, 20_000
#: Shares of prompts: from here on beginnings count as shared, and prompts as what an engine mostly computes.
SHARED, MOSTLY_PROMPTS = 0.3, 0.8

ENGINE_RULES: Rules[EngineFacts] = Rules("live")


def seconds(value: float) -> str:
    """A time, for people."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


@ENGINE_RULES.rule("warning", "sequences were preempted", "`vllm:num_preemptions`")
def preemptions(facts: EngineFacts) -> Iterator[Says]:
    """Blocks ran out while sequences grew."""
    if not facts.preemptions:
        return
    often = "Once" if facts.preemptions == 1 else f"{facts.preemptions:,.0f} times"
    peak = facts.peak("kv_usage")
    full = f" Its KV cache was {peak:.0%} full at the most." if peak is not None else ""
    size, each = facts.kv_tokens, facts.tokens_each
    room = f" Its {size:,} tokens of KV cache" if size else ""
    fit = int(FULL * size / each) if size and each else 0
    if fit:
        room += f" hold about {fit} sequences of {each:,.0f} tokens, as they were here."
    elif room:
        room += " are too few for what runs at the same time."
    fewer = (
        f"max_num_seqs: {fit}, or more "
        if fit and fit < (facts.peak("running") or 0)
        else "A smaller max_num_seqs, or more "
    )
    yield Says(
        f"{often} in {seconds(facts.seconds)} the engine threw a running sequence out of its KV cache and computed it "
        f"again later.{full}{room}",
        f"{fewer}KV cache (gpu_memory_utilization, kv_cache_dtype: fp8). Keep queue.kv_budget on: the edge then sends "
        "no more than fits.",
    )


@ENGINE_RULES.rule(
    "info", "the KV cache was more than 90 % full, and nothing was preempted", "`vllm:kv_cache_usage_perc`"
)
def kv_cache_nearly_full(facts: EngineFacts) -> Iterator[Says]:
    """The state before preemptions."""
    peak = facts.peak("kv_usage")
    if facts.preemptions or peak is None or peak <= FULL:
        return
    size = f" of {facts.kv_tokens:,} tokens" if facts.kv_tokens else ""
    each = f", {facts.tokens_each:,.0f} tokens each" if facts.tokens_each else ""
    yield Says(
        f"The KV cache{size} was {peak:.0%} full with up to {facts.peak('running') or 0:.0f} running{each}. New "
        "requests wait for blocks; an answer that grows may cost another one its place.",
        "Nothing, if waiting is short. Else more KV cache (gpu_memory_utilization, kv_cache_dtype: fp8), shorter "
        "max_tokens, or another engine.",
    )


@ENGINE_RULES.rule(
    "warning", "more requests wait inside the engine than the edge sends ahead", "`vllm:num_requests_waiting`"
)
def queue_in_the_engine(facts: EngineFacts) -> Iterator[Says]:
    """Who waits inside the engine is served in its order, not in the edge's fair one, and cannot go elsewhere."""
    waiting, running = facts.mean("waiting"), facts.peak("running")
    if waiting is None or running is None or waiting <= AHEAD + 0.5 or len(facts.gauges) < 3:
        return
    text = (
        f"{waiting:.0f} requests waited inside the engine on average, with {running:.0f} running at the most. There "
        "they stand in no fair order and cannot go to another engine; the edge is to hold all but two."
    )
    inside = max((one.running or 0) + (one.waiting or 0) for one in facts.gauges)
    sent = facts.peak("in_flight")
    if sent is not None and sent + AHEAD < inside:
        text += f" Of {inside:.0f} requests in the engine the edge had sent {sent:.0f}: others come past it."
        yield Says(text, "Let all clients use the edge, or give limit of this backend what the others leave.")
    elif (facts.peak("kv_usage") or 0) > FULL:
        yield Says(
            text + " They wait for its KV cache, which was full before max_num_seqs was reached.",
            f"limit: {running + AHEAD:.0f} at this backend, and queue.kv_budget on; or more KV cache.",
        )
    else:
        now = f"It is {facts.limit:,.0f}." if facts.limit else "It has none."
        yield Says(text, f"limit: {running + AHEAD:.0f} at this backend (those that run, and two). {now}")


@ENGINE_RULES.rule(
    "warning",
    "prompts share beginnings, and the engine does not find them",
    "`vllm:prefix_cache_hits`, `signalbox_prefix_known_bytes_total`",
)
def prefix_cache_misses(facts: EngineFacts) -> Iterator[Says]:
    """The edge knows which beginnings it sent here before; the engine says which it still had."""
    known = facts.known_share
    if known is None or known < SHARED or facts.edge.prompt_bytes < ENOUGH_BYTES:
        return
    seen = f"{known:.0%} of the prompts' bytes that the edge sent here were beginnings that this engine had seen"
    if facts.prefix_caching is False:
        yield Says(f"{seen}, and its prefix cache is off: it computes them again each time.", "prefix_caching: true.")
        return
    hits = facts.hit_share
    if hits is None or hits >= known / 2:
        return
    size = f" ({facts.kv_tokens:,} tokens, shared with what runs)" if facts.kv_tokens else ""
    peak = facts.peak("kv_usage")
    busy = f" Running requests held up to {peak:.0%} of it." if peak is not None else ""
    yield Says(
        f"{seen}; it found {hits:.0%} of the tokens in its prefix cache{size}. What is not used soon is thrown out."
        f"{busy}",
        "More KV cache (gpu_memory_utilization, kv_cache_dtype: fp8), a smaller limit, or more engines, so that each "
        "holds fewer beginnings.",
    )


def _held_up(facts: EngineFacts) -> tuple[float, float, float] | None:
    """The usual gap, the bound of those held up, and which share of the time of all answers they took."""
    gaps = facts.itl
    if gaps is None or gaps.count < ENOUGH_GAPS or not gaps.total:
        return None
    usual = gaps.quantile(0.5) or 0.0
    bound = max(READING, USUAL * usual)
    return usual, bound, gaps.sum_above(bound) / gaps.total


@ENGINE_RULES.rule(
    "warning",
    "answers halt while long prompts are read",
    "`vllm:inter_token_latency_seconds`, `vllm:request_prompt_tokens`",
)
def itl_spikes(facts: EngineFacts) -> Iterator[Says]:
    """A step that reads a prompt makes everybody's next token wait for its end."""
    found, gaps, prompts = _held_up(facts), facts.itl, facts.prompts
    if found is None or gaps is None or prompts is None or facts.preemptions or _starved(facts):
        return
    usual, bound, share = found
    longest = prompts.quantile(0.98) or 0
    if share < 0.1 or gaps.above(bound) < 3 or longest < 512:
        return
    worst = gaps.quantile(0.999) or bound
    yield Says(
        f"{gaps.above(bound):,.0f} of {gaps.count:,.0f} gaps between tokens were longer than {seconds(bound)} (up to "
        f"about {seconds(worst)}; the usual one is {seconds(usual)}): {share:.0%} of the time of all answers. Prompts "
        f"of up to about {longest:,.0f} tokens were read meanwhile.",
        _smaller_steps(facts, worst, longest),
    )


def _starved(facts: EngineFacts) -> bool:
    gaps, prompts, answers = facts.itl, facts.computed_tokens, facts.generation_tokens
    if gaps is None or gaps.count < ENOUGH_GAPS or not prompts or answers is None:
        return False
    return (gaps.quantile(0.5) or 0.0) > READING and prompts / (prompts + answers) >= MOSTLY_PROMPTS


@ENGINE_RULES.rule(
    "warning",
    "nearly every step reads prompts, and answers get a token at a time",
    "`vllm:inter_token_latency_seconds`, `vllm:prompt_tokens`",
)
def decode_starved(facts: EngineFacts) -> Iterator[Says]:
    """Not a spike now and then: prompts come without a pause."""
    if not _starved(facts) or facts.itl is None or facts.preemptions:
        return
    prompts, answers = facts.computed_tokens or 0.0, facts.generation_tokens or 0.0
    usual = facts.itl.quantile(0.5) or 0.0
    yield Says(
        f"{prompts / (prompts + answers):.0%} of the tokens computed in {seconds(facts.seconds)} were of prompts "
        f"({prompts:,.0f} beside {answers:,.0f} of answers), and the usual gap between two tokens of an answer was "
        f"{seconds(usual)}: slower than people read. Each step gives every answer one token and the rest to prompts.",
        "Another engine, or one pool for long prompts and one for the others (rules, pool). "
        + _smaller_steps(facts, usual, facts.prompts.quantile(0.98) or 0 if facts.prompts else 0),
    )


def _smaller_steps(facts: EngineFacts, slow: float, longest: float) -> str:
    """The size of a step that would take READING, from how long one takes now."""
    asked = facts.asked
    if asked.chunked_prefill is False:
        return "chunked_prefill: true: without it a prompt is read in one piece."
    tokens = asked.max_num_batched_tokens
    if tokens is None:
        return "Smaller steps: a smaller max_num_batched_tokens, or a long_prefill_token_threshold."
    inside = min(float(tokens), longest) if longest else float(tokens)
    fitting = max(asked.max_num_seqs or 1, 128, int(inside * READING / slow) // 128 * 128)
    if fitting >= tokens:
        return "Steps are small already: long prompts need engines of their own (rules, pool)."
    return (
        f"max_num_batched_tokens: {fitting} (it is {tokens:,}), or long_prefill_token_threshold: {fitting}: steps of "
        f"about {seconds(slow * fitting / inside)}. Long prompts then take somewhat longer; or give them a pool of "
        "their own."
    )
