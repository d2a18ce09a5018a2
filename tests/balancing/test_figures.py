"""The documents say what docs/figures/*.json say, and every promise was kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.balancing.prove import CHAPTER as BALANCING
from tests.edge.prove import CHAPTER as EDGE
from tests.front_desk.prove import CHAPTER as FRONT_DESK
from tests.support import proof
from tests.support.proof import Chapter, row
from tests.tuning.prove import CHAPTER as TUNING

chapters = pytest.mark.parametrize("chapter", [EDGE, BALANCING, FRONT_DESK, TUNING], ids=lambda chapter: chapter.name)


@chapters
def test_the_table_says_what_was_measured(chapter: Chapter) -> None:
    for path, text in chapter.documents(chapter.figures()).items():
        assert text == path.read_text(), f"run: make prove-{chapter.name}"


@chapters
def test_every_promise_was_measured_and_kept(chapter: Chapter) -> None:
    rows = chapter.figures()["rows"]
    assert {one["proof"] for one in rows} == set(chapter.proofs)
    assert [one["promise"] for one in rows if not one["kept"]] == []


def test_a_run_of_one_proof_keeps_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "FIGURES", tmp_path)
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- prove-x: begin -->\n<!-- prove-x: end -->\nafter\n")
    chapter = Chapter("x", {"one": lambda: [row("slow", 5, 4, "s", "")], "two": lambda: [row("many", 5, 4, "", "",
                      at_least=True)]}, document)  # fmt: skip
    assert chapter.main(["two"]) == 0
    assert chapter.main(["one"]) == 1
    assert chapter.main(["three"]) == 2
    assert [one["promise"] for one in chapter.figures()["rows"]] == ["slow", "many"]
    assert list(json.loads((tmp_path / "x.json").read_text())["runs"]) == ["one", "two"]
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "| slow | 5 s | 4 |  | **not kept** |" in text
    assert "| many | 5  | ≥ 4 |  | kept |" in text
    without = dataclasses.replace(chapter, proofs={"two": chapter.proofs["two"]})
    assert without.main([]) == 0 and [one["proof"] for one in without.figures()["rows"]] == ["two"]
