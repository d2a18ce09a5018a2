"""What an engine was told about memory, and what vLLM chooses for the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from control.errors import TuningError
from control.fleet.arguments import vllm_settings
from control.fleet.schema import Engine
from control.tuning.architecture import Architecture
from control.tuning.cards import Card
from control.vllm.defaults import step

#: vLLM 0.30 to 0.33, ``CacheConfig.gpu_memory_utilization`` of vllm/config/cache.py.
UTILIZATION = 0.92
#: Bytes per number. What is not here (packed 4-bit caches and the like) has another layout than heads × size.
DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What decides about memory. None: vLLM's own choice, which may hang on the card (``resolved``).

    ``kv_cache_memory``: bytes. ``block_size``: tokens. ``in_flight``: steps that may be under way at the same time.
    """

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    block_size: int = 16
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = UTILIZATION
    kv_cache_memory: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = False

    @property
    def in_flight(self) -> int:
        """``max_concurrent_batches`` of vllm/config/vllm.py, as GPUs have it: asynchronous, the second model runner."""
        return self.pipeline_parallel_size + 1


@dataclass(frozen=True)
class Resolved:
    """``Settings`` with nothing left open, for one card."""

    settings: Settings
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    weight_bytes: int
    kv_bytes: int


def of_engine(engine: Engine) -> Settings:
    """The settings of an ``engine`` of fleet.yaml, its profile and the extra_args that matter here included."""
    known = {name: value for name, value in vllm_settings(engine).items() if name in Settings.__dataclass_fields__}
    known["block_size"] = _block_size(engine.extra_args) or (128 if engine.runtime == "vllm-cpu" else 16)
    known["enforce_eager"] = "--enforce-eager" in engine.extra_args or engine.runtime == "vllm-cpu"
    return replace(Settings(), **known)  # type: ignore[arg-type]  # fields of the schema have these types


def resolved(settings: Settings, model: Architecture, card: Card) -> Resolved:
    """``settings`` with vLLM's choices for this card. Raises TuningError for a data type of unknown size."""
    length = settings.max_model_len or model.max_length
    chosen = step(
        settings.max_num_batched_tokens, settings.max_num_seqs, length=length, chunked=settings.chunked_prefill,
        device=card.device, gpus=settings.tensor_parallel_size * settings.pipeline_parallel_size,
    )  # fmt: skip
    assert chosen.tokens is not None and chosen.sequences is not None  # length and device are known
    weights, cache = types(settings, model)
    return Resolved(settings, length, chosen.sequences, chosen.tokens, weights, cache)


def types(settings: Settings, model: Architecture) -> tuple[int, int]:
    """Bytes of a number in the weights that are not quantised, and in the KV cache. Raises TuningError."""
    dtype = settings.dtype if settings.dtype != "auto" else model.dtype
    if settings.dtype == "auto" and dtype == "float32":
        dtype = "bfloat16"  # vLLM serves such files in 16 bits
    cache = settings.kv_cache_dtype if settings.kv_cache_dtype != "auto" else model.kv_dtype
    return _bytes(dtype, "dtype"), _bytes(dtype if cache == "auto" else cache, "kv_cache_dtype")


def _bytes(name: str, field: str) -> int:
    if name not in DTYPE_BYTES:
        raise TuningError(
            f"{field}: {name} is stored in a way that Signalbox cannot calculate.",
            f"It can: {', '.join(sorted(DTYPE_BYTES))}.",
        )
    return DTYPE_BYTES[name]


def _block_size(arguments: Sequence[str]) -> int | None:
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--block-size":
            text = value or next(iter(arguments[place + 1 :]), "")
            return int(text) if text.isdecimal() and int(text) > 0 else None
    return None
