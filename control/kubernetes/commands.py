"""The options of ``signalbox render`` for Kubernetes, and what it prints. Imports stand inside: help needs none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from control import __version__

if TYPE_CHECKING:
    from control.fleet.load import LoadedFleet

Command = TypeVar("Command", bound=Callable[..., Any])
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def _fits(pattern: re.Pattern[str]) -> Callable[[click.Context, click.Parameter, str], str]:
    def check(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if not pattern.fullmatch(value):
            raise click.BadParameter(f"{value!r} is no name that Kubernetes takes (small letters, digits, dashes)")
        return value

    return check


_OPTIONS = (
    click.option("--namespace", default="signalbox", show_default=True, callback=_fits(_LABEL),
                 help="Kubernetes: where all of it lives."),
    click.option("--edge-image", default=f"signalbox:{__version__}", show_default=True,
                 help="Kubernetes: what nginx/Dockerfile built."),
    click.option("--engine-image", help="Kubernetes: for engines whose fleet.yaml names no image."),
    click.option("--models-claim", default="models", show_default=True, callback=_fits(_LABEL),
                 help="Kubernetes: the PersistentVolumeClaim with the models' folders."),
    click.option("--cluster-domain", default="cluster.local", show_default=True, callback=_fits(_DOMAIN),
                 help="Kubernetes: what names of Services end in."),
)  # fmt: skip


def kubernetes_options(command: Command) -> Command:
    """What a cluster needs beyond fleet.yaml, as options of ``command``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def render_manifests(loaded: LoadedFleet, out: Path | None, options: Mapping[str, Any]) -> None:
    """Print the manifests, or write them into ``out`` and say what to do with them."""
    from control.kubernetes.shapes import Target
    from control.kubernetes.target import render, write

    bundle = render(loaded, Target(**options))
    if out is None:
        click.echo(bundle.text(), nl=False)
        click.echo("The Secrets that they refer to: `--out FOLDER` writes a script that makes them.", err=True)
        return
    for line in write(bundle, out) or ["Nothing changed."]:
        click.echo(line)
    folder = shlex.quote(str(out))
    click.echo(f"Then: sh {folder}/secrets.sh && kubectl apply --server-side -f {folder}")
