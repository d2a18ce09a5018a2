"""Shared by all suites: a failing test shows the error logs of the edges that run; second tries are few."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    module = sys.modules.get("tests.support.edge")
    if report.failed and module is not None:
        for edge in module.Edge.running:
            report.sections.append((f"error.log of the edge at {edge.url}", edge.tail()))
    return report


#: ``make test`` gives a failed test a second try, since it measures times on a machine that may stall for a second. It
#: names each of them at the end (RERUN). More than this many are no accident, and fail the run.
SECOND_TRIES = 5
_second_tries: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures' own
        _second_tries.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    whole = not hasattr(session.config, "workerinput")  # not one of several processes, of which each sees its own
    if whole and len(_second_tries) > SECOND_TRIES:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\n{len(_second_tries)} tests needed a second try, {SECOND_TRIES} may.", file=sys.stderr)
