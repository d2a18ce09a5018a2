"""The commands about engines: ``up``, ``diff``, ``restart``, ``logs``, ``adopt``. Thin, like ``cli.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from control.cli import Settings

F = TypeVar("F", bound=Callable[..., Any])


def which(function: F) -> F:
    """The argument of all commands that take models and backends."""
    return click.argument("names", nargs=-1, metavar="[MODEL|BACKEND]...")(function)


@click.command()
@which
@click.option("--pull", is_flag=True, help="Look for newer images first.")
@click.pass_obj
def up(settings: Settings, names: tuple[str, ...], pull: bool) -> None:
    """Show the plan, then make everything what fleet.yaml says. Repeat it after a change, or after Ctrl-C.

    With names, containers of other models and backends stay as they are.
    """
    from rich.console import Console

    from control.run import run as bring_up

    bring_up(settings.fleet, Console(highlight=False), names, pull)


@click.command()
@which
@click.pass_context
def diff(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show what `up` would do to containers, and why; change nothing. Exit code 1 when there is something to do."""
    from rich.console import Console

    from control import up as containers
    from control.edge.site import state_paths
    from control.engines.hosts import Hosts
    from control.fleet.load import load

    loaded = load(ctx.obj.fleet)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    containers.require_known(loaded, names)
    with Hosts(loaded, state_paths(loaded)) as hosts:
        found = containers.planned(loaded, hosts, names)
    containers.show_plan(found, Console(highlight=False), details=True)
    if found.problems or not all(step.settled for step in found.steps):
        ctx.exit(1)


@click.command()
@which
@click.pass_obj
def restart(settings: Settings, names: tuple[str, ...]) -> None:
    """Start containers anew, one after another, each when nothing runs on it any more."""
    from rich.console import Console

    from control.up import restart as start_anew

    start_anew(settings.fleet, Console(highlight=False), names)


@click.command()
@click.argument("backend")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@click.option("--tail", type=click.IntRange(0), help="Only so many lines from the end.")
@click.pass_obj
def logs(settings: Settings, backend: str, follow: bool, tail: int | None) -> None:
    """Print the output of an engine in a container."""
    from control.up import logs as copy

    copy(settings.fleet, backend, follow, tail, sys.stdout.buffer)


@click.command()
@click.argument("backend")
@click.argument("container", required=False)
@click.pass_obj
def adopt(settings: Settings, backend: str, container: str | None) -> None:
    """Take over a running container that somebody else started, if it is what fleet.yaml asks for.

    Without CONTAINER it is the one that has the backend's port.
    """
    from control.up import adopt_container

    adopt_container(settings.fleet, backend, container, click.echo)


COMMANDS: tuple[click.Command, ...] = (up, diff, restart, logs, adopt)
