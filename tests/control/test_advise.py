"""Findings: each rule, with settings for which it speaks and such for which it is silent."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from control.cli import main
from control.engines.facts import Facts, from_line
from control.fleet.arguments import release_of, vllm_settings
from control.fleet.load import load
from control.fleet.resolve import resolve_backends
from control.fleet.schema import Engine
from control.paths import REPOSITORY
from control.run import _advise
from control.tuning.advise import Finding, failed, worst_first
from control.tuning.architecture import read
from control.tuning.cards import Card, find
from control.tuning.catalogue import catalogue, static_findings
from control.tuning.lookout import Lookout
from control.tuning.rules_log import RULES as LOG_RULES
from control.tuning.rules_log import StartFacts
from control.tuning.rules_memory import GPU_RULES, GpuFacts
from control.tuning.settings import of_engine
from control.tuning.static_facts import Expected, StaticFacts, Surroundings, facts_of
from control.tuning.weights import of_config
from control.vllm.flags import flags_of
from control.vllm.profiles import PROFILES
from tests.support.model_configs import ALL
from tests.support.proof import between_marks
from tests.tuning.live import PROVOKED

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
    "unknown_quantization": (
        facts(quantization="fp8_blok"), facts(quantization="fp8_blok", image="vllm/vllm-openai:v0.31.0"), "vLLM 0.32"),
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
    "step_holds_any_prompt": (
        facts(DEEPSEEK, max_num_batched_tokens=8192), facts(DEEPSEEK, max_num_batched_tokens=2048), "8,192"),
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
    "stages_without_layers": (
        facts(LLAMA, pipeline_parallel_size=33), facts(LLAMA, pipeline_parallel_size=32), "33 groups"),
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


def started(before: StaticFacts, **told: Any) -> StartFacts:
    return StartFacts(Facts(**told), before)


PLANNED = facts(LLAMA, max_num_seqs=32)
#: Rule on a start → what an engine told for which it speaks, such for which it does not, and a number of its text.
TOLD: dict[str, tuple[StartFacts, StartFacts, str]] = {
    "not_chunking": (
        started(PLANNED, chunked_prefill=False), started(PLANNED), "in one piece"),
    "not_caching": (
        started(PLANNED, prefix_caching=False), started(facts(prefix_caching=False), prefix_caching=False), "prefixes"),
    "cache_below_plan": (
        started(PLANNED, kv_cache_tokens=20_000, gpu_memory_utilization=0.92),
        started(PLANNED, kv_cache_tokens=60_000), "20,000 tokens at gpu_memory_utilization 0.92"),
    "concurrency_below_sequences": (
        started(PLANNED, max_concurrency=5.1, kv_cache_tokens=41_000, max_model_len=8192),
        started(PLANNED, max_concurrency=40.0), "5.1 requests of 8,192 tokens fit at once, and max_num_seqs is 32"),
    "slow_attention": (
        started(PLANNED, attention_backend="FLEX_ATTENTION"), started(PLANNED, attention_backend="FLASH_ATTN"), "FLEX"),
    "weights_offloaded": (started(PLANNED, cpu_offload_gib=10.2), started(PLANNED), "10.2 GiB"),
}  # fmt: skip


@pytest.mark.parametrize("rule", TOLD)
def test_a_rule_on_a_start_speaks_where_it_should_and_only_there(rule: str) -> None:
    there, elsewhere, words = TOLD[rule]
    (found,) = [one for one in LOG_RULES.findings("m-1", there) if one.id == rule]
    assert found.subject == "m-1" and words in f"{found.text} {found.cure}"
    assert rule not in {one.id for one in LOG_RULES.findings("m-1", elsewhere)}


def test_offloaded_weights_are_read_in_the_log() -> None:
    assert from_line(Facts(), "Total CPU offloaded parameters: 10.2").cpu_offload_gib == 10.2


def test_gpus_that_are_promised_twice() -> None:
    (found,) = GPU_RULES.findings("gpu-a, GPU 0", GpuFacts({"a-1": 0.92, "b-1": 0.92}))
    assert found.id == "gpu_promised_twice" and "184%" in found.text and found.cure.endswith("0.47 for each.")
    assert not GPU_RULES.findings("gpu-a, GPU 0", GpuFacts({"a-1": 0.45, "b-1": 0.5}))


def test_names_are_used_once_and_every_rule_has_a_case() -> None:
    names = [rule.id for rule in catalogue()]
    assert len(set(names)) == len(names)
    assert {rule.id for rule in catalogue() if rule.kind == "static"} == {*SPEAKS, "gpu_promised_twice"}
    assert {rule.id for rule in catalogue() if rule.kind == "log"} == set(TOLD)


def test_order_and_exit_code() -> None:
    info, warning, error = (Finding(name, name, "m", "", "", "") for name in ("info", "warning", "error"))
    assert worst_first([info, warning, error]) == [error, warning, info]
    assert failed([warning, error]) and not failed([info, warning]) and failed([info, warning], strict=True)
    assert not failed([info], strict=True)


# The command, and the page of the docs


def fleet(folder: Path, tokens: int, sequences: int, **engine: Any) -> Path:
    """The settings of docs/tuning.md's example as a fleet.yaml: a 24 GB card, deepseek-llm-7b by its config.json."""
    (folder / "deepseek").mkdir(exist_ok=True)
    (folder / "deepseek" / "config.json").write_text(json.dumps(ALL[DEEPSEEK]))
    host = {"address": "192.0.2.2", "docker": "ssh://ops@192.0.2.2", "gpus": 1, "gpu_memory": "24166MiB"}
    own = {
        "image": "vllm/vllm-openai:v0.30.1", "max_model_len": 4096, "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": tokens, "max_num_seqs": sequences, **engine,
    }  # fmt: skip
    model = {"source": "./deepseek", "engine": own, "backends": [{"host": "gpu-a", "port": 8000, "gpus": [0]}]}
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({"hosts": {"gpu-a": host}, "models": {"deepseek-7b": model}}))
    return path


