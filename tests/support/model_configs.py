"""config.json of well-known models, as their makers publish them (only what decides about memory)."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

LLAMA3_8B: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "rope_theta": 500_000.0,
}  # fmt: skip
DEEPSEEK_7B: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 102_400,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 10_000.0,
}  # fmt: skip
QWEN25_7B: Config = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
    "max_position_embeddings": 32_768, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "use_sliding_window": False, "sliding_window": 131_072, "max_window_layers": 28, "rms_norm_eps": 1e-06,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
QWEN25_7B_AWQ: Config = {
    **QWEN25_7B, "torch_dtype": "float16",
    "quantization_config": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True,
    },
}  # fmt: skip
QWEN3_8B: Config = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151_936, "max_position_embeddings": 40_960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "use_sliding_window": False, "sliding_window": None, "max_window_layers": 36,
    "rms_norm_eps": 1e-06, "rope_theta": 1_000_000,
}  # fmt: skip
QWEN3_8B_FP8: Config = {
    **QWEN3_8B,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
}  # fmt: skip
MIXTRAL_8X7B: Config = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000,
    "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 32_768, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-05,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
MISTRAL_7B_V01: Config = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000,
    "max_position_embeddings": 32_768, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10_000.0,
}  # fmt: skip
DEEPSEEK_V2_LITE: Config = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 102_400, "max_position_embeddings": 163_840,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "n_group": 1, "topk_group": 1, "topk_method": "greedy", "norm_topk_prob": False, "scoring_func": "softmax",
    "routed_scaling_factor": 1.0, "rope_theta": 10_000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip
DEEPSEEK_V3: Config = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "vocab_size": 129_280, "max_position_embeddings": 163_840, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-06, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "norm_topk_prob": True, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
    "rope_theta": 10_000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
}  # fmt: skip
#: The 4B and 12B leave to the class's own defaults what the 27B says.
GEMMA3_4B: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "image_token_index": 262_144, "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                      "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
                      "patch_size": 14, "vision_use_head": False},
}  # fmt: skip
GEMMA3_27B_TEXT: Config = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": "bfloat16",
    "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168, "vocab_size": 262_208,
    "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}  # fmt: skip
GPT_OSS_20B: Config = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 201_088, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131_072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "attention_bias": True, "hidden_act": "silu", "swiglu_limit": 7.0, "rms_norm_eps": 1e-05, "rope_theta": 150_000,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": False},
    "quantization_config": {"quant_method": "mxfp4",
                            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                       "model.embed_tokens", "lm_head"]},
}  # fmt: skip
FALCON_7B: Config = {
    "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
    "num_attention_heads": 71, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65_024,
    "parallel_attn": True, "alibi": False, "bias": False, "torch_dtype": "bfloat16", "max_position_embeddings": 2048,
}  # fmt: skip
SMOLLM2: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "dtype": "bfloat16", "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
}  # fmt: skip

QWEN3_NEXT_80B: Config = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
    "intermediate_size": 5120, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25, "vocab_size": 151_936, "max_position_embeddings": 262_144,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "rope_theta": 10_000_000, "rope_scaling": None,
}  # fmt: skip

ALL: dict[str, Config] = {
    "SmolLM2-135M": SMOLLM2,
    "Meta-Llama-3-8B": LLAMA3_8B,
    "deepseek-llm-7b": DEEPSEEK_7B,
    "Qwen2.5-7B": QWEN25_7B,
    "Qwen2.5-7B-AWQ": QWEN25_7B_AWQ,
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-8B-FP8": QWEN3_8B_FP8,
    "Mixtral-8x7B": MIXTRAL_8X7B,
    "Mistral-7B-v0.1": MISTRAL_7B_V01,
    "DeepSeek-V2-Lite": DEEPSEEK_V2_LITE,
    "DeepSeek-V3": DEEPSEEK_V3,
    "gemma-3-4b": GEMMA3_4B,
    "gemma-3-27b": GEMMA3_27B_TEXT,
    "gpt-oss-20b": GPT_OSS_20B,
    "falcon-7b": FALCON_7B,
    "Qwen3-Next-80B": QWEN3_NEXT_80B,
}
