"""``signalbox page-login``: who may open the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

DEFAULT_NAME = "page.logins"


@click.command(name="page-login")
@click.argument("name")
@click.option("--remove", is_flag=True, help="Take the login away.")
@click.option("--stdin", is_flag=True, help="Read the password from standard input instead of asking for it.")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The file of logins; by default {DEFAULT_NAME} beside fleet.yaml.",
)
@click.pass_obj
def page_login(settings: Any, name: str, remove: bool, stdin: bool, path: Path | None) -> None:
    """Give NAME a password for the page, or a new one. Only its hash is kept."""
    from control.web.logins import set_login

    beside = settings.fleet.parent / DEFAULT_NAME
    password = None
    if not remove:
        password = sys.stdin.readline().rstrip("\n") if stdin else click.prompt("Password", hide_input=True,
                                                                                confirmation_prompt=True)  # fmt: skip
    set_login(path or beside, name, password)
    click.echo(f"{name} {'can no longer open' if remove else 'can open'} the page, at once where it asks already.")
    if not remove:
        click.echo(f"The page asks when fleet.yaml has 'login: {path or DEFAULT_NAME}' under control; then: make run")
