"""``signalbox plan``. Thin; imports stand inside: help needs none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from control.cli import Settings as Global
    from control.fleet.load import LoadedFleet
    from control.tuning.cards import Card
    from control.tuning.settings import Settings

_COUNT = click.IntRange(1)
_OVERRIDES = (
    click.option("--max-model-len", type=_COUNT, help="Instead of what fleet.yaml says; likewise the next ones."),
    click.option("--max-num-seqs", type=_COUNT),
    click.option("--max-num-batched-tokens", type=_COUNT),
    click.option("--gpu-memory-utilization", type=click.FloatRange(0.01, 1)),
    click.option("--kv-cache-dtype"),
    click.option("--dtype"),
    click.option("--tensor-parallel-size", type=_COUNT),
    click.option("--pipeline-parallel-size", type=_COUNT),
    click.option("--block-size", type=_COUNT),
)


def _overrides(command: Any) -> Any:
    for option in reversed(_OVERRIDES):
        command = option(command)
    return command


@click.command("plan")
@click.argument("model")
@click.option("--card", "cards", multiple=True, help="l4, h100, 24GB, 22GiB ...; more than once for several.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A config.json, without the weights.")
@click.option("--weights", help="How large the weights are, such as 13GiB, when there is only a config.json.")
@click.option("--length", "lengths", type=_COUNT, multiple=True, help="Tokens of a real request, prompt and answer.")
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
@_overrides
@click.pass_context
def plan_command(
    ctx: click.Context,
    /,
    model: str,
    cards: tuple[str, ...],
    config: Path | None,
    weights: str | None,
    lengths: tuple[int, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """What the memory of a GPU holds of MODEL: weights, KV cache, tokens, sequences (docs/tuning.md).

    MODEL is a model of fleet.yaml or a model's folder. Exit code 1 when it starts on none of the cards.
    """
    from rich.console import Console

    from control.tuning.architecture import read
    from control.tuning.model_files import read_config, read_weights
    from control.tuning.plan import as_data, plan, show
    from control.tuning.settings import types
    from control.tuning.weights import of_config, of_total

    folder, settings, own_cards = _of(ctx.obj, model, config)
    settings = replace(settings, **{name: value for name, value in given.items() if value is not None})
    architecture = read(read_config(config or folder))
    plain = types(settings, architecture)[0]
    if weights is not None:
        found = of_total(architecture, _size(weights))
    elif config is not None:  # what else lies beside that file may be of another model
        found = of_config(architecture, plain, settings.quantization)
    else:
        found = read_weights(folder, architecture, plain, settings.quantization)
    planned = plan(model, architecture, found, settings, _cards(cards) or own_cards, lengths)
    if as_json:
        click.echo(json.dumps(as_data(planned), indent=2))
    else:
        show(planned, Console(highlight=False))
    ctx.exit(0 if planned.starts else 1)


def _of(settings: Global, model: str, config: Path | None) -> tuple[Path, Settings, list[Card]]:
    """The model's folder, its settings, and the cards of its hosts (else the usual ones)."""
    from control.errors import TuningError
    from control.fleet.load import load
    from control.tuning import cards
    from control.tuning.settings import of_engine

    folder = Path(model)
    loaded = load(settings.fleet) if settings.fleet.is_file() and "/" not in model else None
    if loaded is not None and model in loaded.fleet.models:
        engine = loaded.fleet.models[model].engine
        folder = _folder(loaded, model) if config is None else config.parent
        return folder, of_engine(engine), _own_cards(loaded, model) or list(cards.CARDS)
    if config is None and not folder.is_dir():
        known = f" In {settings.fleet}: {', '.join(loaded.fleet.models)}." if loaded is not None else ""
        raise TuningError(
            f"{model} is no folder, and no model of {settings.fleet}.",
            f"Name one of both, or give --config FILE with the model's config.json.{known}",
        )
    return folder, of_engine(None), list(cards.CARDS)


def _folder(loaded: LoadedFleet, model: str) -> Path:
    """Where the model's files would be on this machine."""
    from control.edge.site import state_paths
    from control.engines.model import packaged_folder
    from control.errors import TuningError

    source = loaded.fleet.models[model].source
    if source is None:
        return loaded.folder / model  # nothing there: the error tells of --config
    if not isinstance(source, str):
        folder = packaged_folder(state_paths(loaded), source)
        if not folder.is_dir():
            raise TuningError(f"The model {model} is not unpacked yet.", "Run `signalbox prepare` first.")
        return folder
    return loaded.file(source)


def _own_cards(loaded: LoadedFleet, model: str) -> list[Card]:
    from control.host import read_host
    from control.tuning.cards import Card

    engine = loaded.fleet.models[model].engine
    if engine is not None and engine.runtime == "vllm-cpu":
        return [Card("this CPU", "", read_host().memory_total)]
    names = dict.fromkeys(backend.host for backend in loaded.fleet.models[model].backends if backend.host)
    hosts = [(name, loaded.fleet.hosts[name].gpu_memory) for name in names]
    return [Card(name, memory.text(), int(memory)) for name, memory in hosts if memory is not None]


def _cards(texts: tuple[str, ...]) -> list[Card]:
    from control.tuning.cards import find

    return list(dict.fromkeys(card for text in texts for card in find(text)))


def _size(text: str) -> int:
    from pydantic_core import PydanticCustomError

    from control.fleet.units import Bytes

    try:
        return int(Bytes.parse(text))
    except PydanticCustomError as error:
        raise click.BadParameter(str(error.message()), param_hint="--weights") from error
