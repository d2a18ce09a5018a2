"""Settings with which vLLM refuses to start, in its own order of reasons. Pure.

Each entry says what vLLM's code says, and has its words (``theirs``): tests ask vLLM itself about random settings, and
compare both. What a release lacks or always refuses is in ``settings.py``, wrong ``extra_args`` in ``extra.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from control.vllm.defaults import Device, Step, step
from control.vllm.flags import Version, until


@dataclass(frozen=True)
class ModelBounds:
    """What config.json forbids.

    ``quantization``: how the files say that their weights are stored; empty: plain; None: they say it in another file.
    """

    max_length: int
    attention_heads: int
    model_type: str = ""
    quantization: str | None = ""


@dataclass(frozen=True)
class Told:
    """What vLLM is told (field → value), its release; what it chooses for the rest; its model, where it is known."""

    given: Mapping[str, object]
    release: Version
    step: Step
    length: int | None
    model: ModelBounds | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def number(self, field: str) -> int | None:
        """A given whole number."""
        value = self.given.get(field)
        return value if isinstance(value, int) else None

    @property
    def chunked(self) -> bool:
        """Whether prompts are cut."""
        return self.given.get("chunked_prefill") is not False


@dataclass(frozen=True)
class Refused:
    """One reason. ``text`` follows the name of ``field``, where to change it; ``about``: other fields it rests on."""

    field: str
    text: str
    cure: str
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """One check of vLLM's. ``when``: in words; ``source``: the file; ``theirs``: a pattern of the message."""

    id: str
    when: str
    source: str
    theirs: str
    check: Callable[[Told], Iterator[Refused]]


def told(
    given: Mapping[str, object], release: Version, *, model: ModelBounds | None = None, device: Device | None = None,
    environment: Mapping[str, str] | None = None,
) -> Told:  # fmt: skip
    """The facts for the checks. ``given``: with the profile's settings."""
    plain = Told(given, release, Step(None, None), None, model, environment or {})
    length = plain.number("max_model_len") or (model.max_length if model else None)
    chosen = step(
        plain.number("max_num_batched_tokens"), plain.number("max_num_seqs"), length=length, chunked=plain.chunked,
        device=device,
        gpus=(plain.number("tensor_parallel_size") or 1) * (plain.number("pipeline_parallel_size") or 1),
    )  # fmt: skip
    return replace(plain, step=chosen, length=length)


def refusals(facts: Told) -> Iterator[Refused]:
    """Every reason for which vLLM would not start with these settings."""
    for refusal in REFUSALS:
        yield from refusal.check(facts)


def _longer_than_the_model(facts: Told) -> Iterator[Refused]:
    length = facts.number("max_model_len")
    if facts.model is None or length is None or length <= facts.model.max_length:
        return
    if facts.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0"):
        return
    most = facts.model.max_length
    yield Refused(
        "max_model_len", f"{length:,} is more than the model was made for ({most:,} in its files)",
        f"At most: max_model_len: {most}.",
    )  # fmt: skip


def _heads(facts: Told) -> Iterator[Refused]:
    size = facts.number("tensor_parallel_size") or 1
    if facts.model is None or not facts.model.attention_heads % size:
        return
    heads = facts.model.attention_heads
    fit = [count for count in range(1, min(heads, 64) + 1) if heads % count == 0]
    yield Refused(
        "tensor_parallel_size", f"{heads} attention heads cannot be shared out to {size} GPUs",
        f"One of: {', '.join(map(str, fit))}.",
    )  # fmt: skip


def _step_below_prompt(facts: Told) -> Iterator[Refused]:
    tokens = facts.number("max_num_batched_tokens")
    if facts.chunked or tokens is None or facts.length is None or tokens >= facts.length:
        return
    yield Refused(
        "max_num_batched_tokens", f"{tokens} is less than max_model_len ({facts.length})",
        "Without chunked prefill a whole prompt must fit in: raise it, or set 'chunked_prefill: true'.",
        ("max_model_len", "chunked_prefill"),
    )  # fmt: skip


def _step_below_sequences(facts: Told) -> Iterator[Refused]:
    tokens, sequences = facts.step.tokens, facts.step.sequences
    if tokens is None or sequences is None or tokens >= sequences:
        return
    if facts.number("max_num_batched_tokens") is None:
        yield Refused(
            "max_num_seqs", f"{sequences} is more than the {tokens} tokens of a step that vLLM chooses here",
            f"Set max_num_batched_tokens to {sequences} or more, or lower max_num_seqs.",
        )  # fmt: skip
        return
    yield Refused(
        "max_num_batched_tokens", f"{tokens} is less than max_num_seqs ({sequences})",
        "Raise it, or lower max_num_seqs: each running sequence takes a token of every step.", ("max_num_seqs",),
    )  # fmt: skip


def _threshold(facts: Told) -> Iterator[Refused]:
    threshold, partial = facts.number("long_prefill_token_threshold"), until("--max-num-partial-prefills")
    if threshold is None or facts.length is None or threshold <= facts.length:
        return
    if partial is not None and facts.release <= partial:  # looked at only beside that flag, which nobody sets here
        return
    yield Refused(
        "long_prefill_token_threshold", f"{threshold} is more than max_model_len ({facts.length})",
        "Lower it: no prompt is longer.", ("max_model_len",),
    )  # fmt: skip


