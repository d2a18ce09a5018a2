"""Gathers what the rules need of one model: its engine in fleet.yaml, its files, the cards of its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from control.edge.site import state_paths
from control.engines.model import packaged_folder
from control.errors import TuningError
from control.fleet.arguments import release_of, vllm_settings
from control.fleet.host_checks import on_host, volumes
from control.fleet.load import LoadedFleet, load
from control.fleet.resolve import resolve_backends
from control.fleet.schema import Engine
from control.host import memory_total
from control.tuning.architecture import Architecture, read
from control.tuning.cards import CARDS, Card
from control.tuning.model_files import quantized_elsewhere, read_config, read_weights
from control.tuning.settings import Settings, of_engine, types
from control.tuning.static_facts import Expected, StaticFacts, Surroundings, facts_of
from control.tuning.weights import Weights, of_config, of_total
from control.vllm.flags import flags_of

#: What a folder is looked at with: any engine of the newest release that is known, with nothing set.
_NO_ENGINE = Engine(image="vllm/vllm-openai")


@dataclass(frozen=True)
class Wanted:
    """One model to be looked at. ``missing``: why its files were not, empty when they were."""

    name: str
    engine: Engine
    settings: Settings
    cards: tuple[Card, ...]
    around: Surroundings
    model: Architecture | None = None
    weights: Weights | None = None
    stored_elsewhere: bool = False
    missing: str = ""


def asked_for(fleet: Path, name: str, config: Path | None, overrides: Mapping[str, Any], weights: int | None) -> Wanted:
    """The model ``name`` of the fleet, or the folder of that name, with some settings instead of its own.

    ``config``: a config.json in place of the folder; ``weights``: their bytes in all. Raises TuningError without files.
    """
    loaded = load(fleet) if fleet.is_file() and "/" not in name else None
    if loaded is not None and name in loaded.fleet.models:
        wanted = _of_model(loaded, name, overrides)
        return _with_files(wanted, config or model_folder(loaded, name), weights)
    if config is None and not Path(name).is_dir():
        known = f" In {fleet}: {', '.join(loaded.fleet.models)}." if loaded is not None else ""
        raise TuningError(
            f"{name} is no folder, and no model of {fleet}.",
            f"Name one of both, or give --config FILE with the model's config.json.{known}",
        )
    wanted = _wanted(name, _NO_ENGINE, overrides, CARDS)
    return _with_files(wanted, config or Path(name), weights)


def of_fleet(loaded: LoadedFleet, name: str) -> Wanted:
    """A model of the fleet; where its files cannot be read here, ``missing`` says why."""
    wanted = _of_model(loaded, name, {})
    try:
        return _with_files(wanted, model_folder(loaded, name), None)
    except TuningError as error:
        return replace(wanted, missing=error.message)


def on_cards(wanted: Wanted, cards: Sequence[Card | None], expected: Expected) -> list[StaticFacts]:
    """The facts about this model on each of the cards (None: not known which).

    Raises TuningError where its memory cannot be calculated.
    """
    return [
        facts_of(
            vllm_settings(wanted.engine), wanted.settings, flags_of(release_of(wanted.engine)),
            environment=wanted.engine.environment, extra_args=wanted.engine.extra_args, model=wanted.model,
            weights=wanted.weights, card=card, expected=expected, around=wanted.around,
            stored_elsewhere=wanted.stored_elsewhere,
        )
        for card in cards
    ]  # fmt: skip


def model_folder(loaded: LoadedFleet, name: str) -> Path:
    """Where the model's files would be on this machine. Raises TuningError for a packaged one that is not unpacked."""
    source = loaded.fleet.models[name].source
    if source is None:
        return loaded.folder / name  # nothing there: the error tells of --config
    if not isinstance(source, str):
        folder = packaged_folder(state_paths(loaded), source)
        if not folder.is_dir():
            raise TuningError(f"The model {name} is not unpacked yet.", "Run `signalbox prepare` first.")
        return folder
    return _on_this_machine(loaded, name, source) or loaded.file(source)


def _on_this_machine(loaded: LoadedFleet, name: str, source: str) -> Path | None:
    """Where a container of a Docker host that is this machine finds the model; None when there is no such host."""
    model = loaded.fleet.models[name]
    for backend in model.backends:
        host = loaded.fleet.hosts.get(backend.host or "")
        if host is not None and host.docker is not None and host.docker.startswith("unix://") and model.engine:
            return loaded.file(on_host(volumes(host, model.engine), source))
    return None


def own_cards(loaded: LoadedFleet, name: str) -> list[Card]:
    """The cards of the model's hosts, as far as fleet.yaml says what they have."""
    model = loaded.fleet.models[name]
    if model.engine is not None and model.engine.runtime == "vllm-cpu":
        return [Card("this CPU", "", memory_total(), cpu=True)]
    names = dict.fromkeys(backend.host for backend in model.backends if backend.host)
    hosts = [(host, loaded.fleet.hosts[host].gpu_memory) for host in names]
    return [Card(host, memory.text(), int(memory)) for host, memory in hosts if memory is not None]


def _of_model(loaded: LoadedFleet, name: str, overrides: Mapping[str, Any]) -> Wanted:
    model = loaded.fleet.models[name]
    limits = tuple(backend.limit for backend in resolve_backends(loaded) if backend.model == name and backend.ours)
    around = Surroundings(limits, model.routing.policy, model.queue.kv_budget)
    cards = own_cards(loaded, name) or CARDS
    return replace(_wanted(name, model.engine or _NO_ENGINE, overrides, cards), around=around)


def _wanted(name: str, engine: Engine, overrides: Mapping[str, Any], cards: Sequence[Card]) -> Wanted:
    engine = engine.model_copy(update={key: value for key, value in overrides.items() if key in Engine.model_fields})
    own = {key: value for key, value in overrides.items() if key not in Engine.model_fields}
    return Wanted(name, engine, replace(of_engine(engine), **own), tuple(cards), Surroundings())


def _with_files(wanted: Wanted, place: Path, weights: int | None) -> Wanted:
    """``place``: the model's folder, or a config.json (what else lies beside that may be of another model)."""
    model = read(read_config(place))
    plain = types(wanted.settings, model)[0]
    if weights is not None:
        found = of_total(model, weights)
    elif place.is_dir():
        found = read_weights(place, model, plain, wanted.settings.quantization)
    else:
        found = of_config(model, plain, wanted.settings.quantization)
    elsewhere = place.is_dir() and quantized_elsewhere(place)
    return replace(wanted, model=model, weights=found, stored_elsewhere=elsewhere)
