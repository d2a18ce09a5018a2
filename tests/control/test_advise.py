"""Findings: each rule, with settings for which it speaks and such for which it is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control.fleet.arguments import release_of, vllm_settings
from control.fleet.schema import Engine
from control.tuning.advise import Finding, failed, worst_first
from control.tuning.architecture import read
from control.tuning.cards import Card, find
from control.tuning.catalogue import catalogue, static_findings
from control.tuning.rules_memory import GPU_RULES, GpuFacts
from control.tuning.settings import of_engine
from control.tuning.static_facts import Expected, StaticFacts, Surroundings, facts_of
from control.tuning.weights import of_config
from control.vllm.flags import flags_of
from tests.support.model_configs import ALL

(RTX_4090,) = find("4090")
IMAGE = "vllm/vllm-openai:v0.32.0"


def facts(
    model: str | None = None, card: Card | None = RTX_4090, *, expected: Expected | None = None,
    around: Surroundings | None = None, **engine: Any,
) -> StaticFacts:  # fmt: skip
    """An engine with these settings, with the files of a model or without."""
    own = Engine.model_validate({"image": IMAGE, **engine})
    files = read(ALL[model]) if model else None
    return facts_of(
        vllm_settings(own), of_engine(own), flags_of(release_of(own)), environment=own.environment,
        extra_args=own.extra_args, model=files, weights=of_config(files, 2) if files else None, card=card,
        expected=expected or Expected(), around=around or Surroundings((18,)),
    )  # fmt: skip


def ids(found: StaticFacts) -> set[str]:
    return {one.id for one in static_findings("m", found)}


LLAMA, DEEPSEEK = "Meta-Llama-3-8B", "deepseek-llm-7b"
TWO = Surroundings((18, 18), policy="prefix")

#: Rule → facts for which it speaks, facts beside them for which it does not, and a number of its text or cure.
SPEAKS: dict[str, tuple[StaticFacts, StaticFacts, str]] = {
    "longer_than_the_model": (
        facts(LLAMA, max_model_len=9000), facts(LLAMA, max_model_len=9000, environment={
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}), "max_model_len: 8192"),
    "half_precision": (facts("gemma-3-4b", dtype="half"), facts(LLAMA, dtype="half"), "bfloat16"),
    "other_quantization": (
        facts("Qwen2.5-7B-AWQ", quantization="fp8"), facts("Qwen2.5-7B-AWQ", quantization="awq_marlin"), "(awq)"),
    "wide_numbers": (facts("Qwen2.5-7B-AWQ", dtype="float32"), facts(LLAMA, dtype="float32"), "16 bits"),
    "step_below_prompt": (
        facts(LLAMA, chunked_prefill=False, max_num_batched_tokens=4096),
        facts(LLAMA, chunked_prefill=False, max_num_batched_tokens=8192), "(8192)"),
    "step_below_sequences": (
        facts(max_num_seqs=129, max_num_batched_tokens=128), facts(max_num_seqs=64, max_num_batched_tokens=64), "129"),
    "threshold_above_length": (
        facts(LLAMA, long_prefill_token_threshold=9000),
        facts(LLAMA, long_prefill_token_threshold=9000, image="vllm/vllm-openai:v0.26.0"), "9000"),
    "heads_not_divisible": (facts(LLAMA, tensor_parallel_size=3), facts(LLAMA, tensor_parallel_size=4), "1, 2, 4, 8"),
    "no_such_setting": (
        facts(image="vllm/vllm-openai:v0.10.2", chunked_prefill=False), facts(chunked_prefill=False), "0.11.1"),
    "no_such_flag": (
        facts(extra_args=["--chunked-prefill"]), facts(extra_args=["--enforce-eager"]), "--enable-chunked-prefill"),
    "old_flag": (facts(extra_args=["--OLD"]), facts(extra_args=["--enforce-eager"]), "deprecated"),
    "prefill_beside_decodes": (
        facts(LLAMA, max_num_batched_tokens=2048, max_num_seqs=32), facts(max_num_seqs=8), "2,016"),
    "decodes_fill_the_step": (
        facts(max_num_batched_tokens=512, max_num_seqs=300), facts(max_num_batched_tokens=64, max_num_seqs=32), "212"),
    "step_tiny_beside_prompts": (
        facts(LLAMA, max_num_batched_tokens=512),
        facts(LLAMA, max_num_batched_tokens=512, expected=Expected(prompts=(1500,))), "16 steps of 512"),
    "step_beyond_all": (
        facts(LLAMA, max_num_batched_tokens=9000, max_num_seqs=1), facts(LLAMA, max_num_batched_tokens=8192,
        max_num_seqs=1), "max_num_batched_tokens: 8192"),
    "prompts_in_one_piece": (facts(LLAMA, chunked_prefill=False), facts(LLAMA, chunked_prefill=True), "8,192"),
    "threshold_without_effect": (
        facts(max_num_batched_tokens=2048, long_prefill_token_threshold=2048),
        facts(max_num_batched_tokens=2048, long_prefill_token_threshold=512), "such as 512"),
    "prefix_routing_for_nothing": (
        facts(prefix_caching=False, around=TWO), facts(prefix_caching=True, around=TWO), "least_loaded"),
    "no_limit": (facts(LLAMA, around=Surroundings((None,))), facts(LLAMA, max_num_seqs=16), "256"),
    "limit_beyond_sequences": (
        facts(max_num_seqs=16, around=Surroundings((40,))), facts(max_num_seqs=16, around=Surroundings((20,))), "24"),
    "limit_below_sequences": (
        facts(max_num_seqs=128, around=Surroundings((16,))), facts(max_num_seqs=16, around=Surroundings((16,))), "112"),
    "does_not_fit": (facts("Mixtral-8x7B"), facts(LLAMA), "tensor_parallel_size: 8"),
    "more_sequences_than_cache": (
        facts(DEEPSEEK, max_num_batched_tokens=8192, max_num_seqs=128, expected=Expected(lengths=(500,))),
        facts(DEEPSEEK, max_num_batched_tokens=2048, max_num_seqs=32, expected=Expected(lengths=(500,))), "not 128"),
    "cache_shared": (facts(LLAMA), facts(), "8,192"),
    "step_costs_cache": (
        facts(DEEPSEEK, max_num_batched_tokens=8192), facts(LLAMA, max_num_batched_tokens=512, max_num_seqs=8), "GiB"),
    "copies_of_heads": (
        facts(LLAMA, tensor_parallel_size=16), facts(LLAMA, tensor_parallel_size=8), "tensor_parallel_size: 8"),
}  # fmt: skip


@pytest.mark.parametrize("rule", SPEAKS)
def test_a_rule_speaks_where_it_should_and_only_there(rule: str) -> None:
    there, elsewhere, words = SPEAKS[rule]
    if rule == "old_flag":  # no flag of a present release is one
        flag = replace(next(iter(there.flags.by_spelling.values())), name="--OLD", deprecated=True)
        there = replace(there, flags=replace(there.flags, by_spelling={"--OLD": flag}))
    found = [one for one in static_findings("m", there) if one.id == rule]
    assert found and found[0].subject == "m" and found[0].source
    assert words in f"{found[0].text} {found[0].cure}"
    assert rule not in ids(elsewhere)


def test_gpus_that_are_promised_twice() -> None:
    (found,) = GPU_RULES.findings("gpu-a, GPU 0", GpuFacts({"a-1": 0.92, "b-1": 0.92}))
    assert found.id == "gpu_promised_twice" and "184%" in found.text and found.cure.endswith("0.47 for each.")
    assert not GPU_RULES.findings("gpu-a, GPU 0", GpuFacts({"a-1": 0.45, "b-1": 0.5}))


def test_names_are_used_once_and_every_rule_has_a_case() -> None:
    names = [rule.id for rule in catalogue()]
    assert len(set(names)) == len(names)
    assert {rule.id for rule in catalogue() if rule.kind == "static"} == {*SPEAKS, "gpu_promised_twice"}


def test_order_and_exit_code() -> None:
    info, warning, error = (Finding(name, name, "m", "", "", "") for name in ("info", "warning", "error"))
    assert worst_first([info, warning, error]) == [error, warning, info]
    assert failed([warning, error]) and not failed([info, warning]) and failed([info, warning], strict=True)
    assert not failed([info], strict=True)
