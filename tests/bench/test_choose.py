"""Choosing must stay cheap: the bound that docs/balancing.md names, in a real worker."""

from __future__ import annotations

from tests.bench import choose

LIMIT_US = 1_000


def test_choosing_among_a_thousand_backends_takes_less_than_a_millisecond() -> None:
    rows = choose.measure(rounds=60)
    assert len(rows) == 20
    slow = {name: row for name, row in rows.items() if not 0 < row["median_us"] < LIMIT_US}
    assert not slow
