"""Add releases that are new on the package index to flags.json: ``make flags``. ``--all`` reads every one anew."""

from __future__ import annotations

import sys
from pathlib import Path

from control.vllm.released import wheel
from control.vllm.released.parser import flags
from control.vllm.released.table import Table

FILE = Path(__file__).parent.parent / "flags.json"


def main(arguments: list[str]) -> None:
    table = Table.read(FILE.read_text(encoding="utf-8")) if FILE.exists() and "--all" not in arguments else Table()
    for version in wheel.versions():
        if version in table.origins:
            continue
        name, read = wheel.open_wheel(version)
        table.add(version, name, flags(read))
        print(f"{version}: {len(table.flags[version])} flags, from {name}", flush=True)
        FILE.write_text(table.text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
