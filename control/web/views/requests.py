"""Requests: those that run, which can be ended, and those that ended last, with where their time went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.web.texts import Words
from control.web.view import Snapshot
from control.web.views.view import Macros, Parts


class Requests:
    """``/requests``."""

    name = place = "requests"
    key = ("requests",)

    def title(self, words: Words) -> str:
        """See View."""
        return words("nav_requests")

    def query(self) -> Mapping[str, str]:
        """See View."""
        return {}

    def context(self) -> Mapping[str, Any]:
        """See View."""
        return {}

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """See View."""
        return {
            "part-summary": shared.summary(snapshot, words),
            "part-running": macros.running(snapshot, words),
            "part-finished": macros.finished(snapshot, words),
        }
