"""pip in a virtual environment of ours: live progress from its output, and failures that say what to do next."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from control.engines.progress import Progress, lines, seconds_text, size_text
from control.errors import InstallError

#: User and password (or token) in an address.
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
_COLLECTING = re.compile(r"^(?:Collecting|Processing) (?P<what>[^\s=<>!~;\[]+)")
_DOWNLOADING = re.compile(r"^\s+(?:Downloading|Using cached) (?P<file>\S+)")
_PROGRESS = re.compile(r"^Progress (?P<done>\d+) of (?P<total>\d+)")

#: What pip prints when something outside of it is wrong, and what helps. The first match counts.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|Errno 28",
        "The disk is full. Free some space (or move the checkout to a larger disk) and run the same command again.",
    ),
    (
        r"DO NOT MATCH THE HASHES|do not match the hashes",
        "A package differs from the one in the lock file. Is a mirror or proxy changing it? "
        "If the index is right, renew the locks with `make lock`.",
    ),
    (
        r"name resolution|Name or service not known|NewConnectionError|ConnectTimeout|Connection refused"
        r"|Network is unreachable|ReadTimeout|ProxyError|SSLError",
        "The package index cannot be reached. Check the network, or name a reachable index or folder to pip "
        "(PIP_INDEX_URL, PIP_FIND_LINKS), then run the same command again.",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "The package index does not have it for this Python and processor. Name one that has it to pip "
        "(PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS), then run the same command again.",
    ),
)


def masked(text: str) -> str:
    """``text`` without the user and password of any address in it."""
    return _CREDENTIALS.sub("****@", text)


def explain(output: str) -> str:
    """What to do about a failed pip run, judged by its output."""
    for pattern, hint in _HINTS:
        if re.search(pattern, output):
            return hint
    return "Run the same command again; if it fails in the same place, the log named above has pip's whole output."


@dataclass
class PipOutput:
    """Reads pip's output line by line (with ``--progress-bar raw``) and words it for people. Pure."""

    #: How many packages are to come; 0 when unknown.
    expected: int = 0
    collected: int = 0
    current: str = ""
    installing: bool = False
    download: tuple[int, int] = (0, 0)

    def feed(self, line: str) -> None:
        """Take in one line."""
        if match := _PROGRESS.match(line):
            self.download = (int(match["done"]), int(match["total"]))
        elif match := _DOWNLOADING.match(line):
            self.current, self.download = match["file"].split("-")[0].replace("_", "-"), (0, 0)
        elif match := _COLLECTING.match(line):
            self.collected += 1
            self.current, self.download = match["what"].rsplit("/", 1)[-1].split("-cp")[0], (0, 0)
        elif line.startswith("Installing collected packages"):
            self.installing, self.current = True, ""

    @property
    def fraction(self) -> float | None:
        """How far the downloads are, by packages, or by bytes when there is only one package."""
        done, total = self.download
        if self.expected > 1:
            return min(1.0, self.collected / self.expected)
        return done / total if total else None

    @property
    def detail(self) -> str:
        """The current package, with its size while a large one is on its way."""
        if self.installing:
            return "unpacking"
        done, total = self.download
        size = f" {size_text(done)} of {size_text(total)}" if total > 5_000_000 else ""
        known = self.expected > 1 and self.current
        count = f"{min(self.collected, self.expected)} of {self.expected}: " if known else ""
        return f"{count}{self.current}{size}"


@dataclass(frozen=True)
class Pip:
    """pip of the virtual environment ``venv``; temporary files stay on the same disk, all output goes to ``log``."""

    venv: Path
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    #: The descriptor of a lock that pip holds too: when we are killed, it is free only once pip has ended.
    lock: int | None = None

    def using(self, environment: Mapping[str, str]) -> Pip:
        """The same pip with more of an environment; what is secret is said there, never in arguments."""
        return replace(self, environment={**self.environment, **environment})

    @property
    def _command(self) -> list[str]:
        return [str(self.venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]

    @property
    def _kept(self) -> tuple[int, ...]:
        return () if self.lock is None else (self.lock,)

    def resolves(self, arguments: Sequence[str], timeout: float = 600) -> bool:
        """Whether ``pip install --dry-run --no-deps`` with these arguments finds what it wants. Installs nothing."""
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--retries", "1"]
        command = [*self._command, "install", *options, *arguments]
        environment = self._environment()
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                pass_fds=self._kept,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        self._write(f"$ pip install --dry-run {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
        return done.returncode == 0

    def install(self, arguments: Sequence[str], title: str, progress: Progress, expected: int = 0) -> None:
        """``pip install`` with these arguments, telling ``progress`` all the while. Raises InstallError."""
        bar = ["--progress-bar", "raw"] if self._has_raw_progress() else ["--progress-bar", "off"]
        command = [*self._command, "install", *bar, *arguments]
        temporary = self.log.with_name(self.log.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            output, code = self._run(command, title, progress, expected, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if code != 0:
            errors = [line for line in output if line.lower().startswith("error")]
            reason = "".join((errors or output or [f"pip ended with {code}"])[-1:]).strip()
            raise InstallError(f"{title} failed: {reason} (log: {self.log})", explain("\n".join(output)))

    def _run(
        self, command: list[str], title: str, progress: Progress, expected: int, temporary: Path
    ) -> tuple[list[str], int]:
        state, last = PipOutput(expected), deque[str](maxlen=200)
        free_at_start, began = shutil.disk_usage(self.venv).free, time.monotonic()
        self._write(f"$ {' '.join(command)}\n")
        with subprocess.Popen(
            command, env=self._environment(temporary), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, pass_fds=self._kept,
        ) as process, self.log.open("a") as log:  # fmt: skip
            try:
                for line in map(masked, lines(process.stdout)):
                    if line:
                        state.feed(line)
                        if not line.startswith("Progress "):
                            last.append(line)
                            log.write(line)
                    detail = state.detail
                    if state.installing:
                        detail += f", {size_text(max(0, free_at_start - shutil.disk_usage(self.venv).free))} written"
                    progress(title, detail or seconds_text(time.monotonic() - began), state.fraction)
            except BaseException:  # Ctrl-C too: pip has its own session, so it does not hear it
                process.kill()
                raise
        return list(last), process.returncode

    def _environment(self, temporary: Path | None = None) -> dict[str, str]:
        environment = {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        environment.pop("PIP_REQUIRE_VIRTUALENV", None)
        return {**environment, "TMPDIR": str(temporary)} if temporary else environment

    def _has_raw_progress(self) -> bool:
        done = subprocess.run([*self._command, "--version"], capture_output=True, text=True)
        version = re.match(r"pip (\d+)", done.stdout)
        return version is not None and int(version[1]) >= 25

    def _write(self, text: str) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(masked(text))
