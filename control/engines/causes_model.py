"""Failures of the model itself: not there, not whole, not allowed, not known. Pure."""

from __future__ import annotations

import re
from re import Match

from control.engines.diagnosis import Cause, Situation, cut


def _architecture(match: Match[str], situation: Situation) -> tuple[str, str]:
    version = situation.facts.version or situation.spec.engine.version
    which = f"vLLM {version}" if version else "This vLLM"
    return (
        f"{which} does not know the model's architecture {match['name'].strip('[]').replace(chr(39), '')}.",
        "Take a version of vLLM that supports it, or correct the model's source.",
    )


def _source(match: Match[str], situation: Situation) -> tuple[str, str]:
    name = match.groupdict().get("name") or _folder(situation)
    return (
        f"The engine finds no model at {name}: it sees no folder there that has a config.json.",
        f"Correct models.{situation.spec.model}.source; for a container, mount the folder that holds it.",
    )


def _incomplete(match: Match[str], situation: Situation) -> tuple[str, str]:
    return (
        f"The model folder {_folder(situation)} is incomplete or damaged: {cut(match[0], 160)}.",
        "Copy it there again, with all its files (config.json, tokenizer, all weights; no git-lfs pointers).",
    )


def _folder(situation: Situation) -> str:
    return str(situation.spec.model_folder or situation.facts.root or situation.spec.model)


def _gated(match: Match[str], situation: Situation) -> tuple[str, str]:
    named = re.search(r"huggingface\.co/(?:api/models/)?([\w.-]+/[\w-]+(?:\.[\w-]+)*)", " ".join(situation.texts))
    name = named[1] if named else "this model"
    return (
        f"Hugging Face gives {name} only to accounts that were let in, and the engine shows no token of such a one.",
        "Ask for access on the model's page and give the engine its token by the variable HF_TOKEN, "
        "or download the model and name its folder in source.",
    )


def _remote_code(match: Match[str], situation: Situation) -> tuple[str, str]:
    return (
        "The model brings its own Python code, which vLLM runs only when it is told to.",
        f"If you trust its origin, add --trust-remote-code to {situation.key('extra_args')}.",
    )


def _not_quantized(match: Match[str], situation: Situation) -> tuple[str, str]:
    return (
        f"The model's weights are not quantized by {match['method']}, as the engine was told.",
        "Take quantization out (vLLM finds the model's own by itself), or name a model that is quantized so.",
    )


CAUSES: tuple[Cause, ...] = (
    Cause(
        "gated",
        re.compile(r"access a gated repo|Cannot access gated repo|GatedRepoError|is a gated repository"),
        _gated,
    ),
    Cause("remote_code", re.compile(r"trust_remote_code=True|--trust-remote-code"), _remote_code),
    Cause(
        "architecture",
        re.compile(r"Model architectures? (?P<name>\[.*?\]|\S+) (?:are not supported|was supported|is not supported)"),
        _architecture,
    ),
    Cause(
        "architecture",
        re.compile(r"has model type `(?P<name>[^`]+)` but Transformers does not recognize"),
        _architecture,
    ),
    Cause("source", re.compile(r"Invalid repository ID or local directory specified: '(?P<name>[^']*)'"), _source),
    Cause(
        "source",
        re.compile(
            r"Repo id must be in the form|is not a local folder and is not a valid model identifier"
            r"|outgoing traffic has been disabled|OfflineModeIsEnabled|LocalEntryNotFoundError"
            r"|couldn't connect to 'http"
        ),
        _source,
    ),
    Cause("settings", re.compile(r"Cannot find the config file for (?P<method>\w+)"), _not_quantized),
    Cause(
        "incomplete",
        re.compile(
            r"Cannot find any model weights with `[^`]*`|SafetensorError: .*|Can't load tokenizer for '[^']*'"
            r"|It looks like the config file at '[^']*' is not a valid JSON file"
            r"|Following weights were not initialized from checkpoint.*|No such file or directory: .*\.safetensors"
            r"|Couldn't instantiate the backend tokenizer|Weight files referenced in index but missing: .*"
            r"|^MemoryError$"  # the length at the beginning of a weights file that is none, such as a git-lfs pointer
        ),
        _incomplete,
    ),
)
