"""Random settings, and the verdict that Signalbox has on them, to be compared with vLLM's own (config_side.py)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from control.engines.install import install_vllm_cpu
from control.paths import REPOSITORY, StatePaths
from control.tuning.architecture import read
from control.tuning.static_facts import bounds
from control.vllm.defaults import Device, Step
from control.vllm.extra import complaints
from control.vllm.flags import flags_of, parse_version
from control.vllm.refusals import REFUSALS, Told, told
from control.vllm.settings import SETTINGS, SettingError, words
from tests.support.model_configs import ALL, Config

RELEASE = "0.32.0"
Values = dict[str, Any]
Answers = dict[str, list[Any]]

#: Configurations of models that differ in what vLLM checks: heads, lengths, types, how weights are stored.
MODELS: dict[str, Config] = {
    **{name: ALL[name] for name in (
        "SmolLM2-135M", "Meta-Llama-3-8B", "Qwen2.5-7B-AWQ", "Qwen3-8B-FP8", "DeepSeek-V2-Lite", "gemma-3-27b")},
    "Llama-GPTQ": {**ALL["Meta-Llama-3-8B"], "quantization_config": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}},
}  # fmt: skip

#: On CPUs vLLM turns chunked prefill off for MLA, whatever it is told, and makes the step larger.
_NO_CHUNKS = ("DeepSeek-V2-Lite",)

#: Values around every bound, and a few that no parser takes.
_VALUES: dict[str, Sequence[Any]] = {
    "max_model_len": (1, 128, 2048, 8192, 8193, 40_000, 200_000),
    "max_num_seqs": (1, 8, 64, 128, 129, 256, 1024, 2049, 5000),
    "max_num_batched_tokens": (1, 64, 128, 512, 2048, 4096, 8192, 40_000),
    "long_prefill_token_threshold": (1, 128, 512, 2049, 8192, 9000),
    "chunked_prefill": (True, False),
    "prefix_caching": (True, False),
    "gpu_memory_utilization": (0.01, 0.5, 1.0),
    "kv_cache_memory": (1024, 256 * 1024**2),
    "kv_cache_dtype": ("auto", "fp8", "fp8_e5m2", "bfloat16", "fp9"),
    "tensor_parallel_size": (1, 2, 3, 4, 8, 9),
    "pipeline_parallel_size": (1, 2),
    "dtype": ("auto", "bfloat16", "half", "float16", "float32", "float", "int3"),
    "quantization": ("fp8", "awq", "gptq", "compressed-tensors", "int8"),
}
_EXTRA: Sequence[list[str]] = (
    *([[]] * 16), ["--enforce-eager"], ["--seed", "7"], ["--no-enable-prefix-caching"], ["--chunked-prefill"],
    ["--swap-space", "4"], ["--enforce-eager", "True"], ["--block-size", "x"], ["--max-num-partial-prefills", "2"],
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One engine: a model of MODELS, settings, further words, and an environment."""

    model: str
    values: Values
    extra: list[str]
    environment: dict[str, str]

    def for_vllm(self) -> dict[str, Any]:
        """As config_side.py takes it: every value as a word, right or wrong."""
        arguments = [word for field, value in self.values.items() for word in _words(field, value)]
        return {"config": MODELS[self.model], "arguments": arguments + self.extra, "environment": self.environment}


def _words(field: str, value: Any) -> list[str]:
    flag = SETTINGS[field][0]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, str(value)]


#: What chance seldom draws.
_CHOSEN = (
    Case("Meta-Llama-3-8B", {"chunked_prefill": False, "max_num_batched_tokens": 8191}, [], {}),
    Case("Meta-Llama-3-8B", {"chunked_prefill": False, "max_num_batched_tokens": 8192}, [], {}),
    Case("Meta-Llama-3-8B", {"tensor_parallel_size": 3}, [], {}),
    Case("gemma-3-27b", {"dtype": "half"}, [], {}),
    Case("Meta-Llama-3-8B", {"max_num_batched_tokens": 512, "max_num_seqs": 128}, ["--enforce-eager"], {}),
)


def cases(count: int) -> list[Case]:
    """A few chosen cases and as many random ones; the same ones each time."""
    found = list(_CHOSEN)
    field = st.one_of([st.sampled_from([(name, value) for value in values]) for name, values in _VALUES.items()])

    @settings(max_examples=count, phases=[Phase.generate], derandomize=True, database=None, deadline=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(
        st.sampled_from(sorted(MODELS)), st.lists(field, min_size=2, max_size=6), st.sampled_from(_EXTRA),
        st.sampled_from([{}, {}, {}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}]),
    )  # fmt: skip
    def collect(model: str, values: list[tuple[str, Any]], extra: list[str], environment: dict[str, str]) -> None:
        found.append(Case(model, dict(values), extra, environment))

    collect()
    return found


def facts_of(case: Case) -> Told:
    """As the rules look at it; on the CPU, where vLLM is asked."""
    model = bounds(read(MODELS[case.model]))
    version = flags_of(parse_version(RELEASE)).version
    return told(case.values, version, model=model, device=Device(0, cpu=True), environment=case.environment)


def ours(case: Case) -> dict[str, str]:
    """Reason → pattern of the words that vLLM should have for it; empty: it starts."""
    flags = flags_of(parse_version(RELEASE))
    found = {}
    for field, value in case.values.items():
        try:
            words(field, value, flags, case.environment)
        except SettingError:
            found[f"no such {field}"] = rf"argument {SETTINGS[field][0]}"
    known = [
        wrong
        for wrong in complaints(case.extra, flags)
        if not wrong.warning and "is set by Signalbox" not in wrong.message
    ]
    found |= {wrong.message: "unrecognized arguments|argument --" for wrong in known}
    facts = facts_of(case)
    for refusal in REFUSALS:
        if any(refusal.check(facts)):
            found[refusal.id] = refusal.theirs
    return found


def theirs(asked: Sequence[Case], devices: Sequence[Device] = ()) -> Answers:
    """vLLM's answers: one process for all, as to import it takes long."""
    runtime = install_vllm_cpu(StatePaths((REPOSITORY / ".signalbox").resolve()), RELEASE)
    command = [str(runtime / "bin" / "python"), str(Path(__file__).with_name("config_side.py"))]
    content = {"settings": [case.for_vllm() for case in asked],
               "devices": [{"memory": one.memory, "name": one.name} for one in devices]}  # fmt: skip
    done = subprocess.run(command, input=json.dumps(content), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: Answers = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


def disagreements(asked: Sequence[Case], answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where vLLM starts and we say that it does not, or the other way round, or for another reason, or otherwise."""
    for case, answer in zip(asked, answers, strict=True):
        reasons, said = ours(case), answer["said"]
        if said is None and reasons:
            yield f"{case}: vLLM starts, though {list(reasons)}"
        elif said is not None and not any(re.search(pattern, said) for pattern in reasons.values()):
            yield f"{case}: vLLM says {said[:300]!r}, we {list(reasons)}"
        elif said is None and case.model not in _NO_CHUNKS and (step := facts_of(case).step) != Step(*answer["step"]):
            yield f"{case}: vLLM's step is {answer['step']}, ours {step}"
