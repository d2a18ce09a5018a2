"""What the control plane knows, asked of its page: for the commands that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

from control.edge.ports import split
from control.edge.site import state_paths
from control.fleet.load import LoadedFleet


@dataclass(frozen=True)
class Address:
    """Where this machine reaches one of its own listeners."""

    listen: str
    tls: bool = False

    @property
    def url(self) -> str:
        """Scheme, host and port; an address that listens everywhere is reached over loopback."""
        host, port = split(self.listen)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{shown}:{port}"


def snapshot(loaded: LoadedFleet) -> dict[str, Any] | None:
    """What the page shows, as JSON (``control.web.view.Snapshot``); None when the control plane does not answer."""
    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy stands between us and ourselves
            if token := _token(loaded):
                session.headers["Authorization"] = f"Bearer {token}"
            answer = session.get(f"{Address(loaded.fleet.control.listen).url}/api/fleet", timeout=5)
            answer.raise_for_status()
            content: dict[str, Any] = answer.json()
            return content
    except (requests.RequestException, ValueError):
        return None


def _token(loaded: LoadedFleet) -> str:
    """What the page knows programs of this machine by; empty when this account may not read it."""
    try:
        return state_paths(loaded).page_token.read_text().strip()
    except OSError:
        return ""
