"""The ``signalbox`` command: click commands that call into the rooms of ``control`` and print what they return."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from control import __version__
from control.bench.commands import bench
from control.cli_engines import COMMANDS, which
from control.errors import SignalboxError
from control.keys.commands import keys
from control.kubernetes.commands import kubernetes_options, render_manifests
from control.tuning.commands import advise_command, plan_command, profiles_command
from control.web.commands import page_login

if TYPE_CHECKING:
    from control.fleet.load import LoadedFleet


@dataclass(frozen=True)
class Settings:
    """What every command gets (``@click.pass_obj``)."""

    fleet: Path


def fail(message: str, hint: str = "") -> None:
    """Print an expected failure on stderr and, on its own line, what to do next."""
    click.echo(click.style("Error: ", fg="red", bold=True) + message, err=True)
    if hint:
        click.echo(hint, err=True)


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on the disk, then run the same command again."
    if error.filename:
        return "Check the path and its permissions."
    return "Run the same command again; if it fails again, look into the logs below the state folder (.signalbox)."


class Commands(click.Group):
    """The group that turns expected exceptions of any command into one clear message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; SignalboxError and errors of the system end with a message, never with a traceback."""
        try:
            return super().invoke(ctx)
        except SignalboxError as error:
            fail(error.message, error.hint)
            ctx.exit(error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:  # who read our output has gone: click ends quietly
                raise
            what = error.strerror or str(error) or type(error).__name__
            fail(f"{error.filename}: {what}" if error.filename else what, _advice(error))
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--fleet",
    "-f",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("fleet.yaml"),
    show_default=True,
    help="The file that describes the fleet.",
)
@click.version_option(__version__, prog_name="signalbox")
@click.pass_context
def main(ctx: click.Context, fleet: Path) -> None:
    """Signalbox: the GPU-free front end for fleets of vLLM servers."""
    ctx.obj = Settings(fleet=fleet)


# The edge. Imports stand inside the commands: `signalbox --help` needs none of them.


@main.command()
@click.pass_obj
def check(settings: Settings) -> None:
    """Check fleet.yaml and start the rendered edge for a moment on scratch ports; touch nothing that runs."""
    from control.edge.site import open_site
    from control.edge.smoke import smoke
    from control.fleet.load import load

    loaded = _warned(load(settings.fleet))
    found = smoke(open_site(loaded))
    models = loaded.fleet.models
    backends = sum(len(model.backends) for model in models.values())
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{settings.fleet} is right: {len(models)} models, {backends} backends; "
        f"the edge started on scratch ports in {found.milliseconds} ms."
    )


@main.command()
@click.option("--target", type=click.Choice(["machine", "kubernetes"]), default="machine", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the manifests.")
@kubernetes_options
@click.pass_obj
def render(settings: Settings, /, target: str, out: Path | None, **cluster: Any) -> None:
    """Write nginx.conf and fleet.json beside those that run, and show what would change.

    With --target kubernetes: manifests of the whole fleet, into --out or to standard output (docs/kubernetes.md).
    """
    from control.fleet.load import load

    if target == "kubernetes":
        render_manifests(load(settings.fleet), out, cluster)
        return
    from control.edge.apply import render_next
    from control.edge.site import open_site

    _print(render_next(open_site(_warned(load(settings.fleet)))).lines())


@main.command()
@click.option("--foreground", is_flag=True, help="Stay until it ends, for containers and systemd; SIGTERM ends it.")
@click.pass_obj
def start(settings: Settings, foreground: bool) -> None:
    """Start the edge and wait until it answers."""
    from control.edge.apply import start as start_edge
    from control.edge.calls import require_none
    from control.edge.site import open_site, state_paths
    from control.fleet.load import load
    from control.foreground import run as run_in_foreground
    from control.sharing.publish import publish

    if foreground:
        run_in_foreground(settings.fleet, click.echo)
        return
    loaded = _warned(load(settings.fleet))
    require_none(state_paths(loaded))
    site = open_site(loaded)
    _print(start_edge(site).lines())
    _print(publish(loaded, site.paths))
    scheme = "https" if loaded.fleet.edge.tls else "http"
    click.echo(f"Clients: {scheme}://{loaded.fleet.edge.listen}/v1")


@main.command()
@click.option("--now", is_flag=True, help="Cut running answers instead of letting them finish.")
@click.option(
    "--wait", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for answers to finish."
)
@click.pass_obj
def stop(settings: Settings, now: bool, wait: float) -> None:
    """Stop the edge; new connections are refused at once, running answers may finish."""
    from control.edge.apply import stop as stop_edge
    from control.edge.site import state_paths
    from control.fleet.load import load
    from control.follow import refuse_beside

    loaded = load(settings.fleet, edge_only=True)
    paths = state_paths(loaded)
    if not loaded.fleet.models:
        refuse_beside(paths)
    click.echo(f"The edge {stop_edge(paths, quit=not now, drain=wait)}.")


@main.command()
@click.pass_obj
def reload(settings: Settings) -> None:
    """Render fleet.yaml and make the running edge take it; put the last good files back when it does not."""
    from control import up as containers
    from control.edge.site import state_paths
    from control.fleet.load import load
    from control.foreground import reload_anywhere
    from control.serve import tell_to_reload

    loaded = _warned(load(settings.fleet))
    _print(reload_anywhere(loaded))
    if tell_to_reload(state_paths(loaded)):
        click.echo("The control plane reads fleet.yaml again (its control.log says what it found).")
    _print(containers.pending(loaded, state_paths(loaded)))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the edge, its backends, their engines, tunnels and containers. Exit code 1 when the edge does not run."""
    from control import engine_report
    from control import up as containers
    from control.edge import report
    from control.edge.site import state_paths
    from control.fleet.load import load
    from control.serve import daemon_address
    from control.tunnels import report as tunnels

    loaded = load(ctx.obj.fleet, edge_only=True)
    found = report.collect(state_paths(loaded), follows=not loaded.fleet.models)
    ways = tunnels.rows(loaded, state_paths(loaded), bool(daemon_address(state_paths(loaded))))
    rows = containers.rows(loaded, state_paths(loaded))
    engines = engine_report.collect(loaded)
    if as_json:
        click.echo(report.as_json(found, rows, engines, ways))
    else:
        report.show(found)
        _print(engine_report.lines(engines))
        if ways:
            tunnels.show_rows(ways)
        if rows:
            containers.show_rows(rows)
    if found.state is None:
        ctx.exit(1)


