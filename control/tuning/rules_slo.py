"""Findings about what clients of a model see: where their time to the first token goes, and promises not kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from control.tuning.advise import Rules, Says
from control.tuning.live_facts import ModelFacts, Parts
from control.tuning.rules_live import AHEAD, ENOUGH_BYTES, ENOUGH_REQUESTS, FULL, SHARED, seconds

#: A promise is kept when this share of all is within it.
KEPT = 0.95
#: Seconds of mean TTFT from which its parts are worth a word where no promise is made.
SLOW = 2.0
#: Seconds between edge and engine from which they are worth a word.
FAR = 0.25
#: Hits from here on should be felt.
MANY_HITS = 0.5

MODEL_RULES: Rules[ModelFacts] = Rules("live")


def parts_text(parts: Parts) -> str:
    """The parts in the order in which a request meets them."""
    named = (
        (parts.edge_wait, "waiting in the edge"), (parts.network, "between edge and engine"),
        (parts.engine_queue, "in the engine's queue"), (parts.prefill, "reading the prompt (prefill)"),
        (parts.engine_rest, "in the engine's server"),
    )  # fmt: skip
    return ", ".join(f"{seconds(value)} {what}" for value, what in named if value >= 0.0005)


def _cure(parts: Parts, facts: ModelFacts) -> str:
    engines = facts.engines.values()
    if parts.largest == "edge_wait":
        usage = max((one.mean("kv_usage") or 0.0 for one in engines), default=0.0)
        inside = max((one.mean("waiting") or 0.0 for one in engines), default=0.0)
        if usage < FULL / 2 and inside <= AHEAD and any(one.limit for one in engines):
            return (
                f"The KV caches are {usage:.0%} full: a larger max_num_seqs (and limit) lets more run at the same "
                "time, each somewhat slower. Else another engine."
            )
        return "Another engine: those that there are have all that they can take."
    if parts.largest == "engine_queue":
        return "Another engine, or a smaller limit at the backends: what waits in the edge can go to whichever is free."
    if parts.largest == "network":
        return (
            "Look at the way to the engines: a tunnel, another site, TLS without kept connections. `signalbox doctor`."
        )
    if parts.largest == "engine_rest":
        return "Look at the engine's own machine: its API server (tokenizing, other processes) takes this, not the GPU."
    share = facts.hit_share or 0.0
    return (
        f"Prefill is work: prompts that begin alike (prefix cache hits are {share:.0%}), shorter ones, a larger "
        "max_num_batched_tokens where answers may halt longer, or another engine."
    )


@MODEL_RULES.rule("warning", "more than 5 % of first tokens came later than slo.ttft", "`signalbox_ttft_seconds`")
def slo_ttft_missed(facts: ModelFacts) -> Iterator[Says]:
    """And by which part."""
    ttft, bound = facts.seen_ttft, facts.slo.ttft
    if bound is None or ttft is None or ttft.count < ENOUGH_REQUESTS:
        return
    late = ttft.above(bound) / ttft.count
    if late <= 1 - KEPT:
        return
    parts = facts.parts
    where = f" The mean of {seconds(parts.whole)}: {parts_text(parts)}." if parts else ""
    yield Says(
        f"{late:.0%} of {ttft.count:,.0f} first tokens came later than {seconds(bound)} (P95: "
        f"{seconds(ttft.quantile(KEPT) or 0)}).{where}",
        _cure(parts, facts)
        if parts
        else "The engines' own metrics are not readable: they would tell where the time goes.",
    )


@MODEL_RULES.rule(
    "warning", "more than 5 % of the gaps between tokens were longer than slo.itl", "`signalbox_itl_seconds`"
)
def slo_itl_missed(facts: ModelFacts) -> Iterator[Says]:
    """And by which part: all of them, or some that prompts or preemptions held up."""
    gaps, bound = facts.seen_itl, facts.slo.itl
    if bound is None or gaps is None or gaps.count < 5 * ENOUGH_REQUESTS:
        return
    late = gaps.above(bound) / gaps.count
    if late <= 1 - KEPT:
        return
    usual = gaps.quantile(0.5) or 0.0
    text = (
        f"{late:.0%} of {gaps.count:,.0f} gaps between tokens were longer than {seconds(bound)} (P95: "
        f"{seconds(gaps.quantile(KEPT) or 0)}, the usual one {seconds(usual)})."
    )
    inside = facts.of_engines("itl")
    running = max((one.peak("running") or 0.0 for one in facts.engines.values()), default=0.0)
    if inside is not None and inside.count and inside.above(bound) / inside.count <= (1 - KEPT) / 2:
        yield Says(
            f"{text} The engines made their tokens in time: they were held up on the way.",
            "Look at the network between engines and edge: `signalbox doctor`.",
        )
    elif facts.total("preemptions"):
        yield Says(f"{text} {facts.total('preemptions'):,.0f} preemptions held answers up.", "See `preemptions`.")
    elif usual > bound:
        yield Says(
            f"{text} Even the usual one is too long, with up to {running:.0f} sequences in a step.",
            "A smaller max_num_seqs, another engine, or a longer slo.itl.",
        )
    else:
        yield Says(
            f"{text} Steps that read prompts hold up the others.",
            "A smaller max_num_batched_tokens, or a long_prefill_token_threshold: see `itl_spikes`.",
        )


@MODEL_RULES.rule(
    "info",
    "no slo.ttft, and first tokens take longer than 2 s on average",
    "`vllm:request_queue_time_seconds`, `vllm:request_prefill_time_seconds`, `signalbox_queue_wait_seconds`",
)
def slow_first_token(facts: ModelFacts) -> Iterator[Says]:
    """Where the time goes."""
    ttft, parts = facts.seen_ttft, facts.parts
    if facts.slo.ttft is not None or ttft is None or parts is None or ttft.count < ENOUGH_REQUESTS:
        return
    if parts.whole > SLOW:
        yield Says(f"First tokens took {seconds(parts.whole)} on average: {parts_text(parts)}.", _cure(parts, facts))


@MODEL_RULES.rule(
    "warning",
    "at least half of the time to the first token passes between edge and engine",
    "`signalbox_ttft_seconds` less `vllm:time_to_first_token_seconds`",
)
def far_engine(facts: ModelFacts) -> Iterator[Says]:
    """Known only where all requests come through this edge."""
    parts, ttft = facts.parts, facts.ttft
    if parts is None or ttft is None or ttft.count < ENOUGH_REQUESTS:
        return
    own = parts.whole - parts.edge_wait
    if parts.network >= FAR and parts.network >= own / 2:
        yield Says(
            f"Of {seconds(own)} from the edge's connect to the first token, {seconds(parts.network)} passed between "
            f"edge and engine (the engine itself took {seconds(own - parts.network)}).",
            _cure(replace(parts, edge_wait=0.0), facts),
        )


@MODEL_RULES.rule(
    "info",
    "the prefix cache hits, and first tokens are slow all the same",
    "`vllm:prefix_cache_hits`, `vllm:request_queue_time_seconds`",
)
def hits_without_gain(facts: ModelFacts) -> Iterator[Says]:
    """Hits shorten the prefill only."""
    hits, parts, ttft = facts.hit_share, facts.parts, facts.seen_ttft
    slow = facts.slo.ttft if facts.slo.ttft is not None else SLOW / 2
    if hits is None or hits < MANY_HITS or parts is None or ttft is None or ttft.count < ENOUGH_REQUESTS:
        return
    if parts.whole <= slow:
        return
    waited = parts.edge_wait + parts.engine_queue
    text = (
        f"{hits:.0%} of the prompts' tokens came from the prefix cache, and the first token took {seconds(parts.whole)}"
    )
    if waited >= parts.whole / 2:
        yield Says(
            f"{text}, {seconds(waited)} of it waiting, {seconds(parts.prefill)} prefill. More hits would not help.",
            _cure(parts, facts),
        )
    elif parts.largest == "prefill":
        each = facts.total("prompt_tokens") - facts.total("prefix_hits")
        yield Says(
            f"{text}, {seconds(parts.prefill)} of it prefill of what was left: {each / ttft.count:,.0f} tokens of a "
            "prompt. They share steps with other prompts and with every running answer.",
            "A larger max_num_batched_tokens, where answers may halt longer; or fewer requests at a time (limit).",
        )


@MODEL_RULES.rule(
    "warning",
    "an engine had seen the prompts' beginnings, and another one got them",
    "`signalbox_prefix_shared_bytes_total`",
)
def prefix_sent_elsewhere(facts: ModelFacts) -> Iterator[Says]:
    """The edge passes over a favourite that is too busy or at its limit."""
    shared, known = facts.share_of_bytes("shared_bytes"), facts.share_of_bytes("known_bytes")
    if len(facts.engines) < 2 or shared is None or known is None or facts.prompt_bytes < ENOUGH_BYTES:
        return
    if shared >= SHARED and known < shared / 2:
        yield Says(
            f"For {shared:.0%} of the prompts' bytes some engine had seen that beginning, but for {known:.0%} it was "
            "the one that got the request: the others were at their limit, too busy or not ready.",
            "Give limit some room (it is max_num_seqs and two by default), or add an engine; docs/balancing.md says "
            "when a favourite is passed over.",
        )


@MODEL_RULES.rule(
    "info", "prompts begin alike, and each has a `cache_salt` of its own", "`signalbox_prefix_salted_bytes_total`"
)
def salts_keep_apart(facts: ModelFacts) -> Iterator[Says]:
    """A salt for each tenant is what it is for; one for each request turns the prefix cache off."""
    share = facts.share_of_bytes("salted_bytes")
    if share is None or share < SHARED or facts.prompt_bytes < ENOUGH_BYTES:
        return
    yield Says(
        f"{share:.0%} of the prompts' bytes began like an earlier prompt, and had a cache_salt that had not been seen "
        "with it: engines compute such beginnings again.",
        "One cache_salt for all requests that may share a cache (a tenant, a user), not one for each request.",
    )
