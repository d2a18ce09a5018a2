"""Shared by all suites: a failing test shows the error logs of the edges that run."""

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
