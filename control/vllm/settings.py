"""Settings of an engine as flags of the ``vllm serve`` of one release. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control.vllm.flags import Flags, Version, since, until, written

#: Field of ``engine`` → the flags that say it, the present one first.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "max_model_len": ("--max-model-len",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "long_prefill_token_threshold": ("--long-prefill-token-threshold",),
    "gpu_memory_utilization": ("--gpu-memory-utilization",),
    "kv_cache_memory": ("--kv-cache-memory-bytes",),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "tensor_parallel_size": ("--tensor-parallel-size",),
    "pipeline_parallel_size": ("--pipeline-parallel-size",),
    "dtype": ("--dtype",),
    "quantization": ("--quantization",),
    "chunked_prefill": ("--enable-chunked-prefill",),
    "prefix_caching": ("--enable-prefix-caching",),
}

#: Flags that only Signalbox sets, and what to write instead.
OWNED: Mapping[str, str] = {
    **{flag: f"Write '{field}:' under engine." for field, flags in SETTINGS.items() for flag in flags},
    "--served-model-name": "Engines get the model's name and its 'aliases:'.",
    "--model": "Write 'source:' in the model.",
    "--host": "It listens on the 'address:' of its host.",
    "--port": "Write 'port:' in the backend.",
    "--uds": "It listens on the 'address:' of its host, at the 'port:' of the backend.",
    "--api-key": "Write 'key_file:' or 'key_env:' in the backend: what stands in a command line is seen by everybody.",
    "--hf-token": "Give HF_TOKEN by 'secrets:' (in a container), or set it for `signalbox run`: all can see arguments.",
    "--shutdown-timeout": "Write 'stop_timeout:' under engine.",
    "--max-num-queued-reqs": "Signalbox derives it from 'max_num_seqs:'.",
    "--config": "Write the settings here.",
    "--root-path": "The edge calls engines without a path before /v1.",
    "--headless": "Without a server there is nothing that the edge could ask.",
    "--grpc": "The edge speaks HTTP.",
    "--ssl-keyfile": "The edge speaks plain HTTP with engines that are started here.",
    "--ssl-certfile": "The edge speaks plain HTTP with engines that are started here.",
    "--ssl-ca-certs": "The edge speaks plain HTTP with engines that are started here.",
}

#: Until then V1 cuts prompts whatever it is told (``_set_default_args`` of vllm/engine/arg_utils.py, 0.11.0).
_WHOLE_PROMPTS_SINCE: Version = (0, 11, 1)


@dataclass(frozen=True)
class SettingError(ValueError):
    """A setting that this release of vLLM cannot have. ``field``: which; ``hint``: what to do."""

    field: str
    message: str
    hint: str


def words(field: str, value: object, flags: Flags, environment: Mapping[str, str]) -> list[str]:
    """The words of the command line that say ``field: value``. Raises SettingError.

    ``environment``: what the engine is started with; it may choose the old engine inside vLLM.
    """
    names = SETTINGS[field]
    flag = next((found for name in names if (found := flags.find(name))), None)
    if flag is None:
        raise SettingError(field, f"vLLM {written(flags.version)} has no such setting.", _where(names[0]))
    if field == "chunked_prefill" and value is False:
        _whole_prompts(flags, environment)
    if isinstance(value, bool) and flag.choices == ("false", "true"):
        return [flag.name, "true" if value else "false"]
    if isinstance(value, bool):
        off = [f"--no-{flag.name[2:]}"] if flag.form == "pair" else []  # a plain switch is off when it is absent
        return [flag.name] if value else off
    text = f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, int) else str(value)
    if flag.choices is not None and text not in flag.choices:
        known = ", ".join(choice for choice in flag.choices if choice != "None")
        raise SettingError(field, f"vLLM {written(flags.version)} does not know {text!r}.", f"It knows: {known}.")
    return [flag.name, text]


def _whole_prompts(flags: Flags, environment: Mapping[str, str]) -> None:
    old_engine = flags.version < (0, 11, 0) and environment.get("VLLM_USE_V1") == "0"
    if flags.version < _WHOLE_PROMPTS_SINCE and not old_engine:
        message = f"vLLM {written(flags.version)} always cuts long prompts, whatever it is told."
        hint = f"Remove the key, or take vLLM {written(_WHOLE_PROMPTS_SINCE)} or later."
        raise SettingError("chunked_prefill", message, hint)


def _where(flag: str) -> str:
    """Which releases have the flag."""
    last, first = until(flag), since(flag)
    if last is not None:
        return f"It was there until vLLM {written(last)}. Remove the key."
    return f"It is there since vLLM {written(first)}." if first else "Remove the key."
