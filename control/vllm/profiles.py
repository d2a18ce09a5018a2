"""Profiles: settings of the scheduler that go together, for one kind of traffic. Pure.

`signalbox profiles` shows all of this; docs/arguments.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Name = Literal["default", "mixed", "chat", "rag", "throughput"]


@dataclass(frozen=True)
class Profile:
    """``traffic``: what it is for; ``why``: its numbers, ``holds``: where they do; ``elsewhere``: what to change."""

    settings: Mapping[str, bool | int]
    traffic: str
    why: str
    holds: str
    elsewhere: str


def _settings(tokens: int, sequences: int, threshold: int | None = None) -> Mapping[str, bool | int]:
    """Chunks and cached prefixes are what present releases do by default; said here, older ones do the same."""
    own: dict[str, bool | int] = {
        "chunked_prefill": True, "prefix_caching": True, "max_num_batched_tokens": tokens, "max_num_seqs": sequences,
    }  # fmt: skip
    return own if threshold is None else {**own, "long_prefill_token_threshold": threshold}


#: Where the numbers come from: docs/arguments.md, "Where the numbers come from".
PROFILES: Mapping[Name, Profile] = {
    "default": Profile(
        {},
        "whatever vLLM chooses",
        "Nothing is set. vLLM goes by the memory of the card; nobody tells the edge how many requests run, so none "
        "wait there.",
        "one engine that is tried out",
        "2,048 tokens and 256 sequences below 70 GiB; 8,192 and 1,024 from there on (not A100); 16,384 from 160 GiB "
        "on.",
    ),
    "mixed": Profile(
        _settings(2048, 32, 512),
        "long prompts among short ones",
        "2,048 tokens: a prompt of 8,192 that is alone is read in four steps. 512: while others run, it takes a "
        "fourth of a step, so a short question fits in beside it, and answers wait less for each step. 32 sequences "
        "leave each about 1,000 tokens of KV cache with Llama 3 8B on a 24 GB card.",
        "models of 7 to 8 billion parameters in 16 bits on 24 GB",
        "From 70 GiB on steps are several times faster: max_num_batched_tokens: 8192, max_num_seqs: 128.",
    ),
    "chat": Profile(
        _settings(1024, 64),
        "short prompts, long answers",
        "1,024 tokens hold a whole prompt of this kind, and about halve the longest gap between two tokens of an "
        "answer against 2,048. Answers decode most of the time, one token each: 64 of them take a sixteenth of a step.",
        "prompts up to about 1,000 tokens; a KV cache of 64 × prompt and answer",
        "From 70 GiB on: max_num_batched_tokens: 2048, max_num_seqs: 256. With many longer prompts: mixed.",
    ),
    "rag": Profile(
        _settings(4096, 16, 2048),
        "long documents, short answers",
        "4,096 tokens read a document in half the steps of 2,048, and take about half the memory of 8,192 away from "
        "the KV cache. 2,048: two documents are read side by side, and the second need not wait for the first. 16 "
        "long sequences are what a KV cache holds.",
        "documents of 4,000 tokens and more, on 24 to 48 GB",
        "From 70 GiB on: max_num_batched_tokens: 8192, long_prefill_token_threshold: 4096, max_num_seqs: 64.",
    ),
    "throughput": Profile(
        _settings(8192, 256),
        "jobs that nobody waits for",
        "Large steps and many sequences keep the GPU computing: most tokens per second, and the longest gaps "
        "between those of one answer. What does not fit into the KV cache is preempted.",
        "batches; a KV cache of 256 × prompt and answer",
        "On 24 GB the step alone takes over 1 GiB: max_num_batched_tokens: 4096, max_num_seqs: 128.",
    ),
}
assert tuple(PROFILES) == get_args(Name)


def with_profile(profile: Name, given: Mapping[str, object]) -> dict[str, object]:
    """``given`` (field → value) and, for what it leaves open, the profile's settings as far as they go together.

    vLLM refuses a step of fewer tokens than sequences, and a threshold above the longest prompt; it warns of a step of
    more tokens than all sequences together can have; and a prompt that is not cut has to fit into a step. What is given
    counts; the profile gives way.
    """
    own = dict(PROFILES[profile].settings)
    if {**own, **given}.get("chunked_prefill") is False:  # vLLM's own default then holds a whole prompt
        own.pop("max_num_batched_tokens", None)
        own.pop("long_prefill_token_threshold", None)
    longest, tokens = given.get("max_model_len"), given.get("max_num_batched_tokens")
    if "max_num_seqs" in own and isinstance(tokens, int):
        own["max_num_seqs"] = min(own["max_num_seqs"], tokens)
    sequences = {**own, **given}.get("max_num_seqs")
    if "max_num_batched_tokens" in own and isinstance(sequences, int):
        most = sequences * longest if isinstance(longest, int) else own["max_num_batched_tokens"]
        own["max_num_batched_tokens"] = max(sequences, min(own["max_num_batched_tokens"], most))
    _fit_threshold(own, longest, {**own, **given}.get("max_num_batched_tokens"))
    return {**own, **given}


def _fit_threshold(own: dict[str, bool | int], longest: object, tokens: object) -> None:
    """No more than a prompt can have; none where a step is no larger, as it would never cut."""
    threshold = own.get("long_prefill_token_threshold")
    if threshold is None:
        return
    if isinstance(longest, int):
        own["long_prefill_token_threshold"] = min(threshold, longest)
    if isinstance(tokens, int) and tokens <= own["long_prefill_token_threshold"]:
        del own["long_prefill_token_threshold"]
