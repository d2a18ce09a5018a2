"""``signalbox keys``: click commands, thin. Secrets go to stdout and nowhere else; words about them to stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from control.fleet.load import LoadedFleet
    from control.keys.load import LoadedKeys

_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent", "tokens_per_day", "tokens_per_month")


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Seconds of a time such as 30m, 24h or 7d; at most a year."""
    number, unit = value[:-1], value[-1:]
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(unit)
    digits = number.isascii() and number.isdigit() and len(number) < 10
    if factor is None or not digits or int(number) * factor > 366 * 86_400:
        raise click.BadParameter(f"{value!r} is no time such as 30m, 24h or 7d (a year at most).", ctx, param)
    return int(number) * factor


def _limit_options(command: Any) -> Any:
    for name in reversed(_LIMITS):
        option = "--" + name.replace("_", "-")
        command = click.option(option, name, type=click.IntRange(1), metavar="N")(command)
    return command


@click.group()
def keys() -> None:
    """API keys of clients: made, shown once, changed. They take effect at once, without a reload."""


@keys.command()
@click.argument("name")
@click.option("--models", metavar="A,B", help="The only models that it may use; by default all.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]))
@click.option("--weight", type=click.IntRange(1, 1000), metavar="N")
@click.option("--expires", metavar="DATE", help="Its last day, such as 2027-01-31, or a time: 2027-01-31T12:00:00Z.")
@_limit_options
@click.pass_obj
def create(
    settings: Any, /, name: str, models: str | None, priority: str | None, weight: int | None, expires: str | None,
    **limits: int | None,
) -> None:  # fmt: skip
    """Make a key. Its secret is printed, this once, and nothing else goes to stdout."""
    from control.keys import store

    loaded = _loaded(settings)
    wishes = store.Wishes(
        models=tuple(model.strip() for model in (models or "").split(",") if model.strip()),
        priority=priority,
        weight=weight,
        expires=expires,
        limits={kind: count for kind, count in limits.items() if count is not None},
    )
    secret, found = store.create(loaded, name, wishes)
    click.echo(secret)
    _say(f"This is the key of {name}. It is shown this once: {found.path} has only its hash.")
    _say(_effect(loaded, found))


@keys.command(name="list")
@click.pass_obj
def list_keys(settings: Any) -> None:
    """Show the keys: names, last characters, what they may do."""
    from control.keys import store
    from control.keys.listing import lines

    loaded = _loaded(settings)
    for line in lines(store.read_keys(loaded).keys):
        click.echo(line)
    _say(_advice(loaded))


@keys.command()
@click.argument("name")
@click.pass_obj
def revoke(settings: Any, name: str) -> None:
    """Remove a key. Its running answers go on to their end; new requests are refused."""
    from control.keys import store

    loaded = _loaded(settings)
    found = store.revoke(loaded, name)
    _say(f"The key {name} is gone. Answers that it has running go on to their end.")
    _say(_effect(loaded, found))


@keys.command()
@click.argument("name")
@click.option(
    "--grace",
    callback=_seconds,
    default="0s",
    metavar="TIME",
    help="The old secret still lets in so long: 30m, 24h, 7d.",
)
@click.pass_obj
def rotate(settings: Any, name: str, grace: int) -> None:
    """Give a key a new secret, which is printed this once. Without --grace the old one ends now."""
    from control.keys import store

    loaded = _loaded(settings)
    secret, found = store.rotate(loaded, name, grace)
    click.echo(secret)
    previous = found.keys[name].previous
    ending = f"lets in until {previous.until.text()}" if previous else "does not let in any more"
    _say(f"This is the new key of {name}, shown this once; the old one {ending}.")
    _say(_effect(loaded, found))


@keys.command()
@click.argument("name")
@click.pass_obj
def enable(settings: Any, name: str) -> None:
    """Let a disabled key in again."""
    _switch(settings, name, True)


@keys.command()
@click.argument("name")
@click.pass_obj
def disable(settings: Any, name: str) -> None:
    """Refuse a key until it is enabled again."""
    _switch(settings, name, False)


def _switch(settings: Any, name: str, enabled: bool) -> None:
    from control.keys import store

    loaded = _loaded(settings)
    found = store.set_enabled(loaded, name, enabled)
    _say(f"The key {name} is {'enabled' if enabled else 'disabled'}.")
    _say(_effect(loaded, found))


def _loaded(settings: Any) -> LoadedFleet:
    from control.fleet.load import load

    return load(settings.fleet)


def _effect(loaded: LoadedFleet, found: LoadedKeys) -> str:
    from control.keys.effect import effect

    return effect(loaded, found)


def _advice(loaded: LoadedFleet) -> str:
    from control.keys.effect import advice

    return advice(loaded)


def _say(text: str) -> None:
    if text:
        click.echo(text, err=True)
