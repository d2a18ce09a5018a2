"""How an engine is started: arguments, environment and working folder. Pure: nothing is read or started here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from control.errors import EngineError
from control.fleet.arguments import release_of, sequences_of, vllm_settings
from control.fleet.schema import Engine
from control.vllm.extra import complaints
from control.vllm.flags import UnknownRelease, Version, flags_of
from control.vllm.settings import SettingError, words

#: vLLM leaves this much of stop_timeout unused: ending its processes takes it about 5 s after the last request.
TEARDOWN_SECONDS = 7

#: For every vLLM that Signalbox starts: no look-ups on a hub, no statistics sent, and idle connections that stay open
#: longer than the edge keeps them (an engine that closes first can lose a request that is just arriving).
VLLM_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
}

#: On CPU: several engines share the cores instead of each binding itself to the same ones.
VLLM_CPU_ENVIRONMENT: Mapping[str, str] = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True)
class EngineSpec:
    """One engine that Signalbox starts on this machine. ``names``: all model names that it answers to, main first."""

    id: str
    model: str
    names: tuple[str, ...]
    host: str
    port: int
    engine: Engine
    #: Folder with the model's weights; None where the command needs none.
    model_folder: Path | None
    #: fleet.yaml's folder: ``command`` runs there.
    fleet_folder: Path
    #: Where the engine's API key is read.
    key_file: Path | None = None
    key_env: str | None = None
    #: Sequences that the edge keeps in flight there; None: no bound.
    limit: int | None = None


@dataclass(frozen=True)
class Launch:
    """What to execute. ``environment`` comes on top of this process's own."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def hash(self) -> str:
        """Names this very launch: an engine that runs with another one has to be restarted."""
        facts = [list(self.argv), sorted(self.environment.items()), str(self.cwd)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def vllm_arguments(spec: EngineSpec, version: Version | None = None) -> list[str]:
    """Everything after ``vllm serve``, the model's folder first.

    ``version``: the release, where the engine does not name it (None: the newest that is known). Raises EngineError
    without a folder, and for settings and extra_args that the release does not take.
    """
    if spec.model_folder is None:
        raise EngineError(
            f"The model {spec.model} has no source, so there is nothing that vLLM could serve.",
            f"Add source: to the model {spec.model} in fleet.yaml: a folder, or a package with its GGUF file.",
        )
    engine = spec.engine
    try:
        flags = flags_of(version or release_of(engine))
    except UnknownRelease as error:
        raise EngineError(f"{error}.", f"Take a later one for the model {spec.model} in fleet.yaml.") from error
    arguments = [str(spec.model_folder), "--served-model-name", *spec.names]
    arguments += ["--host", spec.host, "--port", str(spec.port)]
    for name, value in vllm_settings(engine).items():
        try:
            arguments += words(name, value, flags, engine.environment)
        except SettingError as error:
            where = f"models.{spec.model}.engine.{error.field}"
            raise EngineError(f"{where}: {error.message}", error.hint) from error
    if flags.find("--shutdown-timeout"):
        arguments += ["--shutdown-timeout", str(max(0, int(engine.stop_timeout) // 1000 - TEARDOWN_SECONDS))]
    most = _fence(spec)
    if most is not None and flags.find("--max-num-queued-reqs"):
        arguments += ["--max-num-queued-reqs", str(most)]
    for wrong in complaints(engine.extra_args, flags):
        if wrong.warning:
            continue
        raise EngineError(f"models.{spec.model}.engine.extra_args[{wrong.index}]: {wrong.message}", wrong.hint)
    return arguments + list(engine.extra_args)


def _fence(spec: EngineSpec) -> int | None:
    """How many sequences the engine takes at most, running and waiting; it answers 503 to more.

    The edge sends two more than run, so this is never reached by it, nor by two edges that do not know of each other,
    nor by one large request. It stops who comes past the edge from filling a line that has no end. None where nobody
    knows how many run at the same time.
    """
    running = sequences_of(spec.engine)
    if running is None:
        return None
    return max(256, 4 * running, 2 * (spec.limit or 0))


def vllm_environment(spec: EngineSpec, key: str = "") -> dict[str, str]:
    """What a vLLM is started with on any machine. ``key``: the API key that it asks for; never an argument."""
    secret = {"VLLM_API_KEY": key} if key else {}
    return {**VLLM_ENVIRONMENT, **secret, **spec.engine.environment}


def vllm_launch(spec: EngineSpec, runtime: Path, key: str = "") -> Launch:
    """The launch of a real vLLM out of the virtual environment ``runtime``. Raises EngineError."""
    # PATH: vLLM and torch look for ninja and other tools of their own environment.
    environment = {**VLLM_CPU_ENVIRONMENT, **vllm_environment(spec, key)}
    argv = (str(runtime / "bin" / "python"), str(runtime / "bin" / "vllm"), "serve", *vllm_arguments(spec))
    return Launch(argv, environment, spec.fleet_folder)


def command_launch(spec: EngineSpec, python: str, repository: Path, pythonpath: str = "") -> Launch:
    """The launch of the spec's own ``command`` with its placeholders filled in.

    ``{python}`` is the interpreter ``python``, ``{model}`` the model's folder (its name where it has none), ``{name}``
    its name, ``{host}`` and ``{port}`` where to listen. ``repository`` comes first on PYTHONPATH, so that modules of
    the checkout are found from any folder. Raises EngineError for an unknown placeholder.
    """
    values = {
        "python": python,
        "host": spec.host,
        "port": str(spec.port),
        "name": spec.model,
        "model": str(spec.model_folder or spec.model),
    }
    argv = tuple(_filled(part, values, spec) for part in spec.engine.command or ())
    environment = {"PYTHONPATH": f"{repository}:{pythonpath}" if pythonpath else str(repository)}
    return Launch(argv, {**environment, **spec.engine.environment}, spec.fleet_folder)


def _filled(part: str, values: Mapping[str, str], spec: EngineSpec) -> str:
    try:
        return part.format_map(values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        known = ", ".join("{" + name + "}" for name in values)
        raise EngineError(
            f"The engine command of the model {spec.model} has a placeholder that does not exist in {part!r}.",
            f"Use {known}; a brace that is meant as one is doubled: {{{{ and }}}}.",
        ) from error