@main.command()
@click.pass_obj
def run(settings: Settings) -> None:
    """Bring everything up: runtimes, models, engines, edge, control plane. Repeat it after a change."""
    from rich.console import Console

    from control.run import run as bring_up

    bring_up(settings.fleet, Console(highlight=False))


@main.command()
@click.pass_obj
def prepare(settings: Settings) -> None:
    """Install the runtimes and prepare the models that the fleet needs; start nothing."""
    from rich.console import Console

    from control.run import prepare_only

    prepare_only(settings.fleet, Console(highlight=False))


@main.command()
@which
@click.option("--now", is_flag=True, help="Cut running answers instead of letting them finish.")
@click.pass_obj
def down(settings: Settings, names: tuple[str, ...], now: bool) -> None:
    """End the edge, the engines and the control plane; logs, runtimes, images and models stay.

    With names: stop and remove only the containers of these models and backends, when nothing runs on them any more.
    """
    from rich.console import Console

    from control.run import down as bring_down
    from control.up import stop_named

    if names:
        stop_named(settings.fleet, Console(highlight=False), names)
    else:
        bring_down(settings.fleet, Console(highlight=False), now)


@main.command()
@click.argument("host", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--no-containers", is_flag=True, help="Run no container on Docker hosts: GPUs, disk, models stay unseen.")
@click.pass_context
def doctor(ctx: click.Context, host: str | None, as_json: bool, no_containers: bool) -> None:
    """Look at this machine, all Docker hosts, tunnels and engines; say for each finding what to run next.

    With HOST (a name under hosts: in fleet.yaml) only at that one. Changes nothing; on a Docker host a container in an
    image that is there looks at GPUs, disk, ports and models, and is removed again. Exit code 1 for problems.
    """
    from control.doctor import look
    from control.fleet.load import load

    found = look.look(load(ctx.obj.fleet), host, not no_containers)
    if as_json:
        findings = list(found)
        click.echo(look.as_json(findings))
        problems = any(finding.level == "problem" for finding in findings)
    else:
        problems = look.show(found)
    if problems:
        ctx.exit(1)


@main.command()
@click.pass_obj
def serve(settings: Settings) -> None:
    """Run the control plane in the foreground: the page, the engines of this machine, log rotation."""
    from control.fleet.load import load
    from control.serve import serve as run

    run(load(settings.fleet))


@main.command()
@click.pass_obj
def edge(settings: Settings) -> None:
    """Run an edge only, in the foreground, with the fleet that a control plane elsewhere gives through Redis."""
    from control.fleet.load import load
    from control.follow import follow

    follow(load(settings.fleet, edge_only=True))


main.add_command(keys)
main.add_command(advise_command)
main.add_command(plan_command)
main.add_command(profiles_command)
main.add_command(bench)
main.add_command(page_login)
for _command in COMMANDS:
    main.add_command(_command)


@main.command()
def schema() -> None:
    """Print the JSON Schema of fleet.yaml (for completion in an editor)."""
    from control.fleet.published import schema_json

    click.echo(schema_json(), nl=False)


def _warned(loaded: LoadedFleet) -> LoadedFleet:
    """Says what should be known of a fleet that can be used."""
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return loaded


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    main()
