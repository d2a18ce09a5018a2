"""Engines whose arguments are compared, release by release: each setting alone, each profile, and much at once."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from control.engines.args import EngineSpec, vllm_arguments
from control.errors import EngineError
from control.fleet.schema import Engine
from control.vllm.flags import Flag, Flags
from control.vllm.profiles import PROFILES

RELEASES = ("0.8.5", "0.10.0", "0.20.0", "0.30.0", "0.32.0")

#: Every setting that becomes a flag, with a value that each release takes that has the flag.
ALONE: dict[str, Any] = {
    "max_model_len": 4096,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "long_prefill_token_threshold": 1024,
    "gpu_memory_utilization": 0.85,
    "kv_cache_memory": "512MiB",
    "kv_cache_dtype": "fp8",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "chunked_prefill": True,
    "prefix_caching": False,
    "stop_timeout": "60s",
    "extra_args": ["--enforce-eager", "--seed", "7"],
}

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    **{f"{field} alone": {field: value} for field, value in ALONE.items()},
    "chunked_prefill off": {"chunked_prefill": False},
    "prefix_caching on": {"prefix_caching": True},
    **{f"profile {profile}": {"profile": profile} for profile in PROFILES},
    **{
        f"profile {profile} on a small engine": {"profile": profile, "max_model_len": 256, "max_num_seqs": 8}
        for profile in PROFILES
    },
    "profile mixed, one setting of one's own": {"profile": "mixed", "max_num_batched_tokens": 1024},
    "profile mixed, more sequences than tokens": {"profile": "mixed", "max_num_seqs": 4000},
    "profile rag, nearly no sequences": {"profile": "rag", "max_num_seqs": 1, "max_model_len": 4096},
    "all": {key: value for key, value in ALONE.items() if key != "kv_cache_memory"} | {"profile": "mixed"},
}


def spec_of(settings: dict[str, Any], release: str, **more: Any) -> EngineSpec:
    """An engine of the model m, with the alias ``alias``, in /models/m."""
    engine = Engine.model_validate({"runtime": "vllm-cpu", "version": release, **settings})
    return EngineSpec("m-1", "m", ("m", "alias"), "127.0.0.1", 8101, engine, Path("/models/m"), Path("/fleet"), **more)


def list_of(settings: dict[str, Any], release: str) -> list[str] | str:
    """The argument list, or what is said instead of it."""
    try:
        return vllm_arguments(spec_of(settings, release))
    except EngineError as error:
        return str(error)


def rebuilt_parser(flags: Flags) -> argparse.ArgumentParser:
    """A parser with the flags of one release, as its own would be: made of flags.json alone."""
    parser = argparse.ArgumentParser(prog="vllm serve", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for flag in {flag.name: flag for flag in flags.by_spelling.values()}.values():
        _add(parser, flag)
    return parser


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    names = (flag.name, *flag.aliases)  # values go by the first long one
    if flag.form == "switch":
        parser.add_argument(*names, action="store_true")
    elif flag.form == "pair":
        parser.add_argument(*names, action=argparse.BooleanOptionalAction)
    else:
        nargs: Any = None if flag.nargs == 1 else flag.nargs
        kind = {"int": int, "float": float, "size": _size, "json": json.loads}.get(flag.type, str)
        choices = [kind(choice) for choice in flag.choices if choice != "None"] if flag.choices else None
        action = "append" if flag.form == "append" else "store"
        parser.add_argument(*names, type=kind, nargs=nargs, choices=choices, action=action)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kK]?)", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * {"": 1, "k": 1000, "K": 1024}[match[2]]
