"""The one filter through which strings of fleet.yaml reach nginx.conf."""

from __future__ import annotations

import unicodedata

from control.errors import RenderError

#: nginx reads its configuration through a 4096-byte buffer and refuses a token that does not fit.
MAX_BYTES = 4000


def nginx_quote(value: str) -> str:
    """Return ``value`` as one double-quoted nginx token that nginx reads back byte for byte.

    Inside quotes nginx gives a meaning to ``"``, to the backslash and to ``$``. The first two are escaped; ``$`` starts
    a variable wherever a directive knows variables and has no escape, so it is refused.

    Raises RenderError for ``$``, control characters, text that is not valid Unicode, and tokens over ``MAX_BYTES``.
    """
    if not isinstance(value, str):
        raise RenderError(f"only text can be quoted for nginx, not {type(value).__name__}")
    for character in value:
        if character == "$":
            raise RenderError(f"{_shown(value)} holds a '$', which nginx would take for a variable", "Remove the '$'.")
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise RenderError(
                f"{_shown(value)} holds the control character U+{ord(character):04X}", "Remove that character."
            )
    token = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if len(token.encode()) > MAX_BYTES:
        raise RenderError(f"{_shown(value)} is longer than nginx can take ({MAX_BYTES} bytes)", "Use a shorter value.")
    return token


def _shown(value: str) -> str:
    """``value`` for a message: escaped, and cut after 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
