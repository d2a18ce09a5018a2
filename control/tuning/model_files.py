"""Reads what the arithmetic needs of a model's folder: config.json, and the headers of its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control.errors import TuningError
from control.tuning.architecture import Architecture, Config
from control.tuning.weights import Weights, of_config, of_tensors, of_total

#: A header beyond this is no header: that of a model with 700 B weights in one file would take 20 MB.
_LARGEST_HEADER = 100_000_000


def read_config(path: Path) -> Config:
    """The config.json at ``path``, which is the file or its folder. Raises TuningError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise TuningError(
            f"There is no {file}.",
            "Name the model's Hugging Face folder, or fetch its config.json alone (a few KB) and give --config FILE.",
        ) from None
    except (OSError, ValueError) as error:
        raise TuningError(f"{file} cannot be read: {error}", "It must be the config.json of a model.") from error
    if not isinstance(found, dict):
        raise TuningError(f"{file} holds no JSON object.", "It must be the config.json of a model.")
    return found


def read_weights(folder: Path, model: Architecture, weight_bytes: int, quantization: str | None) -> Weights:
    """The weights by the safetensors files in ``folder``, by their index alone, or by config.json when there are none.

    ``quantization``: what the engine makes of weights that are not quantised; they are then estimated.
    """
    if quantization and not model.quantization:
        return of_config(model, weight_bytes, quantization)
    files = _files(folder)
    if files and all(file.is_file() for file in files):
        return of_tensors(model, (tensor for file in files for tensor in tensors(file)), weight_bytes)
    size = _index(folder).get("metadata", {}).get("total_size")
    return of_total(model, size) if isinstance(size, int) else of_config(model, weight_bytes)


def quantized_elsewhere(folder: Path) -> bool:
    """Whether a file of its own says how the weights are quantised, as older AWQ, GPTQ and ModelOpt files have it."""
    names = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
    return any((folder / name).is_file() for name in names)


def tensors(file: Path) -> Iterator[tuple[str, str, int]]:
    """Name, type and bytes of each tensor of a safetensors file (the JSON after 8 bytes of length). Or TuningError."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LARGEST_HEADER:
                raise ValueError("it does not begin with a header")
            header = json.loads(stream.read(length))
        entries = [
            (name, str(entry["dtype"]), int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]))
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise TuningError(
            f"{file} is no safetensors file that can be read: {error}",
            "Is its download complete? (Git LFS leaves small text files in place of large ones.) Without it: --config.",
        ) from error
    yield from entries


def _files(folder: Path) -> list[Path]:
    named = _index(folder).get("weight_map")
    if isinstance(named, dict):
        return [folder / name for name in sorted(set(named.values()))]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    return sorted(folder.glob("model-*.safetensors")) or sorted(folder.glob("*.safetensors"))


def _index(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
