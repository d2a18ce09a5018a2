"""A model folder: is all of it there? A download that broke off leaves one that looks whole."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from control.doctor.findings import Finding, ok, problem
from control.engines.model import require_folder
from control.engines.prepare import local_engines
from control.errors import EngineError
from control.fleet.load import LoadedFleet

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
#: What Git leaves in place of a large file that was not fetched.
_POINTER = b"version https://git-lfs"


def models(loaded: LoadedFleet) -> Iterator[Finding]:
    """The folders of models that engines of this machine serve."""
    sources = {engine.spec.model: engine.source for engine in local_engines(loaded)}
    for model, source in sources.items():
        if isinstance(source, Path):
            yield look(model, source)


def look(model: str, folder: Path) -> Finding:
    """Is the model's folder complete?"""
    command = f"ls -lL {shlex.quote(str(folder))}"
    try:
        require_folder(model, folder)
    except EngineError as error:
        return problem(f"model {model}", error.message, command)
    found = lacking(folder)
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        return problem(f"model {model}", f"{folder} is not complete: {shown}. Download it again", command)
    return ok(f"model {model}", f"{folder} is complete")


def lacking(folder: Path) -> list[str]:
    """What the folder lacks, in words: shards of an index, weights, a tokenizer, the files that pointers stand for."""
    found = []
    for index in sorted(folder.glob("*.index.json")):
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            found.append(f"{index.name} cannot be read")
            continue
        found += [f"{shard} is missing" for shard in shards if not (folder / str(shard)).is_file()]
    weights = [path for pattern in WEIGHTS for path in sorted(folder.glob(pattern))]
    if not weights and not found:
        found.append("it has no weights (*.safetensors)")
    found += [f"{path.name} is empty" for path in weights if path.stat().st_size == 0]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        found.append("it has no tokenizer")
    small = [path for path in folder.iterdir() if path.is_file() and path.stat().st_size < 1024]
    found += [f"{path.name} is only Git's pointer to it" for path in sorted(small) if _is_pointer(path)]
    unfinished = [path.name for path in folder.rglob("*.incomplete")]
    return found + [f"{name} was not downloaded to its end" for name in sorted(unfinished)]


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER
