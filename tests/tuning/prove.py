"""Tuning at length: ``make prove-tuning`` asks vLLM itself, and writes docs/figures/tuning.json.

Run it on a machine that does nothing else. ``python -m tests.tuning.prove NAME...`` measures only some proofs and keeps
the figures of the others. A further proof is one more entry here: a function without arguments that returns rows.
"""

from __future__ import annotations

import sys

from tests.support.net import REPOSITORY
from tests.support.proof import Chapter, Proof
from tests.tuning import choices, live

PROOFS: dict[str, Proof] = {"verdicts": choices.proof, "live": live.proof}
CHAPTER = Chapter("tuning", PROOFS, REPOSITORY / "docs" / "tuning.md")

if __name__ == "__main__":
    sys.exit(CHAPTER.main())
