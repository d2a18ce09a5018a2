"""Turns a snapshot into parts of HTML, once per snapshot, page and language however many tabs look."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from jinja2 import Environment
from markupsafe import Markup

from control.web.formats import FILTERS
from control.web.history import BINS
from control.web.plots import lines
from control.web.texts import Words
from control.web.view import Snapshot
from control.web.views.view import View

#: Results that are kept: each reader may filter differently.
MOST_KEPT = 64


@dataclass(frozen=True)
class Rendered:
    """One snapshot in one language: HTML by the id of its element."""

    version: int
    parts: Mapping[str, Markup]

    @property
    def rows(self) -> list[str]:
        """Ids of the rows in order: when it changes, the page must be sent whole."""
        return [key for key in self.parts if not key.startswith("part-")]

    def changes(self, before: Rendered) -> dict[str, str] | None:
        """The parts that differ from ``before``; None when rows or parts came, went or moved."""
        if list(self.parts) != list(before.parts):
            return None
        return {key: html for key, html in self.parts.items() if before.parts[key] != html}

    def context(self) -> dict[str, object]:
        """What the templates need of it."""
        return {"parts": self.parts, "rows": [self.parts[key] for key in self.rows]}


class Renderer:
    """Renders with the app's Jinja environment (autoescape on) and keeps the newest results."""

    def __init__(self, environment: Environment) -> None:
        environment.filters.update(FILTERS, plot=partial(lines, length=BINS))
        self._environment = environment
        self._lock = threading.Lock()
        self._version = -1
        self._kept: dict[tuple[str, ...], Rendered] = {}

    def parts(self, view: View, snapshot: Snapshot, words: Words) -> Rendered:
        """All parts of a page for this snapshot."""
        key = (words.language, *view.key)
        with self._lock:
            if snapshot.version > self._version or len(self._kept) > MOST_KEPT:
                self._version, self._kept = snapshot.version, {}
            kept = self._kept.get(key)
        if kept is not None and kept.version == snapshot.version:
            return kept
        macros = self._environment.get_template(f"{view.name}_parts.html").module
        shared = self._environment.get_template("shared.html").module
        rendered = Rendered(snapshot.version, view.parts(snapshot, words, macros, shared))
        with self._lock:
            if snapshot.version == self._version:
                self._kept[key] = rendered
        return rendered

    def main(self, view: View, rendered: Rendered, words: Words) -> str:
        """Everything inside the page's ``main`` element, from parts already rendered."""
        template = self._environment.get_template(f"{view.name}.html")
        return template.render(w=words, view=view, **view.context(), **rendered.context())
