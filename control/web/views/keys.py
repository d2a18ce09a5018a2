"""API keys: who has one, what it may do, what it did lately; a new one is shown once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from control.fleet.schema import Limits
from control.web.keys import KeysAnswer
from control.web.texts import Words
from control.web.view import Snapshot
from control.web.views.view import Macros, Parts, by_words

#: So many are shown at once: the search finds the others.
MOST = 200
MAX_SEARCH = 100


@dataclass(frozen=True)
class Keys:
    """``/keys``: those whose name or models have ``text``."""

    book: Callable[[float], KeysAnswer] = field(compare=False)
    text: str = ""

    name = place = "keys"

    @classmethod
    def of(cls, book: Callable[[float], KeysAnswer], arguments: Mapping[str, str]) -> Keys:
        """From the arguments of an address."""
        return cls(book, arguments.get("q", "")[:MAX_SEARCH])

    @property
    def key(self) -> tuple[str, ...]:
        """See View."""
        return (self.name, self.text)

    def title(self, words: Words) -> str:
        """See View."""
        return words("nav_keys")

    def query(self) -> Mapping[str, str]:
        """See View."""
        return {"q": self.text} if self.text else {}

    def context(self) -> Mapping[str, Any]:
        """See View."""
        return {"limits": tuple(Limits.model_fields)}

    def parts(self, snapshot: Snapshot, words: Words, macros: Macros, shared: Macros) -> Parts:
        """See View."""
        told = self.book(snapshot.taken)
        found = [one for one in told.keys if by_words(self.text, (one.name, *one.models))]
        parts: Parts = {
            "part-summary": shared.summary(snapshot, words),
            "part-advice": macros.advice(told, len(found), MOST, words),
        }
        for one in found[:MOST]:
            used = snapshot.keys_used.get(one.name)
            parts[f"key-{one.name}"] = macros.key(one, used, snapshot, words)
        return parts
