"""scripts/setup.sh and the file that keeps Debian from starting what it installs.

The real script in the real shell; only apt-get, dpkg-query and sudo are stand-ins, since no test may install packages.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from control.paths import REPOSITORY

POLICY = "/usr/sbin/policy-rc.d"
STAND_INS = {
    "apt-get": 'if [ "$1" = install ]; then touch "$STARTED"; exec sleep 30; fi',
    "dpkg-query": '[ -z "$NOTHING_INSTALLED" ] && echo installed',
    "sudo": 'if [ "$1" = -n ]; then shift; fi; exec "$@"',
    "python": ":",
}


class Setup:
    """A copy of the script whose policy file lies in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.policy, self.started = folder / "policy-rc.d", folder / "started"
        script = folder / "checkout" / "scripts" / "setup.sh"
        script.parent.mkdir(parents=True)
        text = (REPOSITORY / "scripts" / "setup.sh").read_text()
        assert text.count(POLICY) == 1
        script.write_text(text.replace(POLICY, str(self.policy)))
        script.chmod(0o755)
        self._script, self._tools = script, folder / "tools"
        self._tools.mkdir()
        for name, body in STAND_INS.items():
            (self._tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (self._tools / name).chmod(0o755)

    def run(self, nothing_installed: bool) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, as a terminal does."""
        environment = {
            **os.environ,
            "PATH": f"{self._tools}:{os.environ['PATH']}",
            "PYTHON": str(self._tools / "python"),
            "STARTED": str(self.started),
            "NOTHING_INSTALLED": "1" if nothing_installed else "",
        }
        return subprocess.Popen(
            ["/bin/sh", str(self._script)], env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=_heed_signals,
        )  # fmt: skip

    def run_until_apt(self) -> subprocess.Popen[bytes]:
        """Start it and wait until it installs packages."""
        process = self.run(nothing_installed=True)
        deadline = time.monotonic() + 10
        while not self.started.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        assert os.access(self.policy, os.X_OK)
        assert "exit 101" in self.policy.read_text()
        return process


def _heed_signals() -> None:
    """A test run in the background ignores these, and a shell cannot trap what was ignored when it started."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)], ids=["INT", "TERM", "HUP"]
)
def test_a_signal_leaves_no_policy_behind(setup: Setup, number: signal.Signals, code: int) -> None:
    process = setup.run_until_apt()
    os.killpg(process.pid, number)
    assert process.wait(10) == code
    assert not setup.policy.exists()


def test_what_a_killed_run_left_is_removed_by_the_next(setup: Setup) -> None:
    process = setup.run_until_apt()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    assert setup.policy.exists()
    setup.run(nothing_installed=False).wait(10)  # goes on to fail at the packages of a Python that is none
    assert not setup.policy.exists()


def test_somebody_elses_policy_stays(setup: Setup) -> None:
    setup.policy.write_text("#!/bin/sh\nexit 101\n")
    process = setup.run(nothing_installed=True)
    deadline = time.monotonic() + 10
    while not setup.started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert setup.policy.read_text() == "#!/bin/sh\nexit 101\n"
