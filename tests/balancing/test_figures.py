"""docs/reliability.md and docs/performance.md say what docs/figures/*.json say, and every promise was kept."""

from __future__ import annotations

import pytest

from tests.balancing.prove import CHAPTER as BALANCING
from tests.edge.prove import CHAPTER as EDGE
from tests.support.proof import Chapter

chapters = pytest.mark.parametrize("chapter", [EDGE, BALANCING], ids=lambda chapter: chapter.name)


@chapters
def test_the_table_says_what_was_measured(chapter: Chapter) -> None:
    for path, text in chapter.documents(chapter.figures()).items():
        assert text == path.read_text(), f"run: make prove-{chapter.name}"


@chapters
def test_every_promise_was_measured_and_kept(chapter: Chapter) -> None:
    rows = chapter.figures()["rows"]
    assert {one["proof"] for one in rows} == set(chapter.proofs)
    assert [one["promise"] for one in rows if not one["kept"]] == []
