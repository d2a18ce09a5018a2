"""What an engine runs with, from its start-up log and its /metrics; and where that is not what was asked. Pure.

A fact that nothing told is None or empty: unknown. vLLM's line "Chunked prefill is enabled with
max_num_batched_tokens=N" is such a source: where it is, it is a proof; a run without it may be chunking all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from control.engines.args import EngineSpec
from control.fleet.arguments import vllm_settings

_KV_CACHE = re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for (?P<length>[\d,]+) tokens per request: (?P<requests>[\d.]+)x")
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(?P<tokens>\d+)")
_OFFLOADED = re.compile(r"Total CPU offloaded parameters: (?P<size>\d+(?:\.\d+)?)")
#: The first as 0.11 to 0.32 print it (platforms/cuda.py), the second when it was chosen by hand, the third until 0.11.
_BACKENDS = (
    re.compile(r"Using (?P<name>\w+) attention backend out of potential backends"),
    re.compile(r"Using AttentionBackendEnum\.(?P<name>\w+) backend"),
    re.compile(r"Using (?P<name>[\w ]+?) backend on V1 engine"),
)
_ENGINE = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v(?P<version>[^)]+)\) with config: ")
#: The names that the engine's own account of its configuration has had for a fact.
_CONFIGURED: Mapping[str, tuple[str, ...]] = {
    "max_model_len": ("max_seq_len",),
    "tensor_parallel_size": ("tensor_parallel_size",),
    "pipeline_parallel_size": ("pipeline_parallel_size",),
    "dtype": ("dtype",),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "quantization": ("quantization",),
    "prefix_caching": ("enable_prefix_caching",),
    "chunked_prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
}
_METRIC = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Facts:
    """What runs. Sizes in bytes; ``max_concurrency``: requests of ``max_model_len`` tokens that fit at once."""

    version: str = ""
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    chunked_prefill: bool | None = None
    #: Tokens of one scheduler step: the budget that prompts are cut by.
    max_num_batched_tokens: int | None = None
    prefix_caching: bool | None = None
    attention_backend: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    quantization: str = ""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float | None = None
    #: Weights that lie in the machine's memory, in GiB.
    cpu_offload_gib: float | None = None
    #: The folder or repository whose weights it serves.
    root: str = ""

    def joined(self, other: Facts) -> Facts:
        """These, and where they are unknown what ``other`` knows."""
        mine = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return replace(other, **{name: value for name, value in mine.items() if value not in (None, "")})

    @classmethod
    def kept(cls, values: Mapping[str, Any]) -> Facts:
        """Facts from JSON; what has another name now is left out."""
        known = {entry.name for entry in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def from_line(facts: Facts, text: str) -> Facts:
    """``facts`` and what one line of the log (without its prefix) adds."""
    if match := _ENGINE.search(text):
        return _configured(text[match.end() :]).joined(replace(facts, version=match["version"]))
    if "KV cache size" in text and (match := _KV_CACHE.search(text)):
        facts = replace(facts, kv_cache_tokens=_number(match["tokens"]))
    if "Maximum concurrency" in text and (match := _CONCURRENCY.search(text)):
        length, requests = _number(match["length"]), float(match["requests"])
        return replace(facts, max_model_len=length, max_concurrency=requests)
    if "CPU offloaded" in text and (match := _OFFLOADED.search(text)):
        return replace(facts, cpu_offload_gib=float(match["size"]))
    if match := _CHUNKED.search(text):
        return replace(facts, chunked_prefill=True, max_num_batched_tokens=int(match["tokens"]))
    if " backend" in text and not facts.attention_backend:
        found = next(filter(None, (pattern.search(text) for pattern in _BACKENDS)), None)
        return replace(facts, attention_backend=found["name"]) if found else facts
    return facts


def from_metrics(text: str) -> Facts:
    """What ``vllm:cache_config_info`` in /metrics says (of the first of several data-parallel engines)."""
    match = _METRIC.search(text)
    labels = dict(_LABEL.findall(match["labels"])) if match else {}
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size  # versions before the label; of a model with full attention
    return Facts(
        kv_cache_tokens=tokens,
        max_concurrency=_decimal(labels.get("kv_cache_max_concurrency")),
        prefix_caching=_truth(labels.get("enable_prefix_caching", "")),
        kv_cache_memory=_whole(labels.get("kv_cache_memory_bytes")),
        gpu_memory_utilization=_decimal(labels.get("gpu_memory_utilization")),
        kv_cache_dtype=labels.get("cache_dtype", ""),
    )


def from_models(listed: Mapping[str, Any]) -> Facts:
    """What the entry of the model in /v1/models says."""
    length, root = listed.get("max_model_len"), listed.get("root")
    return Facts(max_model_len=length if isinstance(length, int) else None, root=root if isinstance(root, str) else "")


def alarms(spec: EngineSpec, facts: Facts) -> tuple[str, ...]:
    """Where what runs is not what fleet.yaml asks for, in words; what is unknown is no alarm."""
    found = []
    wanted = {"version": spec.engine.version, **vllm_settings(spec.engine)}
    for entry in fields(facts):
        asked, runs = _plain(wanted.get(entry.name)), _plain(getattr(facts, entry.name))
        if asked in (None, "", "auto") or runs in (None, ""):
            continue
        if entry.name == "version":
            runs = str(runs).partition("+")[0].removeprefix("v")
        if asked != runs:
            found.append(f"{entry.name}: fleet.yaml asks for {_word(asked)}, but the engine runs with {_word(runs)}")
    folder = spec.model_folder
    if spec.engine.command is None and folder is not None and facts.root and facts.root != str(folder):
        found.append(f"source: fleet.yaml asks for {folder}, but the engine serves {facts.root}")
    return tuple(found)


def summary(facts: Facts) -> str:
    """The facts that people look for first, in one line; empty when none is known."""
    parts = []
    if facts.kv_cache_tokens is not None:
        room = ""
        if facts.max_concurrency is not None and facts.max_model_len is not None:
            room = f": {facts.max_concurrency:g} requests of {facts.max_model_len:,} tokens at once"
        parts.append(f"KV cache of {facts.kv_cache_tokens:,} tokens{room}")
    if facts.chunked_prefill is not None:
        budget = f" of {facts.max_num_batched_tokens:,} tokens" if facts.max_num_batched_tokens else ""
        parts.append(f"chunked prefill{budget}" if facts.chunked_prefill else "no chunked prefill")
    if facts.prefix_caching is not None:
        parts.append("prefix caching" if facts.prefix_caching else "no prefix caching")
    if facts.attention_backend:
        parts.append(f"attention by {facts.attention_backend}")
    if facts.version:
        parts.append(f"vLLM {facts.version}")
    return "; ".join(parts)


def _configured(text: str) -> Facts:
    """Facts from the engine's own account of its configuration (``name=value, name=value, ...``)."""
    found: dict[str, Any] = {}
    for name, keys in _CONFIGURED.items():
        value = next(filter(None, (re.search(rf"(?:^|[ ,]){key}=([^,\s]+)", text) for key in keys)), None)
        if value is None or value[1] == "None":
            continue
        if name in ("prefix_caching", "chunked_prefill"):
            found[name] = _truth(value[1])
        elif name in ("dtype", "kv_cache_dtype", "quantization"):
            found[name] = value[1].strip("'").removeprefix("torch.")
        else:
            found[name] = _whole(value[1])
    return Facts(**found)


_DTYPES = {"half": "float16", "float": "float32"}


def _plain(value: object) -> object:
    """The value as both sides can be compared: without units, with the long name of a type."""
    if isinstance(value, str):
        return _DTYPES.get(value, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _word(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _decimal(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d+(?:\.\d+)?", text) else None


def _truth(text: str) -> bool | None:
    return {"True": True, "False": False}.get(text)
