"""The ``signalbox`` command: click commands that call into the rooms of ``control`` and print what they return."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from control import __version__
from control.errors import SignalboxError


@dataclass(frozen=True)
class Settings:
    """What every command gets (``@click.pass_obj``)."""

    fleet: Path


class Failure(click.ClickException):
    """An expected failure: its message and hint on stderr, no traceback."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code

    def show(self, file: Any = None) -> None:
        """Print the message and, on its own line, what to do next."""
        click.echo(click.style("Error: ", fg="red", bold=True) + self.message, err=True)
        if self.hint:
            click.echo(self.hint, err=True)


class Commands(click.Group):
    """The group that turns expected exceptions of any command into one clear message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; SignalboxError and file-system errors end as ``Failure``."""
        try:
            return super().invoke(ctx)
        except SignalboxError as error:
            raise Failure(error.message, error.hint, error.exit_code) from error
        except BrokenPipeError:
            raise  # click ends quietly when the reader of our output has gone
        except OSError as error:
            if error.filename is None:
                raise
            raise Failure(f"{error.filename}: {error.strerror}", "Check the path and its permissions.") from error


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


if __name__ == "__main__":
    main()
