"""Findings about what an engine is told: what vLLM refuses, and what its scheduler makes of the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from control.tuning.advise import Rule, Rules, Says
from control.tuning.cards import gib
from control.tuning.static_facts import StaticFacts
from control.vllm.extra import complaints
from control.vllm.refusals import REFUSALS, Refusal
from control.vllm.settings import SettingError, words

RULES: Rules[StaticFacts] = Rules("static")

_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
#: Below it a step of a GPU is bound by reading the weights: a larger one costs nearly the same time.
_SMALL_STEP = 1024


def _refusal(refusal: Refusal) -> Rule[StaticFacts]:
    def check(facts: StaticFacts) -> Iterable[Says]:
        for found in refusal.check(facts.told):
            yield Says(f"{found.field}: {found.text}; vLLM refuses to start.", found.cure)

    return Rule(refusal.id, "static", "error", refusal.when, refusal.source, check)


for _each in REFUSALS:
    RULES.add(_refusal(_each))


@RULES.rule("error", "a setting that the release does not have, or ignores", "control/vllm/flags.json, by release")
def no_such_setting(facts: StaticFacts) -> Iterator[Says]:
    """Asked for under ``engine:``, and not to be had."""
    for field, value in facts.told.given.items():
        try:
            words(field, value, facts.flags, facts.told.environment)
        except SettingError as error:
            yield Says(f"{field}: {error.message}", error.hint)


@RULES.rule(
    "error", "a word of `extra_args` that the release does not take, such as `--chunked-prefill`",
    "control/vllm/flags.json, by release",
)  # fmt: skip
def no_such_flag(facts: StaticFacts) -> Iterator[Says]:
    """Flags that never were, were removed, or are Signalbox's own; values that they do not take."""
    for wrong in complaints(facts.extra_args, facts.flags):
        if not wrong.warning:
            yield Says(f"extra_args[{wrong.index}]: {wrong.message}", wrong.hint)


@RULES.rule("warning", "a flag that is about to be removed", "control/vllm/flags.json, by release")
def old_flag(facts: StaticFacts) -> Iterator[Says]:
    """vLLM's own parser, or its help, calls it deprecated."""
    for wrong in complaints(facts.extra_args, facts.flags):
        if wrong.warning:
            yield Says(f"extra_args[{wrong.index}]: {wrong.message}", wrong.hint)


@RULES.rule("info", "what running answers leave of a step for prompts", _SCHEDULER)
def prefill_beside_decodes(facts: StaticFacts) -> Iterator[Says]:
    """Running answers are scheduled first, one token each; prompts get the rest."""
    tokens, sequences, length = facts.tokens, facts.sequences, facts.length
    if not facts.told.chunked or tokens is None or sequences is None or length is None or tokens < sequences:
        return
    for prompt in facts.expected.prompts or (length,):
        rest = tokens - sequences
        own = rest + 1  # the prompt's own sequence is one of all
        cut = facts.told.number("long_prefill_token_threshold") or own
        capped = f" (it gets {cut:,} of each: long_prefill_token_threshold)" if cut < min(own, prompt) else ""
        yield Says(
            f"A step has {tokens:,} tokens; when all {sequences:,} sequences decode they take one each, and "
            f"{rest:,} are left for prompts. The first token of a prompt of {prompt:,} comes after "
            f"{_steps(prompt, tokens)} when it is alone, after {_steps(prompt, min(own, cut))} "
            f"beside all the others{capped}.",
            "More max_num_batched_tokens: fewer, longer steps; every running answer waits for each of them.",
        )


