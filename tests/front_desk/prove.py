"""The front desk at length: ``make prove-front-desk`` measures it and writes docs/figures/front-desk.json.

Run it on a machine that does nothing else. ``python -m tests.front_desk.prove NAME...`` measures only some proofs and
keeps the figures of the others.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.front_desk import kill, limits, order, overload, redis_cost, shares
from tests.front_desk.where import Where, in_redis
from tests.support.proof import Chapter, Proof, Row


def _limits(where: Where) -> list[Row]:
    return limits.proof(replace(limits.FULL, where=where))


def _two_edges(where: Where) -> list[Row]:
    return [{**one, "promise": f"{one['promise']}, in two edges"} for one in order.proof(where, edges=2)]


PROOFS: dict[str, Proof] = {
    "order": order.proof,
    "shares": shares.proof,
    "limits": limits.proof,
    "order-redis": in_redis(order.proof),
    "order-edges": in_redis(_two_edges),
    "shares-redis": in_redis(lambda where: shares.proof(where=where)),
    "limits-redis": in_redis(_limits),
    "kill": kill.proof,
    "redis": redis_cost.proof,
    "overload": overload.proof,
}
CHAPTER = Chapter("front-desk", PROOFS)

if __name__ == "__main__":
    sys.exit(CHAPTER.main())
