"""Edges that ask for API keys."""

from __future__ import annotations

from typing import Any

import yaml

from control.keys.secrets import hash_of
from tests.support.edge import Edge


def secret(name: str) -> str:
    """The secret of the key of this name."""
    return f"sk-test-{name}-0123456789"


def bearer(name: str) -> dict[str, str]:
    """The header of a client that has this key."""
    return {"Authorization": f"Bearer {secret(name)}"}


def keyed(fleet: dict[str, Any], **keys: dict[str, Any]) -> Edge:
    """An edge with these keys: name → what keys.yaml says of it besides its hash. Not started yet."""
    edge = Edge({**fleet, "edge": {**fleet.get("edge", {}), "keys": "keys.yaml"}})
    content = {name: {"hash": hash_of(secret(name)), **settings} for name, settings in keys.items()}
    (edge.folder / "keys.yaml").write_text(yaml.safe_dump({"keys": content}))
    return edge
