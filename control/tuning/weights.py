"""How large a model's weights are: exactly, by its safetensors files; else about, by its config.json. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from control.errors import TuningError
from control.tuning.architecture import Architecture, Config, stages

#: Bytes of one number in a safetensors file (its README, "Format").
STORED_BYTES: Mapping[str, float] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "F4": 0.5,
}  # fmt: skip
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
#: Models whose feed-forward part has two matrices, not three.
_TWO_MATRICES = {"gpt2", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "starcoder2", "mpt", "gpt_bigcode"}


@dataclass(frozen=True)
class Weights:
    """Bytes on all GPUs together: the embedding, each layer, the rest (output head, encoders). ``exact``: by files."""

    embedding: int
    layers: tuple[int, ...]
    head: int
    exact: bool

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.embedding + sum(self.layers) + self.head

    def per_gpu(self, tensor_parallel: int, pipeline_parallel: int) -> int:
        """Bytes on the GPU that has most; an estimate above one GPU, as small parts lie on each of them."""
        parts = [sum(self.layers[layer] for layer in stage) for stage in stages(len(self.layers), pipeline_parallel)]
        parts[0] += self.embedding
        parts[-1] += self.head
        return max(parts) // tensor_parallel


def of_tensors(model: Architecture, tensors: Iterable[tuple[str, str, int]], weight_bytes: int) -> Weights:
    """The weights that vLLM loads of (name, type, bytes in the file).

    Numbers of a model that is not quantised are turned into ``weight_bytes`` each. What vLLM does not load is left out:
    those for multi-token prediction, and an output head that is the embedding again.
    """
    embedding = head = 0
    layers = [0] * len(model.layers)
    for name, kind, size in tensors:
        if name.startswith("mtp."):
            continue
        if not model.quantization and kind in ("F32", "F16", "BF16", "F64"):
            size = int(size / STORED_BYTES[kind] * weight_bytes)
        number = _LAYER.search(name)
        encoder = "vision" in name or "visual" in name or "audio" in name
        if number is not None and not encoder:
            if int(number[1]) < len(layers):
                layers[int(number[1])] += size
        elif "embed_tokens" in name or "wte." in name or "word_embeddings" in name:
            embedding += size
        elif not (model.tied and name.endswith("lm_head.weight")):
            head += size
    return Weights(embedding, tuple(layers), head, exact=True)


def of_config(model: Architecture, weight_bytes: int, quantization: str | None = None) -> Weights:
    """The weights that config.json lets expect; without encoders for images and sound.

    ``quantization``: what the engine was told, for files that are not quantised. Raises TuningError.
    """
    text = model.text
    quantized, experts_only = _bytes_per_weight(model.quantization, quantization, weight_bytes)
    dense = weight_bytes if experts_only else quantized
    embedding = model.vocab_size * model.hidden_size * weight_bytes
    layers = []
    for layer in range(len(model.layers)):
        attention = _attention(model, text, layer)
        one, experts, small = _feed_forward(text, model.hidden_size, layer)
        small += 4 * model.hidden_size  # norms
        layers.append(int((attention + one) * dense + experts * quantized + small * weight_bytes))
    return Weights(embedding, tuple(layers), 0 if model.tied else embedding, exact=False)


def of_total(model: Architecture, size: int) -> Weights:
    """Weights of ``size`` bytes, all of them in the layers: what is known of an index without its files."""
    each, more = divmod(size, len(model.layers))
    return Weights(0, tuple(each + (layer < more) for layer in range(len(model.layers))), 0, exact=True)


def _attention(model: Architecture, text: Config, layer: int) -> int:
    hidden, cache = model.hidden_size, model.layers[layer]
    heads = int(text.get("num_attention_heads") or text.get("n_head") or 1)
    if cache.kind == "state":
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        count = int(text["linear_num_value_heads"])
        values = count * int(text["linear_value_head_dim"])
        return hidden * (2 * keys + 3 * values + 2 * count)  # queries, keys, values, a gate, the way out
    if cache.kind != "mla":
        size, gate = cache.key_size, heads if "linear_num_value_heads" in text else 0
        return hidden * size * (2 * heads + 2 * cache.heads + gate)
    rope, plain, value = (int(text.get(key) or 0) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    latent, query = int(text["kv_lora_rank"]), int(text.get("q_lora_rank") or 0)
    queries = query * (hidden + heads * (plain + rope)) if query else hidden * heads * (plain + rope)
    return queries + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden


def _feed_forward(text: Config, hidden: int, layer: int) -> tuple[int, int, int]:
    """Weights of one layer: every token's, the experts' (of which a token uses some), and small ones in full width."""
    matrices = 2 if text.get("model_type") in _TWO_MATRICES else 3
    wide = int(text.get("intermediate_size") or text.get("n_inner") or text.get("ffn_hidden_size") or 4 * hidden)
    names = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    experts = next((int(text[name]) for name in names if text.get(name)), 0)
    dense = layer < int(text.get("first_k_dense_replace") or 0) or layer in (text.get("mlp_only_layers") or [])
    step = int(text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or 1)
    if not experts or dense or (layer + 1) % step:
        return matrices * hidden * wide, 0, 0
    narrow = int(text.get("moe_intermediate_size") or wide)
    shared = int(text.get("n_shared_experts") or 0) * narrow + int(text.get("shared_expert_intermediate_size") or 0)
    return 3 * hidden * shared, 3 * hidden * narrow * experts, hidden * experts


def _bytes_per_weight(quantization: Config, asked: str | None, plain: int) -> tuple[float, bool]:
    """Bytes of a number in quantised matrices with their scales, and whether only experts are quantised."""
    method = str(quantization.get("quant_method") or asked or "").lower().replace("_", "-")
    if not method:
        return plain, False
    if method in ("fp8", "modelopt", "fbgemm-fp8", "ptpc-fp8", "w8a8-fp8"):
        return 1 + 4 / 128**2, False
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return 1 / 2 + 1 / 32, True
    if method in ("modelopt-fp4", "nvfp4"):
        return 1 / 2 + 1 / 16, False
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin", "auto-round"):
        return _packed(_number(quantization, "bits", 4), _number(quantization, "group_size", 128)), False
    if method == "bitsandbytes":
        return (1 if quantization.get("load_in_8bit") else 1 / 2 + 4 / 64), False
    if method == "compressed-tensors":
        bits, group = _compressed(quantization)
        return _packed(bits, group), False
    raise TuningError(
        f"How large weights quantised with {method} are is not known without their files.",
        "Give the folder with the safetensors files, or their size with --weights.",
    )


def _packed(bits: int, group: int) -> float:
    scales = (2 + bits / 8) / group if group > 0 else 0.0  # one scale and one zero point a group
    return bits / 8 + scales


def _compressed(quantization: Config) -> tuple[int, int]:
    groups = quantization.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") or {} if isinstance(first, Mapping) else {}
    if not isinstance(weights, Mapping):
        return 8, 0
    return _number(weights, "num_bits", 8), _number(weights, "group_size", 0)


def _number(config: Config, name: str, otherwise: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value != 0 else otherwise
