"""``signalbox plan``, ``profiles`` and ``advise``. Thin; imports stand inside: help needs none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from control.fleet.load import LoadedFleet
    from control.tuning.cards import Card
    from control.tuning.observe import Observer

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

    from control.tuning.plan import as_data, plan, show
    from control.tuning.sources import asked_for, on_cards
    from control.tuning.static_facts import Expected

    overrides = {name: value for name, value in given.items() if value is not None}
    wanted = asked_for(ctx.obj.fleet, model, config, overrides, _size(weights) if weights is not None else None)
    facts = on_cards(wanted, _cards(cards) or wanted.cards, Expected(lengths=lengths))
    planned = plan(model, facts)
    if as_json:
        click.echo(json.dumps(as_data(planned), indent=2))
    else:
        show(planned, Console(highlight=False))
    ctx.exit(0 if planned.starts else 1)


@click.command("profiles")
@click.option("--card", default="24GB", show_default=True, help="Whose defaults of vLLM are shown: l4, h100, 80GB ...")
@click.option("--json", "as_json", is_flag=True, help="The profiles as JSON.")
def profiles_command(card: str, as_json: bool) -> None:
    """Show the profiles that `profile:` of an engine can name: their numbers, why, and for what they are."""
    from rich.console import Console

    from control.tuning.cards import find
    from control.tuning.profiles import as_data, show

    chosen = find(card)[0]
    if as_json:
        click.echo(json.dumps(as_data(chosen), indent=2))
    else:
        show(chosen, Console(highlight=False))


@click.command("advise")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--prompt", "prompts", type=_COUNT, multiple=True, help="Tokens of a typical prompt; more than once.")
@click.option("--length", "lengths", type=_COUNT, multiple=True, help="Tokens of a real request, prompt and answer.")
@click.option("--card", "cards", multiple=True, help="l4, h100, 24GB, 22GiB ...: instead of the hosts' gpu_memory.")
@click.option(
    "--live",
    is_flag=False,
    flag_value="30s",
    metavar="[=TIME]",
    help="Look at the running engines too; for 30s, or 2m.",
)
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@click.option("--strict", is_flag=True, help="Exit code 1 on warnings too.")
@click.pass_context
def advise_command(
    ctx: click.Context,
    /,
    models: tuple[str, ...],
    prompts: tuple[int, ...],
    lengths: tuple[int, ...],
    cards: tuple[str, ...],
    live: str | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Say what is wrong or wasteful about the engines of fleet.yaml, and what to write instead (docs/tuning.md).

    By their settings, the models' files and the hosts' GPUs, and by what each engine told at its last start; with
    --live by what engines and edge do meanwhile. Exit code 1 when an engine would not start.
    """
    from rich.console import Console

    from control.fleet.load import load
    from control.tuning.advice import last_starts, of_fleet_and_starts, with_running
    from control.tuning.advise import failed
    from control.tuning.showing import as_data, show
    from control.tuning.static_facts import Expected
    from control.up import require_known

    length = _duration(live) if live is not None else 0.0
    loaded = load(ctx.obj.fleet)
    require_known(loaded, models)
    expected = Expected(prompts, lengths)
    advice = of_fleet_and_starts(loaded, last_starts(loaded), models, expected, _cards(cards))
    if length:
        advice = with_running(advice, _watch(loaded, length, models))
    if as_json:
        click.echo(json.dumps(as_data(advice), indent=2))
    else:
        show(advice, Console(highlight=False))
    ctx.exit(1 if failed(advice.findings, strict) else 0)


def _watch(loaded: LoadedFleet, length: float, models: tuple[str, ...]) -> Observer:
    """Look for ``length`` seconds, with a bar on the terminal (standard error); Ctrl-C ends it early."""
    from rich.console import Console

    from control.terminal import Steps
    from control.tuning.observe import watch

    with Steps(Console(stderr=True)) as progress:
        title = f"Looking at the engines for {length:g} s"
        return watch(loaded, length, models, lambda over: progress(title, "", over / length))


def _duration(text: str) -> float:
    """Seconds."""
    from pydantic_core import PydanticCustomError

    from control.fleet.units import Milliseconds

    try:
        return int(Milliseconds.parse(text)) / 1000
    except PydanticCustomError as error:
        raise click.BadParameter(f"{error.message()}. Write --live or --live=2m.", param_hint="--live") from error


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