#: ``_FLOAT16_NOT_SUPPORTED_MODELS`` of vllm/config/model.py.
_NO_HALF = ("gemma2", "gemma3", "gemma3_text", "glm4")


def _half_precision(facts: Told) -> Iterator[Refused]:
    if (
        facts.model is not None
        and facts.given.get("dtype") in ("half", "float16")
        and facts.model.model_type in _NO_HALF
    ):
        yield Refused(
            "dtype", f"models of the kind {facts.model.model_type} give wrong numbers in float16", "Take bfloat16."
        )


#: Methods under several names; which of them a GPU takes is left to vLLM.
_FAMILIES: Mapping[str, str] = {
    "awq": "awq", "auto_awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "auto_gptq": "gptq", "gptq_marlin": "gptq",
}  # fmt: skip
#: These take files of other methods too.
_TAKE_OTHERS = ("humming", "moe_wna16", "inc", "deepseek_v4_fp8")
#: These only read weights that were stored by them. (fp8 and others quantise plain weights while they are loaded.)
_NEED_FILES = (*_FAMILIES, "compressed-tensors", "modelopt", "modelopt_fp4")


#: ``QuantizationMethods`` of 0.32; other releases have other names, so there nothing is said.
_METHODS_OF, _METHODS = (0, 32), (
    "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
    "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors", "experts_int8", "quark",
    "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8", "online", "fp8_per_tensor",
    "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token", "mxfp8",
)  # fmt: skip


def _unknown_quantization(facts: Told) -> Iterator[Refused]:
    asked = facts.given.get("quantization")
    if not isinstance(asked, str) or facts.release[:2] != _METHODS_OF or asked in _METHODS:
        return
    near = difflib.get_close_matches(asked, _METHODS, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(_METHODS)}."
    yield Refused("quantization", f"vLLM 0.32 has no method {asked}", hint)


def _other_quantization(facts: Told) -> Iterator[Refused]:
    asked, stored = facts.given.get("quantization"), facts.model.quantization if facts.model is not None else None
    if not isinstance(asked, str) or stored is None or asked in _TAKE_OTHERS:
        return
    if stored and _FAMILIES.get(asked, asked) != _FAMILIES.get(stored, stored):
        yield Refused("quantization", f"{asked} is not how the weights are stored ({stored})", "Remove the key.")
    elif not stored and asked in _NEED_FILES:
        text = f"{asked} reads weights that were stored that way, and these are plain"
        yield Refused("quantization", text, "Take a model that is quantised so, or quantization: fp8.")


def _wide_numbers(facts: Told) -> Iterator[Refused]:
    stored = facts.model.quantization if facts.model is not None else None
    method = facts.given.get("quantization") or stored
    if facts.given.get("dtype") in ("float", "float32") and (method == "fp8" or method in _FAMILIES):
        text = f"{method} computes in 16 bits only, not in {facts.given['dtype']}"
        yield Refused("dtype", text, "Take bfloat16, or leave it out.", ("quantization",))


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "longer_than_the_model",
        "`max_model_len` above what the model was made for (but for VLLM_ALLOW_LONG_MAX_MODEL_LEN)",
        "vllm/config/model.py", r"User-specified max_model_len \(\d+\) is greater", _longer_than_the_model,
    ),
    Refusal(
        "half_precision", "`dtype: float16` for Gemma 2, Gemma 3 and GLM-4",
        "vllm/config/model.py", r"does not support float16", _half_precision,
    ),
    Refusal(
        "unknown_quantization",
        "`quantization` that the release has no method for (known of 0.32 alone)",
        "vllm/model_executor/layers/quantization/__init__.py",
        r"Unknown quantization method|does not match the quantization method",
        _unknown_quantization,
    ),
    Refusal(
        "other_quantization", "`quantization` that is not how the weights are stored",
        "vllm/config/model.py, model_loader/weight_utils.py",
        r"does not match the quantization method|Cannot find the config file for|CompressedTensorsConfig\.__init__",
        _other_quantization,
    ),
    Refusal(
        "step_below_prompt", "without chunked prefill, a step smaller than `max_model_len`",
        "vllm/config/scheduler.py", r"max_num_batched_tokens \(\d+\) is smaller than max_model_len", _step_below_prompt,
    ),
    Refusal(
        "step_below_sequences", "a step of fewer tokens than `max_num_seqs`",
        "vllm/config/scheduler.py", r"must be greater than or equal to max_num_seqs", _step_below_sequences,
    ),
    Refusal(
        "threshold_above_length", "`long_prefill_token_threshold` above `max_model_len`",
        "vllm/config/scheduler.py", r"long_prefill_token_threshold \(\d+\) cannot be greater", _threshold,
    ),
    Refusal(
        "heads_not_divisible", "`tensor_parallel_size` that does not divide the attention heads",
        "vllm/config/model.py", r"must be divisible by tensor parallel size", _heads,
    ),
    Refusal(
        "wide_numbers", "`dtype: float32` with weights in fp8, AWQ or GPTQ",
        "vllm/config/vllm.py", r"is not supported for quantization method", _wide_numbers,
    ),
)  # fmt: skip
