"""Whether the help of a flag says that it will go, and what it says to use instead. Pure."""

from __future__ import annotations

import re

#: The help is about the flag itself, not about deprecated things that the flag allows or shows.
_IS = re.compile(
    r"^\W*deprecated\b"
    r"|(?<![\w-])(this (parameter|flag|argument|option|field|config)|-{2}[\w-]+`?) (is|has been) deprecated\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=\.)\s+")
_INSTEAD = re.compile(r"\binstead\b|\breplaced (by|with)\b|^(please )?use\b", re.IGNORECASE)
_TAG = re.compile(r"^\W*deprecated\W+", re.IGNORECASE)
_LONGEST = 200


def deprecation(text: str) -> tuple[bool, str]:
    """Does this help say that its flag is deprecated; and the sentence that says what to use instead, if one does."""
    plain = " ".join(text.split())
    found = _IS.search(plain)
    if found is None:
        return False, ""
    sentences = _SENTENCE_END.split(_TAG.sub("", plain[found.start() :]))
    return True, next((one for one in sentences if _INSTEAD.search(one) and len(one) <= _LONGEST), "")
