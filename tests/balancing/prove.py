"""Balancing at length: ``make prove-balancing`` measures it and writes docs/figures/balancing.json.

Run it on a machine that does nothing else. ``python -m tests.balancing.prove NAME...`` measures only some proofs and
keeps the figures of the others. A further proof is one more entry here: a function without arguments that returns rows.
"""

from __future__ import annotations

import sys

from tests.balancing import changes, chaos, comparison, dns, hung, prefix, speed
from tests.support.proof import Chapter, Proof

PROOFS: dict[str, Proof] = {
    "chaos": chaos.proof,
    "calm": chaos.calm,
    "changes": changes.proof,
    "hung": hung.proof,
    "dns": dns.proof,
    "prefix": prefix.proof,
    "speed": speed.proof,
}
CHAPTER = Chapter("balancing", PROOFS, also={comparison.DOCUMENT: comparison.filled})

if __name__ == "__main__":
    sys.exit(CHAPTER.main())
