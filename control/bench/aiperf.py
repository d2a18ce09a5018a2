"""AIPerf, the load generator: installed on first use into a venv of its own, and told what to send.

Only what it wrote down of each request is used (control/bench/records.py), not its figures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from control.bench.prompts import Dataset
from control.bench.records import Request, read
from control.engines.install import PIP_LOCK, beside, check_disk, make_venv, only_one
from control.engines.pip import Pip
from control.engines.progress import Progress, silent
from control.errors import BenchRunError, InstallError
from control.paths import REPOSITORY, StatePaths

LOCK = REPOSITORY / "requirements" / "aiperf.lock"
_DISK = 1_500_000_000
_MARKER = "signalbox-runtime.json"
#: AIPerf wants a tokenizer even where tokens are counted by the engine. This one needs no download.
_TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}  # fmt: skip
_TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 10**9}
#: Its processes that send; each holds hundreds of streams, and the engines may need the cores.
_WORKERS = max(1, (os.cpu_count() or 1) // 4)
#: AIPerf takes an API key as an argument alone, which the whole machine sees. This adds it inside the process.
_KEY = "SIGNALBOX_BENCH_SENT_KEY"
_START = (
    "import os, sys; from aiperf.cli import app; "
    f"key = os.environ.pop('{_KEY}', ''); sys.argv = ['aiperf', *sys.argv[1:], *(['--api-key', key] if key else [])]; "
    "sys.exit(app())"
)
#: Seconds for it to write down what it has after it was told to end.
_END_SECONDS = 20.0


def version() -> str:
    """The release that the lock pins. Raises InstallError when it pins none."""
    pinned = re.search(r"^aiperf==(\S+)", LOCK.read_text(), re.MULTILINE)
    if pinned is None:
        raise InstallError(f"{LOCK} does not pin aiperf.", "Restore the file from the repository.")
    return pinned[1]


def install(paths: StatePaths, progress: Progress = silent) -> Path:
    """Make sure that AIPerf is there; returns the folder of its venv.

    Waits while another process installs it, and repeats what was interrupted. Raises InstallError with a hint.
    """
    folder = paths.runtimes / f"aiperf-{version()}"
    if _is_installed(folder):
        return folder
    with only_one(beside(folder, ".lock"), "Another process installs AIPerf; waiting for it", progress) as lock:
        if not _is_installed(folder):
            check_disk(folder.parent, _DISK, "the load generator AIPerf")
            shutil.rmtree(folder, ignore_errors=True)
            progress("Making a virtual environment for AIPerf", str(folder))
            make_venv(folder, lock)
            pip = Pip(folder, beside(folder, ".log"), lock=lock)
            pip.install(["--require-hashes", "-r", str(PIP_LOCK)], "Updating pip in it", progress)
            packages = len(re.findall(r"^[A-Za-z0-9]", LOCK.read_text(), re.MULTILINE))
            title = f"Installing AIPerf {version()}, the load generator"
            pip.install(["--no-deps", "--require-hashes", "-r", str(LOCK)], title, progress, expected=packages)
            tokenizer = folder / "tokenizer"
            tokenizer.mkdir(exist_ok=True)
            (tokenizer / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
            (tokenizer / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG))
            (folder / _MARKER).write_text(json.dumps({"made_from": _fingerprint()}))
    return folder


def _is_installed(folder: Path) -> bool:
    try:
        marker = json.loads((folder / _MARKER).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("made_from") == _fingerprint()


def _fingerprint() -> str:
    parts = [LOCK.read_bytes(), f"{sys.version_info[0]}.{sys.version_info[1]}".encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@dataclass(frozen=True)
class Load:
    """What AIPerf is told of one pass. ``urls`` are asked in turn; ``timeout`` is seconds; ``key`` may be empty.

    ``verify``: False where the certificate cannot fit, as with our own edge at a loopback address; or the file of the
    authority that signed it.
    """

    urls: Sequence[str]
    model: str
    in_flight: int | None  # None: as the timestamps say
    timeout: float
    key: str = ""
    verify: bool | Path = True

    def environment(self) -> dict[str, str]:
        """What AIPerf is told in its environment: nobody sees it in the list of processes."""
        told = {"AIPERF_RECORD_RAW_EXPORT_BATCH_SIZE": "1"}  # each request is written when it ends, not in blocks
        if self.key:
            told[_KEY] = self.key
        if isinstance(self.verify, Path):
            told["SSL_CERT_FILE"] = str(self.verify)
        elif not self.verify:
            told["AIPERF_HTTP_SSL_VERIFY"] = "false"
        return told


def command(folder: Path, load: Load, data: Dataset, file: Path, out: Path) -> list[str]:
    """The arguments of one pass. Never has the key: that is told in the environment."""
    kind = "multi_turn" if data.chat else "mooncake_trace"
    argv = [str(folder / "bin" / "python"), "-c", _START, "profile", "--model", load.model]
    for url in load.urls:
        argv += ["--url", url]
    argv += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
    argv += ["--tokenizer", str(folder / "tokenizer")]
    argv += ["--input-file", str(file), "--custom-dataset-type", kind, "--dataset-sampling-strategy", "sequential"]
    argv += ["--output-artifact-dir", str(out), "--export-level", "raw", "--ui", "none"]
    argv += ["--no-gpu-telemetry", "--no-server-metrics", "--workers-max", str(_WORKERS), "--record-processors", "1"]
    argv += ["--request-timeout-seconds", f"{load.timeout:g}", "--request-count", str(data.requests)]
    if data.scheduled:
        return [*argv, "--fixed-schedule", "--fixed-schedule-auto-offset"]
    argv += ["--no-fixed-schedule", "--concurrency", str(load.in_flight)]
    return [*argv, "--warmup-request-count", str(data.warm_up)] if data.warm_up else argv


class Running:
    """One AIPerf at work. ``poll`` gives what was finished since; ``requests`` has everything at the end."""

    def __init__(self, folder: Path, load: Load, data: Dataset, out: Path) -> None:
        out.mkdir(parents=True)
        file = out / "input.jsonl"
        file.write_text(data.write())
        self._out, self._log = out, out / "aiperf.out"
        self._read: dict[Path, int] = {}
        self.requests: list[Request] = []
        environment = {**os.environ, **load.environment()}
        environment.pop("HF_HUB_OFFLINE", None)  # with it AIPerf looks for a local tokenizer folder on a hub
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command(folder, load, data, file, out), env=environment, cwd=out, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,  # Ctrl-C is told to it by ``stop``
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """Its processes."""
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.Error:
            return []

    def poll(self) -> list[Request]:
        """Requests that ended since the last call, as they are written down."""
        new: list[Request] = []
        for file in sorted((self._out / "raw_records").glob("*.jsonl")):
            try:
                with file.open("rb") as stream:
                    stream.seek(self._read.get(file, 0))
                    block = stream.read()
            except FileNotFoundError:  # they were put together in this moment
                continue
            whole = block.rpartition(b"\n")[0]
            self._read[file] = self._read.get(file, 0) + len(whole) + bool(whole)
            new += read(whole.decode().splitlines())
        self.requests += new
        return new

    def finish(self) -> list[Request]:
        """All requests of the pass, after AIPerf has ended. Raises BenchRunError when it measured nothing."""
        self.poll()
        whole = self._out / "profile_export_raw.jsonl"
        if whole.is_file():
            with whole.open() as lines:
                self.requests = list(read(lines))
        if not self.requests:
            told = [line for line in self._log.read_text(errors="replace").splitlines() if "ERROR" in line]
            raise BenchRunError(
                f"The load generator measured nothing: {(told or ['it ended without a word'])[0].strip()[:300]}",
                f"Its whole output: {self._log}",
            )
        return self.requests

    def stop(self) -> None:
        """End it, and let it write down what it has. For Ctrl-C and errors."""
        if self.alive:
            self.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + _END_SECONDS
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.1)
        if self.alive:
            for one in self.tree():
                with contextlib.suppress(psutil.Error):
                    one.kill()
            self.process.wait()
