"""Secrets: made here, shown once, and from then on known by their hash only."""

from __future__ import annotations

import hashlib
import re
import secrets

#: How every secret of ours begins; 256 bits in base64url follow.
PREFIX = "sk-"
#: What looks like a secret, ours or another maker's, and so is never repeated in a message.
_LOOKS_SECRET = re.compile(r"sk-[A-Za-z0-9_-]{8,}")


def new_secret() -> str:
    """A new secret: ``sk-`` and 43 characters, 256 bits from the system's generator."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """How keys.yaml has it. A hash without salt is enough: nobody guesses 256 bits."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def looks_secret(text: str) -> bool:
    """Whether there is something in ``text`` that should not be shown."""
    return _LOOKS_SECRET.search(text) is not None


def redact(text: str) -> str:
    """``text`` without what looks like a secret."""
    return _LOOKS_SECRET.sub("sk-...", text)