def advise(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--fleet", str(path), "advise", *arguments])


def test_the_settings_that_failed_and_those_that_worked(tmp_path: Path) -> None:
    failed_then = advise(fleet(tmp_path, 8192, 128), "--length", "500", "--strict")
    assert failed_then.exit_code == 1, failed_then.output
    shown = (REPOSITORY / "docs" / "tuning.md").read_text().split("says of the first:\n\n```\n")[1].split("```")[0]
    assert shown.count("\n") == 6
    for line in shown.splitlines():
        assert line in failed_then.stdout.splitlines()
    worked_then = advise(fleet(tmp_path, 2048, 32), "--length", "500", "--strict")
    assert worked_then.exit_code == 0, worked_then.output
    assert "all 32 sequences fit, at 500 tokens each" in worked_then.stdout
    assert "comes after 2 steps when it is alone, after 3 steps" in worked_then.stdout
    assert worked_then.stdout.endswith("0 errors, 0 warnings, 2 to know.\n")


def test_errors_end_with_1_and_json_has_everything(tmp_path: Path) -> None:
    path = fleet(tmp_path, 2048, 32, max_model_len=8192)
    result = advise(path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["unseen"] == {} and found["findings"][0]["id"] == "longer_than_the_model"
    assert set(found["findings"][0]) == {"id", "severity", "subject", "text", "cure", "source"}
    path.write_text(path.read_text().replace("./deepseek", "./nowhere"))
    result = advise(path)
    assert result.exit_code == 0 and "deepseek-7b: its memory was not looked at. There is no" in result.stdout
    assert advise(path, "other").exit_code == 1


def test_models_of_containers_on_this_machine_are_looked_at_where_they_are_mounted(tmp_path: Path) -> None:
    path = fleet(tmp_path, 2048, 32)
    content = yaml.safe_load(path.read_text())
    host = {"docker": "unix:///var/run/docker.sock", "volumes": [f"{tmp_path}:/models"]}
    content["hosts"]["gpu-a"].update(host)
    content["models"]["deepseek-7b"]["source"] = "/models/deepseek"
    path.write_text(yaml.safe_dump(content))
    whole = json.loads(advise(path, "--json").stdout)
    assert whole["unseen"] == {} and "cache_shared" in {found["id"] for found in whole["findings"]}
    assert json.loads(advise(path, "deepseek-7b-1", "--json").stdout) == whole, "a backend's name stands for its model"


def test_what_the_last_start_told_is_looked_at(tmp_path: Path) -> None:
    path = fleet(tmp_path, 2048, 32)
    folder = tmp_path / ".signalbox" / "engines" / "deepseek-7b-1"
    folder.mkdir(parents=True)
    facts_told = {"kv_cache_tokens": 9000, "max_concurrency": 2.2, "chunked_prefill": False, "unheard": 1}
    (folder / "startup.json").write_text(json.dumps({"life": "x", "phases": [], "facts": facts_told}))
    told = {
        one["id"]: one for one in json.loads(advise(path, "--json").stdout)["findings"] if one["subject"][-2:] == "-1"
    }
    assert set(told) == {"cache_below_plan", "not_chunking", "concurrency_below_sequences"}
    assert "9,000 tokens; planned were 16,480" in told["cache_below_plan"]["text"]


def findings_table() -> str:
    """The table of docs/tuning.md: rules by where their facts come from."""
    lines = []
    titles = {"static": "Settings, before a start", "log": "The last start", "live": "A running engine"}
    for kind, title in titles.items():
        lines += ["", f"**{title}**", "", "| finding | | when | from |", "|---|---|---|---|"]
        lines += [
            f"| `{rule.id}` | {rule.severity} | {rule.when} | {rule.source} |"
            for rule in catalogue() if rule.kind == kind
        ]  # fmt: skip
    return "\n".join([*lines[1:], ""])


def test_the_docs_have_every_finding() -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest writes the table."""
    path = REPOSITORY / "docs" / "tuning.md"
    text = between_marks(path.read_text(), "findings", findings_table())
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_up_shows_errors_and_warnings_and_the_page_all(tmp_path: Path) -> None:
    loaded = load(fleet(tmp_path, 8192, 128, max_model_len=8192))
    console = Console(file=io.StringIO(), width=200)
    _advise(loaded, console)
    said = console.file.getvalue()
    assert "✗ deepseek-7b longer_than_the_model" in said and "step_costs_cache" not in said
    lookout = Lookout(loaded)
    lookout._stand()
    assert {found.severity for found in lookout._standing} == {"error", "warning", "info"}
    before = lookout._standing
    lookout._stand()
    assert lookout._standing is before
    lookout.set_fleet(load(fleet(tmp_path, 2048, 32)))
    lookout._stand()
    assert {found.severity for found in lookout._standing} == {"info"}


def test_profiles_are_told_with_reasons_and_the_docs_have_their_numbers() -> None:
    shown = CliRunner().invoke(main, ["profiles", "--card", "h100", "--json"])
    rows = {row["profile"]: row for row in json.loads(shown.stdout)}
    assert rows["default"]["settings"] == {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    names = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")
    text = (REPOSITORY / "docs" / "arguments.md").read_text()
    for name, profile in PROFILES.items():
        numbers = " ".join(f"| {profile.settings.get(field, '')}".rstrip() for field in names)
        assert f"| `{name}` | {profile.traffic} {numbers} |\n" in text
        assert all(rows[name][key] for key in ("traffic", "why", "holds", "elsewhere"))
    plain = CliRunner().invoke(main, ["profiles"])
    assert plain.exit_code == 0 and "long documents" in plain.stdout and "on L4" in plain.stdout
    assert CliRunner().invoke(main, ["profiles", "--card", "x"]).exit_code == 1


def test_a_profile_tells_the_edge_how_many_run(tmp_path: Path) -> None:
    path = fleet(tmp_path, 2048, 32)
    content = yaml.safe_load(path.read_text())
    engine = content["models"]["deepseek-7b"]["engine"]
    del engine["max_num_seqs"], engine["max_num_batched_tokens"]
    limits = {}
    for name in PROFILES:
        engine["profile"] = name
        path.write_text(yaml.safe_dump(content))
        (backend,) = resolve_backends(load(path))
        limits[name] = backend.limit
    assert limits == {"default": None, "mixed": 34, "chat": 66, "rag": 18, "throughput": 258}


def test_cards_are_named_where_they_differ_and_engines_on_one_gpu_are_added_up(tmp_path: Path) -> None:
    path = fleet(tmp_path, 8192, 128)
    content = yaml.safe_load(path.read_text())
    content["hosts"]["gpu-b"] = {**content["hosts"]["gpu-a"], "address": "192.0.2.3", "gpu_memory": "44GiB"}
    model = content["models"]["deepseek-7b"]
    model["backends"] += [{"host": "gpu-b", "port": 8000, "gpus": [0]}, {"host": "gpu-b", "port": 8001, "gpus": [0]}]
    path.write_text(yaml.safe_dump(content))
    found = [(one["id"], one["subject"]) for one in json.loads(advise(path, "--json").stdout)["findings"]]
    assert found[:2] == [
        ("more_sequences_than_cache", "deepseek-7b on gpu-a"), ("gpu_promised_twice", "gpu-b, GPU 0"),
    ]  # fmt: skip
    assert ("step_holds_any_prompt", "deepseek-7b") in found
    assert {subject for rule, subject in found if rule == "cache_shared"} == {
        "deepseek-7b on gpu-a", "deepseek-7b on gpu-b",
    }  # fmt: skip


def test_every_finding_of_a_running_engine_is_brought_about_by_the_proofs() -> None:
    assert {case.rule for case in PROVOKED} == {rule.id for rule in catalogue() if rule.kind == "live"}
