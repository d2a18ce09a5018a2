"""Choosing must stay cheap, in a real worker; docs/balancing.md says how cheap on a quiet machine."""

from __future__ import annotations

from tests.bench import choose

#: Machines that the suite runs on were seen at half their speed.
LIMIT_US = 2_000


def test_choosing_among_a_thousand_backends_costs_no_more_than_it_may() -> None:
    rows = choose.measure(rounds=60)
    assert len(rows) == 20
    slow = {name: row for name, row in rows.items() if not 0 < row["median_us"] < LIMIT_US}
    assert not slow
