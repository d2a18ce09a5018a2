"""Every proof of ``make prove-balancing`` at a scale that fits into the suite."""

from __future__ import annotations

import pytest

from tests.balancing import changes, chaos, dns, hung
from tests.support.proof import Row

pytestmark = pytest.mark.slow


def kept(rows: list[Row]) -> None:
    assert [one for one in rows if not one["kept"]] == []


def test_hung_engines() -> None:
    kept(hung.proof(hung.Clock(slack=1, interval=0.2, metrics=0.2, window=1, idle=2, suspect=0.5, answer=1), seconds=3))


def test_dns() -> None:
    kept(dns.proof(times=2))


def test_chaos() -> None:
    kept(chaos.proof(chaos.SMALL))


def test_changes_of_the_fleet() -> None:
    kept(changes.proof(changes=15, streams=30))
