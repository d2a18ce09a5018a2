"""What a page is to the renderer and to the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from markupsafe import Markup

from control.web.texts import Words
from control.web.view import Snapshot

Parts = dict[str, Markup]
#: The macros of ``NAME_parts.html`` and of ``shared.html``.
Macros = Any
#: Title, lines (name, newest value as text, points) and the upper end of their axis as text.
Figure = tuple[str, list[tuple[str, str, list[float | None]]], str]


class View(Protocol):
    """One page for one reader's choice of filters. ``name`` gives the templates, ``place`` its entry in the menu."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def key(self) -> tuple[str, ...]: ...  # equal: the same HTML, and the arguments of the stream

    def title(self, words: Words) -> str:
        """What stands in the browser's tab."""

    def query(self) -> Mapping[str, str]:
        """The arguments that make this view again."""

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """HTML by the id of its element. Ids that do not begin with ``part-`` are rows: they come, go and move."""

    def context(self) -> Mapping[str, Any]:
        """What the template needs beside the parts."""


def by_words(text: str, values: Iterable[str]) -> bool:
    """Whether every word of ``text`` stands in one of the values, in any case of letters."""
    joined = "\n".join(values).lower()
    return all(word in joined for word in text.lower().split())
