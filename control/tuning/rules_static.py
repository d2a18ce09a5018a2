"""Findings about the settings of one model's engine on one card, before it starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from control.tuning.advise import Rules, Says
from control.tuning.architecture import Architecture
from control.tuning.memory import Budget
from control.tuning.settings import Settings


@dataclass(frozen=True)
class StaticFacts:
    """What is known before a start: the settings; the model and its budget on a card, where their files are there."""

    settings: Settings
    model: Architecture | None = None
    budget: Budget | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens of a step, vLLM's own choice for this card included."""
        return self.budget.resolved.max_num_batched_tokens if self.budget else self.settings.max_num_batched_tokens

    @property
    def sequences(self) -> int | None:
        """``max_num_seqs``, likewise."""
        return self.budget.resolved.max_num_seqs if self.budget else self.settings.max_num_seqs


RULES: Rules[StaticFacts] = Rules("static")


@RULES.rule("error", "a step has fewer tokens than there are sequences", "vllm/config/scheduler.py")
def step_below_sequences(facts: StaticFacts) -> Iterator[Says]:
    """Every running sequence needs one token of each step."""
    tokens, sequences = facts.settings.max_num_batched_tokens, facts.settings.max_num_seqs
    if tokens is not None and sequences is not None and tokens < sequences:
        yield Says(
            f"max_num_batched_tokens ({tokens:,}) is less than max_num_seqs ({sequences:,}): each sequence that "
            "decodes takes one token of a step. vLLM refuses to start.",
            f"max_num_batched_tokens: {max(2048, sequences)}, or max_num_seqs: {tokens}.",
        )


@RULES.rule("error", "max_model_len is more than the model was made for", "vllm/config/model.py")
def longer_than_the_model(facts: StaticFacts) -> Iterator[Says]:
    """The bound of config.json."""
    length = facts.settings.max_model_len
    if facts.model is not None and length is not None and length > facts.model.max_length:
        yield Says(
            f"max_model_len {length:,} is more than the model was made for ({facts.model.max_length:,} in its "
            "config.json). vLLM refuses to start.",
            f"max_model_len: {facts.model.max_length}.",
        )


@RULES.rule("info", "what running answers leave of a step for prompts", "vllm/v1/core/sched/scheduler.py")
def prefill_beside_decodes(facts: StaticFacts) -> Iterator[Says]:
    """Running answers are scheduled first, one token each; prompts get the rest."""
    tokens, sequences = facts.tokens, facts.sequences
    if facts.budget is None or not facts.settings.chunked_prefill or not tokens or not sequences or tokens < sequences:
        return
    length, rest = facts.budget.resolved.max_model_len, tokens - sequences
    steps = f"in at least {-(-length // rest):,} steps" if rest else "in none"
    yield Says(
        f"When all {sequences:,} sequences decode they take {sequences:,} of the {tokens:,} tokens of a step, one "
        f"each; {rest:,} are left for prompts. A prompt of {length:,} tokens is read {steps}.",
        "A larger max_num_batched_tokens reads long prompts in fewer steps; each holds up running answers longer.",
    )
