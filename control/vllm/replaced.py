"""What to write instead of flags that vLLM has given up or will, where their help does not say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Flag → the sentence for people. From the release notes and the source of the releases that changed them.
INSTEAD: Mapping[str, str] = {
    "--device": "Remove it: vLLM finds the device.",
    "--disable-log-requests": "Remove it: nothing is logged without '--enable-log-requests'.",
    "--disable-mm-preprocessor-cache": "Write '--mm-processor-cache-gb', '0'.",
    "--enable-multimodal-encoder-data-parallel": "Write '--mm-encoder-tp-mode', 'data'.",
    "--enable-reasoning": "Remove it: '--reasoning-parser' is enough.",
    "--eplb-log-balancedness": "Write '--eplb-config', '{\"log_balancedness\": true}'.",
    "--eplb-step-interval": "Write '--eplb-config', '{\"step_interval\": N}'.",
    "--eplb-window-size": "Write '--eplb-config', '{\"window_size\": N}'.",
    "--guided-decoding-backend": "Write '--structured-outputs-config', '{\"backend\": \"...\"}'.",
    "--guided-decoding-disable-additional-properties": "Write it in '--structured-outputs-config'.",
    "--guided-decoding-disable-any-whitespace": "Write it in '--structured-outputs-config'.",
    "--guided-decoding-disable-fallback": "Write it in '--structured-outputs-config'.",
    "--num-redundant-experts": "Write '--eplb-config', '{\"num_redundant_experts\": N}'.",
    "--override-pooler-config": "Write '--pooler-config'.",
    "--task": "Write '--runner' (generate, pooling), and '--convert' (embed, classify) if the model needs it.",
    "--use-v2-block-manager": "Remove it: there is no other.",
}