def _steps(tokens: int, each: int) -> str:
    count = -(-tokens // each)
    return "one step" if count == 1 else f"{count:,} steps"


@RULES.rule("warning", "running answers can take more than half of each step", _SCHEDULER)
def decodes_fill_the_step(facts: StaticFacts) -> Iterator[Says]:
    """Prompts then wait, however short the line is."""
    tokens, sequences = facts.tokens, facts.sequences
    if tokens is None or sequences is None or not sequences <= tokens < 2 * sequences:
        return
    yield Says(
        f"With {sequences:,} sequences decoding, {tokens - sequences:,} of the {tokens:,} tokens of a step are "
        "left: new prompts are read slowly just when most people wait.",
        f"max_num_batched_tokens: {max(2048, 4 * sequences)}, or max_num_seqs: {max(1, tokens // 4)}.",
    )


@RULES.rule(
    "warning", f"a step below {_SMALL_STEP:,} tokens, a fourth of a prompt or less",
    f"{_SCHEDULER}; vLLM raised its default from 512 to 2,048",
)  # fmt: skip
def step_tiny_beside_prompts(facts: StaticFacts) -> Iterator[Says]:
    """The step of old articles: 512. Prefix caching spares what was read before, not the rest."""
    tokens, length = facts.tokens, facts.length
    longest = max(facts.expected.prompts, default=None) or length
    if not facts.told.chunked or tokens is None or longest is None or tokens >= _SMALL_STEP or longest < 4 * tokens:
        return
    each = f", and every step reads all weights ({gib(facts.weights.total)})" if facts.weights else ""
    cached = " A prefix that is cached takes nothing of the step; what follows it does." if _caches(facts) else ""
    yield Says(
        f"A prompt of {longest:,} tokens is read in {-(-longest // tokens):,} steps of {tokens:,}{each}. Such small "
        f"steps keep answers flowing, and make prompts slow and throughput low.{cached}",
        "max_num_batched_tokens: 2048; if answers then stutter, long_prefill_token_threshold: 512 beside it.",
    )


def _caches(facts: StaticFacts) -> bool:
    return facts.told.given.get("prefix_caching") is not False


@RULES.rule("warning", "a step larger than all sequences together can fill", "vllm/config/scheduler.py")
def step_beyond_all(facts: StaticFacts) -> Iterator[Says]:
    """vLLM itself warns of it."""
    tokens, sequences, length = facts.tokens, facts.sequences, facts.length
    if tokens is None or sequences is None or length is None or tokens <= sequences * length:
        return
    most = sequences * length
    yield Says(
        f"A step of {tokens:,} tokens is more than {sequences:,} sequences of {length:,} tokens have together "
        f"({most:,}): vLLM reserves memory for it, and it is never filled.",
        f"max_num_batched_tokens: {most}.",
    )


@RULES.rule("warning", "`chunked_prefill: false`", "vllm/engine/arg_utils.py")
def prompts_in_one_piece(facts: StaticFacts) -> Iterator[Says]:
    """Nobody gets a token while a long prompt is read."""
    if facts.told.chunked:
        return
    longest = f" of up to {facts.length:,} tokens" if facts.length else ""
    yield Says(
        f"Without chunked prefill a prompt{longest} is read in one step, and all running answers stand still until it "
        "is done. vLLM calls this unsupported for models that can do better.",
        "Remove 'chunked_prefill: false'.",
    )


@RULES.rule("info", "a step that holds the longest prompt as a whole", _SCHEDULER)
def step_holds_any_prompt(facts: StaticFacts) -> Iterator[Says]:
    """Chunked prefill is on, and cuts nothing."""
    tokens, length, cut = facts.tokens, facts.length, facts.told.number("long_prefill_token_threshold")
    if not facts.told.chunked or tokens is None or length is None or tokens < length or (cut and cut < length):
        return
    yield Says(
        f"A step of {tokens:,} tokens holds the longest prompt ({length:,}) as a whole, so chunked prefill never cuts: "
        "running answers stand still while a long prompt is read, as they would without it.",
        f"If answers matter more than the prompt: max_num_batched_tokens: {max(512, length // 4)}, or "
        f"long_prefill_token_threshold: {max(256, length // 8)}.",
    )


@RULES.rule("info", "`long_prefill_token_threshold` that changes nothing", _SCHEDULER)
def threshold_without_effect(facts: StaticFacts) -> Iterator[Says]:
    """It is a part of the step."""
    threshold, tokens = facts.told.number("long_prefill_token_threshold"), facts.tokens
    if threshold is None or tokens is None or threshold < tokens:
        return
    yield Says(
        f"long_prefill_token_threshold {threshold:,} is no less than a step ({tokens:,} tokens), so it never cuts.",
        f"Below the step, such as {max(1, tokens // 4)}; or remove it.",
    )


@RULES.rule("warning", "no prefix caching, and requests are routed by prefix", "lua/edge/policy.lua")
def prefix_routing_for_nothing(facts: StaticFacts) -> Iterator[Says]:
    """The edge sends equal beginnings to one engine, which then computes them anew."""
    if _caches(facts) or facts.around.policy != "prefix" or len(facts.around.limits) < 2:
        return
    yield Says(
        "The edge sends prompts with the same beginning to the same engine, but that engine keeps no prefixes: it is "
        "only busier than the others.",
        "Remove 'prefix_caching: false', or set 'routing: {policy: least_loaded}'.",
    )


@RULES.rule("warning", "nothing says how many requests the engine runs", "docs/queue.md")
def no_limit(facts: StaticFacts) -> Iterator[Says]:
    """Without a bound nobody waits at the edge, and vLLM's own line is in order of arrival."""
    if None not in facts.around.limits:
        return
    own = f" (vLLM chooses {facts.sequences:,} here)" if facts.sequences else ""
    yield Says(
        f"Neither max_num_seqs{own} nor a 'limit:' is set, so the edge sends everything on: requests queue up "
        "inside the engine, where no key has its share and no other engine can take them.",
        "Set max_num_seqs, or take a profile that does.",
    )


@RULES.rule("warning", "the edge lets in many more than run", "docs/queue.md")
def limit_beyond_sequences(facts: StaticFacts) -> Iterator[Says]:
    """The rest waits inside the engine."""
    sequences, limits = facts.sequences, [limit for limit in facts.around.limits if limit is not None]
    if sequences is None or max(limits, default=0) <= sequences + max(4, sequences // 4):
        return
    yield Says(
        f"The edge sends up to {max(limits):,} sequences to an engine that runs {sequences:,}: "
        f"{max(limits) - sequences:,} wait inside it, in order of arrival, while other engines may be free.",
        f"limit: {sequences + 2}, or leave it out.",
    )


@RULES.rule("info", "the edge lets in fewer than could run", "docs/queue.md")
def limit_below_sequences(facts: StaticFacts) -> Iterator[Says]:
    """Memory is set aside for sequences that never come."""
    sequences, limits = facts.sequences, [limit for limit in facts.around.limits if limit is not None]
    if sequences is None or not limits or max(limits) >= sequences:
        return
    yield Says(
        f"The engine has room for {sequences:,} sequences, and the edge sends {max(limits):,} at most; vLLM keeps "
        f"memory for the other {sequences - max(limits):,} all the same.",
        f"max_num_seqs: {max(limits)}.",
    )
