"""Profiles: settings of the scheduler that go together, for one kind of traffic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Profile = Literal["default", "mixed", "chat", "rag"]

#: docs/arguments.md says why each is as it is.
PROFILES: Mapping[Profile, Mapping[str, bool | int]] = {
    "default": {},
    "mixed": {
        "chunked_prefill": True,
        "prefix_caching": True,
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 512,
    },
    "chat": {"chunked_prefill": True, "prefix_caching": True, "max_num_batched_tokens": 2048},
    "rag": {"chunked_prefill": True, "prefix_caching": True, "max_num_batched_tokens": 8192},
}
assert tuple(PROFILES) == get_args(Profile)


def with_profile(profile: Profile, given: Mapping[str, object]) -> dict[str, object]:
    """``given`` (field → value) and, for what it leaves open, the profile's settings as far as they go together.

    vLLM refuses a step of fewer tokens than sequences, and a threshold above the longest prompt; it warns of a step of
    more tokens than all sequences together can have; and a prompt that is not cut has to fit into a step. What is given
    counts; the profile gives way.
    """
    own = dict(PROFILES[profile])
    if {**own, **given}.get("chunked_prefill") is False:  # vLLM's own default then holds a whole prompt
        own.pop("max_num_batched_tokens", None)
        own.pop("long_prefill_token_threshold", None)
    longest, sequences = given.get("max_model_len"), given.get("max_num_seqs")
    if "long_prefill_token_threshold" in own and isinstance(longest, int):
        own["long_prefill_token_threshold"] = min(own["long_prefill_token_threshold"], longest)
    if "max_num_batched_tokens" in own and isinstance(sequences, int):
        most = sequences * longest if isinstance(longest, int) else own["max_num_batched_tokens"]
        own["max_num_batched_tokens"] = max(sequences, min(own["max_num_batched_tokens"], most))
    return {**own, **given}
