"""The edge must read from a body what the engine will read from it, or refuse it for a reason that the docs name.

FUZZ_DOCUMENTS sets how many documents are tried (default 20,000), FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz import judge
from tests.fuzz.forms import Form

COUNT = int(os.environ.get("FUZZ_DOCUMENTS", "20000"))
TIMEOUT = 120 + COUNT // 500


def check(tally: judge.Tally) -> None:
    """Print the counts and fail on the first mismatches."""
    print(f"seed {tally.seed}: {tally.documents} documents, {tally.valid} valid, {dict(tally.refusals)}")
    shown = "\n".join(tally.mismatches[:5])
    assert not tally.mismatches, f"{len(tally.mismatches)} mismatches with FUZZ_SEED={tally.seed}:\n{shown}"


@pytest.mark.timeout(TIMEOUT)
def test_json_scan_reads_what_json_loads_reads(tmp_path: Path) -> None:
    tally = judge.fuzz_json(COUNT, judge.seed_from_environment(), tmp_path)
    check(tally)
    assert tally.valid > COUNT // 2
    if COUNT >= 20_000:  # the generator reaches every refusal
        assert {"duplicate_key", "too_many_keys", "too_deep", "invalid_json", "undecodable"} <= tally.refusals.keys()


@pytest.mark.timeout(TIMEOUT)
def test_multipart_reads_what_the_engine_reads(tmp_path: Path) -> None:
    tally = judge.fuzz_forms(COUNT, judge.seed_from_environment(), tmp_path)
    check(tally)
    assert tally.valid - sum(n for code, n in tally.refusals.items() if code[0] != "(") > COUNT // 4
    if COUNT >= 20_000:
        assert {"duplicate_key", "value_too_long", "invalid_multipart"} <= tally.refusals.keys()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"model":"a"}', judge.Answer("", {"model": judge.Found(9, 11, "string", b"b")})),
        (b'{"model":"a"}', judge.Answer("", {"model": judge.Found(8, 11, "string", b"a")})),
        (b'{"model":"a"}', judge.Answer("", {})),
        (b'{"model":"a"}', judge.Answer("duplicate_key")),
        (b'{"model":1,"model":1}', judge.Answer("", {"model": judge.Found(19, 19, "number", b"")})),
        (b"[]", judge.Answer("")),
    ],
)
def test_the_judge_sees_wrong_answers(body: bytes, answer: judge.Answer) -> None:
    tally = judge.Tally(seed=0)
    judge.judge_json(body, answer, tally)
    assert len(tally.mismatches) == 1


def test_the_judge_sees_wrong_forms() -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--B--'
    form = Form(b"multipart/form-data; boundary=B", body, honest=False)
    assert judge.form_fault(form, judge.Answer(""), [("model", "a")])
    assert judge.form_fault(form, judge.Answer(""), [("model", "a"), ("model", "b")])
    assert not judge.form_fault(form, judge.Answer(""), [("x", "a")])
