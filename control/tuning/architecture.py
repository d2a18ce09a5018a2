"""A model's config.json: which layers it has, and what each keeps of a sequence. Pure.

Names and fall-backs are those of Hugging Face's configuration classes and of vLLM 0.32
(vllm/transformers_utils/model_arch_config_convertor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from control.errors import TuningError
from control.tuning.config_kinds import check_kinds

Config = Mapping[str, Any]
Kind = Literal["full", "window", "mla", "state"]

#: What transformers fills in where config.json is silent; only what is asked here and is not the general default.
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True}
_FILLED_IN: Mapping[str, Config] = {
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "sliding_window": 4096},
    "gemma3_text": {
        **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
        "sliding_window": 4096, "max_position_embeddings": 131_072,
    },
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "mixtral": {"num_key_value_heads": 8},
    "mistral": {"num_key_value_heads": 8},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True},
    "gpt2": {"tie_word_embeddings": True},
    "opt": {"tie_word_embeddings": True},
}  # fmt: skip

#: Model types without ``layer_types`` → of how many layers the last one (Gemma 2, GPT-OSS: the second of two) is full.
_PATTERN = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}

#: Kinds whose cache has pages of another make, by keys of config.json that give them away.
_OTHER_CACHES = {
    "compress_ratios": "compressed sparse attention",
    "index_topk": "an index cache for sparse attention",
    "mamba_d_state": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "mamba_num_heads": "Mamba layers",
    "linear_attn_config": "linear attention",
    "lru_width": "recurrent layers",
    "block_configs": "layers that differ one by one",
    "num_kv_shared_layers": "layers that share their cache",
    "global_head_dim": "layers with heads of several sizes",
    "swa_head_dim": "layers with heads of several sizes",
    "hybrid_override_pattern": "Mamba layers",
    "encoder_layers": "an encoder beside the decoder",
}


@dataclass(frozen=True)
class Cache:
    """What one layer keeps of each token: ``heads`` × (``key_size`` + ``value_size``) numbers.

    ``heads``: of the whole model, before tensor parallelism. MLA has one latent vector, which every GPU of a
    tensor-parallel group keeps, and no value. ``window``: tokens that the layer looks back (0: all). Linear attention
    keeps a state in place of tokens: ``state`` numbers of the model's type, and ``wide_state`` of 4 bytes.
    """

    kind: Kind
    heads: int
    key_size: int
    value_size: int
    window: int = 0
    state: int = 0
    wide_state: int = 0


@dataclass(frozen=True)
class Architecture:
    """A model as the arithmetic sees it.

    ``dtype`` and ``kv_dtype``: what its files ask for (``kv_dtype``: "auto" is the model's own). ``max_length``: tokens
    that it was made for; ``text``: the part of config.json about the language model.
    """

    name: str
    layers: tuple[Cache, ...]
    dtype: str
    kv_dtype: str
    max_length: int
    tied: bool
    text: Config
    quantization: Config

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.text["hidden_size"])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.text["vocab_size"])


def read(config: Config) -> Architecture:
    """The architecture that config.json describes. Raises TuningError where the arithmetic is not known."""
    text = _language_model(config)
    for key, what in _OTHER_CACHES.items():
        if text.get(key):
            raise TuningError(
                f"This model has {what} ({key} in config.json), whose cache Signalbox cannot calculate.",
                "Start it once: vLLM prints the size of its KV cache. Everything else in fleet.yaml works as ever.",
            )
    count = _whole(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    cache, windows = _cache(text), _windows(text, count)
    linear = _linear(text, count)
    layers = tuple(
        linear.get(layer)
        or (replace(cache, kind="window", window=window) if window and cache.kind == "full" else cache)
        for layer, window in enumerate(windows)
    )
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    names = config.get("architectures") or [text.get("model_type", "unknown")]
    return Architecture(
        name=str(names[0]), layers=layers, dtype=_dtype(config, text), kv_dtype=_kv_dtype(quantization),
        max_length=_max_length(text), tied=bool(tied), text=text, quantization=quantization,
    )  # fmt: skip


def stages(layers: int, count: int) -> list[range]:
    """Which layers each of ``count`` pipeline stages has (``get_pp_indices`` of vllm/distributed/utils.py)."""
    sizes = [layers // count] * count
    for place in range(2, layers % count + 2):
        sizes[-place] += 1
    starts = [sum(sizes[:stage]) for stage in range(count)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _language_model(config: Config) -> Config:
    names = ("text_config", "llm_config", "language_config")
    nested: Config = next((found for name in names if isinstance(found := config.get(name), Mapping)), {})
    text = {**config, **nested}
    model_type = str(text.get("model_type", ""))
    text = {**_FILLED_IN.get(model_type, {}), **text}
    check_kinds(text)
    for new, old in {"hidden_size": ("n_embd", "d_model"), "vocab_size": ()}.items():
        text[new] = _whole(text, new, *old)
    return text


def _whole(text: Config, *names: str) -> int:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise TuningError(
        f"config.json has no {names[0]} (a whole number above 0).",
        "Take the config.json of the model's Hugging Face folder, as it is.",
    )


def _cache(text: Config) -> Cache:
    if text.get("kv_lora_rank"):
        return Cache("mla", 1, _whole(text, "kv_lora_rank") + int(text.get("qk_rope_head_dim") or 0), 0)
    heads = _whole(text, "num_attention_heads", "n_head", "n_heads")
    size = text.get("head_dim") or text["hidden_size"] // heads
    if text.get("multi_query") is True:  # the flag of old MQA models, such as Falcon 7B and StarCoder
        kv_heads = int(text.get("num_kv_heads") or 1) if not text.get("new_decoder_architecture") else heads
    else:
        given = (text.get(name) for name in _KV_HEADS)
        kv_heads = next((int(value) for value in given if value), heads)
    if size < 1:
        raise TuningError(
            f"hidden_size {text['hidden_size']} in config.json does not go with {heads} attention heads.",
            "Take the config.json of the model's Hugging Face folder, as it is.",
        )
    return Cache("full", kv_heads, int(size), int(size))


_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")


def _linear(text: Config, count: int) -> dict[int, Cache]:
    """Layers of gated delta nets (Qwen3-Next, Qwen3.5): ``gated_delta_net_state_shape`` of vLLM's mamba_utils.py."""
    kinds = text.get("layer_types")
    if not isinstance(kinds, list):
        every = int(text.get("full_attention_interval") or 4)
        kinds = ["full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(count)]
    names = ("linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim")
    if not text.get("linear_num_value_heads"):
        if "linear_attention" in kinds and isinstance(text.get("layer_types"), list):
            raise TuningError(
                "This model has linear attention of a kind whose state is not calculated here.",
                "Start it once: vLLM prints the size of its KV cache.",
            )
        return {}
    keys, key, values, value = (_whole(text, name) for name in names)
    mixed = (2 * keys * key + values * value) * (int(text.get("linear_conv_kernel_dim") or 4) - 1)
    state = values * value * key
    wide = str(text.get("mamba_ssm_dtype")) == "float32"
    cache = Cache("state", 1, 0, 0, state=mixed + (0 if wide else state), wide_state=state if wide else 0)
    return {layer: cache for layer, kind in enumerate(kinds[:count]) if kind == "linear_attention"}


def _windows(text: Config, count: int) -> list[int]:
    """For each layer the tokens that it looks back; 0: all. Chunked local layers count as full, as vLLM keeps them."""
    window = text.get("sliding_window") or 0
    if text.get("use_sliding_window") is False or not isinstance(window, int):
        window = 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and len(kinds) >= count:
        unknown = set(kinds) - {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"}
        if unknown:
            raise TuningError(
                f"This model has layers of the kind {min(map(str, unknown))}, whose cache is not calculated here.",
                "Start it once: vLLM prints the size of its KV cache.",
            )
        return [window if kind == "sliding_attention" else 0 for kind in kinds[:count]]
    model_type = str(text.get("model_type", ""))
    pattern = text.get("sliding_window_pattern") or _PATTERN.get(model_type)
    if model_type in _PATTERN and isinstance(pattern, int):
        return [window if (layer + 1) % pattern else 0 for layer in range(count)]
    if text.get("use_sliding_window") is True:  # Qwen 2 and 3: the lower layers see all
        return [window if layer >= text.get("max_window_layers", 0) else 0 for layer in range(count)]
    return [window] * count


def _dtype(config: Config, text: Config) -> str:
    value = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return str(value or "float32").removeprefix("torch.")


def _kv_dtype(quantization: Config) -> str:
    """The cache's type as quantised files ask for it (vLLM: ``get_kv_cache_quant_algo_string``)."""
    scheme = quantization.get("kv_cache_scheme")
    nested = quantization.get("quantization")
    algorithm = quantization.get("kv_cache_quant_algo") or (
        nested.get("kv_cache_quant_algo") if isinstance(nested, Mapping) else None
    )
    if str(algorithm).upper() == "FP8":
        return "fp8"
    if isinstance(scheme, Mapping) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:
        return "fp8"
    return "auto"


def _max_length(text: Config) -> int:
    """``_get_and_verify_max_len`` of vllm/config/model.py, without the tokenizer's own bound."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
             "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
    lengths = [value for name in names if isinstance(value := text.get(name), int) and value > 0]
    length = min(lengths, default=2048)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, Mapping) else "default"
    if kind == "longrope":
        return int(
            text.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or length
        )
    scaled = kind in ("linear", "dynamic") and "gemma3" not in str(text.get("model_type"))
    factor = rope.get("factor")
    return int(length * factor) if scaled and isinstance(factor, int | float) and factor > 0 else length
