"""A proof: Signalbox knows with which settings vLLM starts, what it chooses for the rest, and profiles always start."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from control.vllm.defaults import GIB, Device, tier
from control.vllm.profiles import PROFILES, with_profile
from control.vllm.refusals import REFUSALS
from tests.support.proof import Row, row
from tests.tuning.verdicts import MODELS, RELEASE, Case, Values, cases, disagreements, ours, theirs

COUNT = 500
#: Around every bound of vllm/engine/arg_utils.py.
DEVICES = [
    Device(int(gib * GIB), name)
    for gib in (8, 22, 69.9, 70, 79.2, 139.8, 159.9, 160, 180)
    for name in ("NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
]


def profiled() -> Iterator[Case]:
    """Every profile beside settings of one's own with which vLLM would start."""
    lengths, sequences, tokens = (None, 1, 128, 4096), (None, 1, 8, 4000), (None, 16, 512)
    for profile, *values, chunked in itertools.product(PROFILES, lengths, sequences, tokens, (None, False)):
        names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill")
        given: Values = {
            name: value for name, value in zip(names, (*values, chunked), strict=True) if value is not None
        }
        if not ours(Case("Meta-Llama-3-8B", given, [], {})):
            yield Case("Meta-Llama-3-8B", with_profile(profile, given), [], {})


def proof() -> list[Row]:
    """vLLM is asked once, about everything."""
    asked, with_profiles = cases(COUNT), list(profiled())
    answers = theirs([*asked, *with_profiles], DEVICES)
    random, rest = answers["settings"][: len(asked)], answers["settings"][len(asked) :]
    wrong = list(disagreements(asked, random))
    refused = sum(answer["said"] is not None for answer in random)
    seen = Counter(reason for case in asked for reason in ours(case))
    met = [refusal.id for refusal in REFUSALS if seen[refusal.id]]
    failed = [case for case, answer in zip(with_profiles, rest, strict=True) if answer["said"] is not None]
    others = [device for device, step in zip(DEVICES, answers["devices"], strict=True) if tuple(step) != tier(device)]
    models = f"{len(MODELS)} models, vLLM {RELEASE}"
    return [
        row("random settings on which vLLM and `signalbox advise` disagree", len(wrong), 0, "",
            f"{len(asked)} settings of {models}: {refused} refused, each for the same reason; else the same step "
            "(but for MLA, whose step vLLM changes on CPUs)",
            disagreements=wrong[:10]),
        row("kinds of refusal that were met", len(met), len(REFUSALS), "", "in the same settings", at_least=True,
            times={name: seen[name] for name in met}),
        row("profiles beside settings of one's own with which vLLM does not start", len(failed), 0, "",
            f"{len(with_profiles)} combinations with which it starts without one", failed=list(map(str, failed))),
        row("GPUs for which vLLM chooses another step than `signalbox profiles` shows", len(others), 0, "",
            f"{len(DEVICES)} sizes and names", others=list(map(str, others))),
    ]  # fmt: skip
