"""Does it serve? For health checks of containers: ``python3 -m control.alive edge|control STATE_FOLDER [HOST:PORT]``.

Of the edge a worker has to answer GET /state on the admin listener, which says that its Lua runs and its dictionaries
are there; that needs no API key and no certificate. Of the control plane the page has to answer. The standard library
only: it runs every few seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from control.paths import StatePaths

DEFAULT_ADMIN = "127.0.0.1:9089"
#: Seconds for the answer.
TIMEOUT = 3.0


def edge(paths: StatePaths, address: str | None = None) -> str:
    """Why the edge does not serve; empty when it does.

    ``address``: its admin listener, by default the one that was last applied.
    """
    try:
        token = paths.admin_token.read_text().strip()
        status, text = _get(address or _applied(paths) or DEFAULT_ADMIN, "/state", {"Authorization": f"Bearer {token}"})
        generation = json.loads(text).get("generation")
    except (OSError, ValueError, AttributeError, HTTPException) as error:
        return f"the edge does not answer: {error}"
    return "" if status == 200 and generation else f"the edge answers {status}: {text[:200]}"


def control(paths: StatePaths, address: str | None = None) -> str:
    """Why the control plane does not serve; empty when it does. ``address``: its page, by default where it listens."""
    try:
        status, text = _get(address or paths.control_pid.read_text().splitlines()[1], "/api/fleet", {})
    except (OSError, ValueError, IndexError, HTTPException) as error:
        return f"the control plane does not answer: {error}"
    # 401: it asks for a login, so it serves
    return "" if status in (200, 401) else f"the control plane answers {status}: {text[:200]}"


CHECKS: Mapping[str, Callable[[StatePaths, str | None], str]] = {"edge": edge, "control": control}


def _get(address: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _applied(paths: StatePaths) -> str | None:
    try:
        return str(json.loads((paths.conf / "applied.json").read_text())["admin"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in CHECKS:
        sys.exit("usage: python3 -m control.alive edge|control STATE_FOLDER [HOST:PORT]")
    found = CHECKS[sys.argv[1]](StatePaths(Path(sys.argv[2])), sys.argv[3] if len(sys.argv) > 3 else None)
    sys.exit(found or 0)
