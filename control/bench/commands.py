"""``signalbox bench``: thin, like ``cli.py``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from control.bench.options import RUNS, runs_folder
from control.bench.report.commands import compare, report
from control.errors import BenchRunError

if TYPE_CHECKING:
    from control.cli import Settings


@click.group()
def bench() -> None:
    """Measure variants of a deployment side by side: docs/bench.md."""


@bench.command()
@click.argument("workload", default="mixed")
@click.option("--variants", default="default,tuned,tuned+edge", show_default=True, help="What is compared.")
@click.option("--scale", default="full", show_default=True, help="A scale of the workload file, such as cpu.")
@click.option("--repeats", type=click.IntRange(1, 50), default=3, show_default=True, help="Passes of each variant.")
@click.option("--slo", default="", metavar="LIMITS", help="For goodput: ttft=1.5s,tpot=60ms. By default the model's.")
@click.option("--model", help="Which one, where fleet.yaml has several.")
@click.option("--seed", type=click.IntRange(0, 2**31), help="Send the same again. By default every run draws its own.")
@click.option("--name", default="", help="A few words for the list of runs.")
@click.option("--running", is_flag=True, help="Measure what runs already, starting and ending nothing.")
@RUNS
@click.pass_obj
def run(
    settings: Settings, workload: str, variants: str, scale: str, repeats: int, slo: str, model: str | None,
    seed: int | None, name: str, running: bool, runs: Path | None,
) -> None:  # fmt: skip
    """Measure WORKLOAD (mixed, chat, rag, agent, burst, or the path of a file).

    Engines are started anew for each variant, on ports of their own, and ended again. Ctrl-C ends them too, and keeps
    what was measured.
    """
    from rich.console import Console

    from control.bench import stand, store
    from control.bench import workload as workloads
    from control.bench.report.files import write
    from control.bench.session import Plan, Session
    from control.bench.slo import parse_slo
    from control.bench.summary import print_summary
    from control.bench.variants import choices
    from control.fleet.load import load
    from control.terminal import Steps

    loaded = load(settings.fleet)
    model = stand.choose_model(loaded, model)
    file = workloads.find(workload)
    sent = workloads.load(file, scale)
    chosen = choices(variants, sent.tuned)
    if running and {one.name for one in chosen} - {"direct", "edge"}:
        raise BenchRunError("--running starts nothing, so settings stay as they are.", "Use --variants direct,edge.")
    if running:
        serving = stand.running(loaded, model)
        for one in chosen:
            serving.key(one.way)  # a missing one is told before anything is measured
    else:
        stand.require_idle(loaded)
    limits = parse_slo(slo) if slo else stand.slo_of(loaded, model)
    folder = store.new_folder(runs_folder(settings, runs), file.stem)
    plan = Plan(loaded, model, sent, file, scale, chosen, repeats, limits, seed, name, running, _command())
    console = Console(highlight=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (folder / "bench.log").open("w") as log, Steps(console) as progress:
        try:
            found = Session(plan, folder, progress, Console(file=log, highlight=False, width=120)).measure()
        except BaseException:
            console.print(f"What was measured until then: {folder}", soft_wrap=True, markup=False)
            raise
    print_summary(found, console)
    console.print(f"The report: {write(folder)[0]}", soft_wrap=True, markup=False)


@bench.command()
@click.pass_obj
def install(settings: Settings) -> None:
    """Install the load generator; `run` does it too, when it is missing."""
    from rich.console import Console

    from control.bench import aiperf
    from control.edge.site import state_paths
    from control.fleet.load import load
    from control.terminal import Steps

    console = Console(highlight=False)
    with Steps(console) as progress:
        folder = aiperf.install(state_paths(load(settings.fleet)), progress)
    console.print(f"AIPerf {aiperf.version()} is in {folder}.", markup=False, soft_wrap=True)


@bench.command("list")
@RUNS
@click.pass_obj
def list_runs(settings: Settings, runs: Path | None) -> None:
    """Show the runs that there are."""
    from rich.console import Console

    from control.bench.summary import print_list

    print_list(runs_folder(settings, runs), Console(highlight=False))


@bench.command()
@click.argument("name", default="last")
@RUNS
@click.pass_obj
def show(settings: Settings, name: str, runs: Path | None) -> None:
    """Show the figures of one run: its id, the beginning of one, or last."""
    from rich.console import Console

    from control.bench import results, store
    from control.bench.summary import print_summary

    print_summary(results.load(store.find(runs_folder(settings, runs), name)), Console(highlight=False))


bench.add_command(report)
bench.add_command(compare)


def _command() -> list[str]:
    return ["signalbox", *sys.argv[1:]]
