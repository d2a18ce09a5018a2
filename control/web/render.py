"""Turns a snapshot into parts of HTML, once per snapshot and language however many tabs look."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment
from markupsafe import Markup

from control.web import texts
from control.web.spark import spark
from control.web.texts import Words
from control.web.view import Snapshot

#: Parts that are always there; rows of the two tables come and go.
FIXED_PARTS = ("part-summary", "part-edge", "part-machine", "part-leaving")


@dataclass(frozen=True)
class Rendered:
    """One snapshot in one language: HTML by the id of its element."""

    version: int
    parts: Mapping[str, Markup]

    @property
    def rows(self) -> list[str]:
        """Ids of the rows in order: when it changes, the tables must be sent whole."""
        return [key for key in self.parts if key not in FIXED_PARTS]

    def changes(self, before: Rendered) -> dict[str, str] | None:
        """The parts that differ from ``before``; None when rows came, went or moved."""
        if self.rows != before.rows:
            return None
        return {key: html for key, html in self.parts.items() if before.parts[key] != html}


class Renderer:
    """Renders with the app's Jinja environment (autoescape on) and keeps the newest result of each language."""

    def __init__(self, environment: Environment) -> None:
        environment.filters.update(exact=texts.exact, iso=texts.iso, clock=texts.clock, size=texts.size, spark=spark)
        self._environment = environment
        self._lock = threading.Lock()
        self._newest: dict[str, Rendered] = {}

    def parts(self, snapshot: Snapshot, words: Words) -> Rendered:
        """All parts of the page for this snapshot."""
        with self._lock:
            kept = self._newest.get(words.language)
            if kept is None or kept.version != snapshot.version:
                kept = Rendered(snapshot.version, self._render(snapshot, words))
                self._newest[words.language] = kept
            return kept

    def main(self, rendered: Rendered, words: Words) -> str:
        """Everything inside the page's ``main`` element, from parts already rendered."""
        return self._environment.get_template("fleet.html").render(w=words, **tables(rendered))

    def _render(self, snapshot: Snapshot, words: Words) -> dict[str, Markup]:
        macros = self._environment.get_template("parts.html").module
        parts: dict[str, Markup] = {
            "part-summary": macros.summary(snapshot, words),  # type: ignore[attr-defined]
            "part-edge": macros.edge(snapshot, words),  # type: ignore[attr-defined]
            "part-machine": macros.machine(snapshot, words),  # type: ignore[attr-defined]
            "part-leaving": macros.leaving(snapshot, words),  # type: ignore[attr-defined]
        }
        for backend in snapshot.backends:
            parts[f"backend-{backend.id}"] = macros.backend(backend, snapshot, words)  # type: ignore[attr-defined]
        for index, model in enumerate(snapshot.models):
            parts[f"model-{index}"] = macros.model(model, index, words)  # type: ignore[attr-defined]
        return parts


def tables(rendered: Rendered) -> dict[str, object]:
    """What ``fleet.html`` needs of the parts."""
    return {
        "parts": rendered.parts,
        "backend_rows": [html for key, html in rendered.parts.items() if key.startswith("backend-")],
        "model_rows": [html for key, html in rendered.parts.items() if key.startswith("model-")],
    }
