"""docs/reliability.md says what docs/figures/edge.json says, and every promise was kept."""

from __future__ import annotations

from tests.edge.prove import DOCUMENT, PROOFS, figures, filled


def test_the_table_says_what_was_measured() -> None:
    text = DOCUMENT.read_text()
    assert filled(text, figures()) == text, "run: make prove-edge"


def test_every_promise_was_measured_and_kept() -> None:
    rows = figures()["rows"]
    assert len(rows) >= len(PROOFS)
    assert [one["promise"] for one in rows if not one["kept"]] == []
