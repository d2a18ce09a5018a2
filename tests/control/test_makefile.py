"""The Makefile's ways to call ``signalbox``: the real make, and a stand-in that writes down how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from control.paths import REPOSITORY

STAND_IN = """#!/bin/sh
printf '[%s]' "$@" >>calls; echo >>calls
[ "$2" != "$FAILS" ] || exit 3
"""


class Checkout:
    """A folder with the Makefile alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(REPOSITORY / "Makefile", folder)
        for name, text in {".venv/bin/signalbox": STAND_IN, "scripts/setup.sh": "#!/bin/sh\n"}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def make(self, *words: str, fails: str = "") -> tuple[int, list[str]]:
        """Run make; the stand-in fails for the fleet ``fails``. Returns the exit code and the calls."""
        kept = {name: value for name, value in os.environ.items() if name not in ("FLEET", "ENGINE", "MAKEFLAGS")}
        environment = {**kept, "FAILS": fails}
        done = subprocess.run(["make", *words], cwd=self.folder, env=environment, capture_output=True, timeout=30)
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return done.returncode, lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("fleet", ["my fleet.yaml", "it's; false", "plain.yaml"])
@pytest.mark.parametrize(
    ("target", "command"),
    [("run", "run"), ("stop", "down"), ("status", "status"), ("check", "check"), ("render", "render"),
     ("reload", "reload")],
)  # fmt: skip
def test_a_fleet_may_have_any_name(checkout: Checkout, target: str, command: str, fleet: str) -> None:
    assert checkout.make(target, f"FLEET={fleet}") == (0, [f"[--fleet][{fleet}][{command}]"])


def test_without_a_choice(checkout: Checkout) -> None:
    assert checkout.make("run") == (0, ["[--fleet][fleet.yaml][run]"])
    assert checkout.make("stop") == (0, ["[--fleet][fleet.yaml][down]"])
    assert checkout.make("run", "ENGINE=scripted") == (0, ["[--fleet][examples/scripted.yaml][run]"])


def test_stop_goes_on_after_a_failure_and_tells_it(checkout: Checkout) -> None:
    (checkout.folder / ".signalbox" / "scripted").mkdir(parents=True)
    both = ["[--fleet][fleet.yaml][down]", "[--fleet][examples/scripted.yaml][down]"]
    assert checkout.make("stop") == (0, both)
    assert checkout.make("stop", fails="fleet.yaml") == (2, both)
    assert checkout.make("stop", fails="examples/scripted.yaml") == (2, both)


def test_stop_before_setup_is_no_failure(checkout: Checkout) -> None:
    (checkout.folder / ".venv" / "bin" / "signalbox").unlink()
    assert checkout.make("stop") == (0, [])
