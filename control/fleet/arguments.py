"""Checks of what an engine's vLLM is told: settings that its release lacks, or with which it would not start."""

from __future__ import annotations

from collections.abc import Iterator

from control.fleet.messages import Finding
from control.fleet.schema import Engine, Fleet, Model
from control.fleet.source import KeyPath
from control.vllm.defaults import Device
from control.vllm.extra import complaints
from control.vllm.flags import (
    Flags,
    UnknownRelease,
    Version,
    flags_of,
    image_version,
    known_releases,
    parse_version,
    plain,
    written,
)
from control.vllm.profiles import with_profile
from control.vllm.refusals import refusals, told
from control.vllm.settings import SETTINGS, SettingError, words


def vllm_settings(engine: Engine) -> dict[str, object]:
    """Every setting that vLLM is told (field → value): those of the engine, and those of its profile."""
    given = {field: value for field in SETTINGS if (value := getattr(engine, field)) is not None}
    filled = with_profile(engine.profile, given)
    return {field: filled[field] for field in SETTINGS if field in filled}


def sequences_of(engine: Engine) -> int | None:
    """How many requests the engine runs at the same time, by itself or by its profile; None when vLLM chooses."""
    found = engine.max_num_seqs if engine.command is not None else vllm_settings(engine).get("max_num_seqs")
    return found if isinstance(found, int) else None


def check_arguments(fleet: Fleet) -> Iterator[Finding]:
    """Everything wrong with the vLLM settings of all models."""
    for name, model in fleet.models.items():
        if model.engine is not None:
            path: KeyPath = ("models", name, "engine")
            yield from _gpus(name, model, model.engine)
            if model.engine.command is None:
                yield from _refused(path, model.engine)
                yield from _release(path, model.engine)
            else:
                yield from _unused(path, model.engine)


def _gpus(name: str, model: Model, engine: Engine) -> Iterator[Finding]:
    """As many GPUs as the model is spread over. Replicas inside vLLM (data parallel) may take more of them."""
    if engine.image is None or engine.command is not None:
        return
    wanted = (engine.tensor_parallel_size or 1) * (engine.pipeline_parallel_size or 1)
    replicas = any(word == "-dp" or plain(word).startswith("--data-parallel") for word in engine.extra_args)
    fields = ("tensor_parallel_size", "pipeline_parallel_size", "extra_args")
    about: tuple[KeyPath, ...] = tuple(("models", name, "engine", field) for field in fields)
    for index, backend in enumerate(model.backends):
        path: KeyPath = ("models", name, "backends", index, "gpus")
        given = len(backend.gpus or ())
        if given and wanted > given:
            message = f"the model is spread over {wanted} GPUs, but this engine gets {given}; vLLM would not start."
            hint = "Name more, or lower tensor_parallel_size or pipeline_parallel_size."
            yield Finding(path, message, hint, about)
        elif given > wanted and not replicas:
            message = f"this engine gets {given} GPUs, and uses {wanted} of them."
            yield Finding(path, message, f"Set 'tensor_parallel_size: {given}', or name fewer.", about, warning=True)


def _unused(path: KeyPath, engine: Engine) -> Iterator[Finding]:
    """Settings beside ``command``. The edge itself goes by max_num_seqs."""
    for name in ("profile", *SETTINGS, "extra_args"):
        if name in engine.model_fields_set and name != "max_num_seqs":
            message = "has no effect beside 'command:', which is run as it is written."
            yield Finding((*path, name), message, "Write it into the command, or remove it.", warning=True)


def release_of(engine: Engine) -> Version | None:
    """The release of vLLM that the engine names, by ``version`` or by its image's tag; None when neither says it."""
    if engine.command is not None:
        return None
    return parse_version(engine.version) if engine.version else image_version(engine.image or "")


def _release(path: KeyPath, engine: Engine) -> Iterator[Finding]:
    at = (*path, "version" if engine.version is not None else "image")
    release = release_of(engine)
    if release is None:
        message = f"{engine.image} does not say which vLLM is in it; `signalbox up` asks the image itself."
        hint = (
            f"Until then its settings are compared with {written(_newest())}. 'version:' or a tag that says it helps."
        )
        yield Finding(at, message, hint, warning=True)
    try:
        flags = flags_of(release)
    except UnknownRelease as error:
        yield Finding(at, f"{error}.", "Take a later one, or start it by 'command:', which is not looked at.")
        return
    if flags.newer:
        message = f"vLLM {written(flags.version)} is newer than {written(_newest())}, the last that is known here."
        hint = "Its arguments are those of that one; vLLM itself will say if it does not take them."
        yield Finding(at, message, hint, warning=True)
    yield from _settings(path, engine, flags)
    for complaint in complaints(engine.extra_args, flags):
        place = (*path, "extra_args", complaint.index)
        yield Finding(place, complaint.message, complaint.hint, about=(at,), warning=complaint.warning)


def _newest() -> Version:
    return known_releases()[-1]


def _settings(path: KeyPath, engine: Engine, flags: Flags) -> Iterator[Finding]:
    for field, value in vllm_settings(engine).items():
        try:
            words(field, value, flags, engine.environment)
        except SettingError as error:
            written_one = getattr(engine, field) is not None
            place = (*path, field if written_one else "profile")
            message = error.message if written_one else f"{engine.profile!r} sets {field}: {error.message}"
            yield Finding(place, message, error.hint, about=((*path, "version"), (*path, "image")))


def _refused(path: KeyPath, engine: Engine) -> Iterator[Finding]:
    """Settings with which vLLM refuses to start, as far as they show without the model's files."""
    release = release_of(engine) or _newest()
    cpu = Device(0, cpu=True) if engine.runtime == "vllm-cpu" else None
    for found in refusals(told(vllm_settings(engine), release, device=cpu, environment=engine.environment)):
        place = (*path, found.field if getattr(engine, found.field) is not None else "profile")
        about = tuple((*path, field) for field in found.about)
        yield Finding(place, f"{found.text}; vLLM would not start.", found.cure, about)
