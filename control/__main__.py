"""``python -m control`` is the same as the ``signalbox`` command."""

from control.cli import main

main(prog_name="signalbox")
