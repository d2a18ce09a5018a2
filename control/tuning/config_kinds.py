"""Whether config.json has numbers, lists and objects where these are calculated with. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from control.errors import TuningError

#: What is calculated with, as far as it is there.
_NUMBERS = (
    "hidden_size", "n_embd", "d_model", "vocab_size", "num_attention_heads", "n_head", "n_heads",
    "head_dim", "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups",
    "intermediate_size", "n_inner", "ffn_hidden_size", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim",
    "qk_nope_head_dim", "v_head_dim", "sliding_window_pattern", "max_window_layers", "num_local_experts",
    "n_routed_experts", "num_experts", "moe_num_experts", "num_experts_per_tok", "experts_per_token",
    "moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace",
    "decoder_sparse_step", "interleave_moe_layer_step", "full_attention_interval", "linear_conv_kernel_dim",
    "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim",
)  # fmt: skip
_MOST_LAYERS, _MOST = 10_000, 10**9
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        _NUMBERS, ("a number that a model could have", lambda value: type(value) is int and 0 <= value < _MOST)
    ),
    "num_hidden_layers": ("a number of layers", lambda value: type(value) is int and 0 < value <= _MOST_LAYERS),
    "layer_types": (
        "a list of names",
        lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    ),
    "architectures": ("a list of names", lambda value: isinstance(value, list)),
    "mlp_only_layers": ("a list", lambda value: isinstance(value, list)),
    "torch_dtype": ("a name", lambda value: isinstance(value, str)),
    "dtype": ("a name", lambda value: isinstance(value, str)),
    "model_type": ("a name", lambda value: isinstance(value, str)),
    **dict.fromkeys(
        ("quantization_config", "rope_scaling", "rope_parameters", "text_config"),
        ("an object", lambda value: isinstance(value, Mapping)),
    ),
}


def check_kinds(text: Mapping[str, Any]) -> None:
    """Raises TuningError where config.json has something else than what is calculated with."""
    for name, value in text.items():
        if value is None or name not in _KINDS:
            continue
        what, right = _KINDS[name]
        if not right(value):
            raise TuningError(
                f"{name} in config.json is {str(value)[:60]!r}, not {what}.",
                "Take the config.json of the model's Hugging Face folder, as it is.",
            )
