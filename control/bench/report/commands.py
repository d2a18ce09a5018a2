"""``signalbox bench report`` and ``compare``: thin, like ``cli.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from control.bench.options import RUNS, runs_folder

if TYPE_CHECKING:
    from control.cli import Settings


@click.command()
@click.argument("name", metavar="RUN", default="last")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Another folder than that of the run.")
@RUNS
@click.pass_obj
def report(settings: Settings, name: str, out: Path | None, runs: Path | None) -> None:
    """Write the report of RUN (its id, the beginning of one, or last): report.html, report.md and report.json."""
    from control.bench import store
    from control.bench.report.files import write

    for file in write(store.find(runs_folder(settings, runs), name), out):
        click.echo(file)


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--as", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True,
              help="How it is written.")  # fmt: skip
@RUNS
@click.pass_obj
def compare(settings: Settings, first: str, second: str, form: str, runs: Path | None) -> None:
    """Compare A with B: two runs, or RUN:VARIANT and RUN:VARIANT; :VARIANT is one of the last run.

    Runs of other workloads, scales or workload files are refused. A difference is only told where the intervals of
    both sides do not overlap.
    """
    from rich.console import Console

    from control.bench.report import choose, data, markdown
    from control.bench.report import compare as comparing
    from control.bench.report.terminal import print_comparison

    pairs = choose.sides(runs_folder(settings, runs), first, second)
    found = [comparing.compare(before, after) for before, after in pairs]
    if form == "json":
        click.echo(data.write([data.comparison(one) for one in found]), nl=False)
    elif form == "markdown":
        click.echo("\n".join(markdown.comparison(one) for one in found), nl=False)
    else:
        console = Console(highlight=False)
        for one in found:
            print_comparison(one, console)
