"""Client of the edge's admin listener: state, metrics, and the fleet that it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from control.errors import EdgeError

#: Seconds to connect and to wait for an answer: the listener is on this machine, its answers are made in memory.
TIMEOUTS = (1.0, 5.0)


class EdgeUnreachable(EdgeError):
    """Nobody answers at the admin address, or not in time."""


class EdgeRefused(EdgeError):
    """The edge answered and said no; ``message`` holds its reason."""


class AdminClient:
    """Speaks to the admin listener at ``address`` ("127.0.0.1:9089") with the bearer ``token``."""

    def __init__(self, address: str, token: str, timeouts: tuple[float, float] = TIMEOUTS) -> None:
        self._base = f"http://{address}"
        self._timeouts = timeouts
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment must not see the token
        self._session.headers["Authorization"] = f"Bearer {token}"

    def state(self) -> dict[str, Any]:
        """``GET /state``, see docs/architecture.md. Raises EdgeUnreachable, EdgeRefused."""
        return self._object(self._call("GET", "/state"))

    def put_fleet(self, text: str) -> int:
        """``PUT /fleet`` with the text of a fleet.json; returns the version now in force.

        Raises EdgeRefused with the edge's reason, having changed nothing, or EdgeUnreachable.
        """
        return int(self._object(self._call("PUT", "/fleet", text.encode()))["version"])

    def hold(self, backend: str) -> None:
        """Keep new requests from a backend for 30 s, as the control plane's own wish. Raises as ``state`` does."""
        self._call("POST", f"/backends/{backend}/drain?by=control")

    def release(self, backend: str) -> None:
        """Take that wish back. Raises as ``state`` does."""
        self._call("POST", f"/backends/{backend}/resume?by=control")

    def drain(self, backend: str) -> dict[str, Any]:
        """Keep new requests from a backend until ``resume``, as an operator's wish. Raises as ``state`` does."""
        return self._object(self._call("POST", f"/backends/{quote(backend, safe='')}/drain"))

    def resume(self, backend: str) -> dict[str, Any]:
        """Take that wish back. Raises as ``state`` does."""
        return self._object(self._call("POST", f"/backends/{quote(backend, safe='')}/resume"))

    def running(self) -> dict[str, Any]:
        """``GET /requests``: those that run. Raises as ``state`` does."""
        return self._object(self._call("GET", "/requests"))

    def cancel(self, request: str) -> dict[str, Any]:
        """End a running request; says what it was doing. Raises EdgeRefused when none has this id."""
        return self._object(self._call("DELETE", f"/requests/{quote(request, safe='')}"))

    def put_keys(self, text: str) -> int:
        """``PUT /keys`` with the text of a keys.json; returns the version now in force.

        Raises EdgeRefused with the edge's reason, having changed nothing, or EdgeUnreachable.
        """
        return int(self._object(self._call("PUT", "/keys", text.encode()))["version"])

    def metrics(self) -> str:
        """``GET /metrics``: Prometheus text. Raises EdgeUnreachable, EdgeRefused."""
        return self._call("GET", "/metrics").text

    def close(self) -> None:
        """Close idle connections."""
        self._session.close()

    def _call(self, method: str, path: str, body: bytes | None = None) -> requests.Response:
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            answer = self._session.request(
                method, self._base + path, data=body, headers=headers, timeout=self._timeouts, allow_redirects=False
            )
        except requests.RequestException as error:
            raise EdgeUnreachable(
                f"the edge's admin listener at {self._base} does not answer: {_cause(error)}",
                "Is it running? `signalbox status` tells; edge/logs/error.log in the state folder may say why not.",
            ) from error
        if answer.status_code == 401:
            raise EdgeRefused(
                f"the edge at {self._base} refuses our token",
                "Another fleet's edge may be listening there. Give edge.admin in fleet.yaml another port.",
            )
        if answer.status_code != 200:
            raise EdgeRefused(f"the edge refused {method} {path} ({answer.status_code}): {_reason(answer)}")
        return answer

    def _object(self, answer: requests.Response) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError as error:
            raise EdgeRefused(f"what answers at {self._base} is no edge: {answer.text[:100]!r}") from error
        if not isinstance(content, dict):
            raise EdgeRefused(f"what answers at {self._base} is no edge: {answer.text[:100]!r}")
        return content


def read_token(path: Path) -> str:
    """The admin token that ``prepare`` made. Raises EdgeError when it is missing or not ours to read."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise EdgeError(f"there is no {path}: the edge was never started from here", "Run `signalbox start`.") from None
    except PermissionError:
        raise EdgeError(
            f"{path} may not be read by this user", "Use the account (or sudo) that started the edge."
        ) from None


def _cause(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return "time-out"
    inner: object = error.args[0] if error.args else error
    reason = getattr(inner, "reason", inner)
    return str(reason).rpartition(": ")[2] or str(error)


def _reason(answer: requests.Response) -> str:
    """The reason in an error body of ours, else the body's start."""
    try:
        content = answer.json()
    except ValueError:
        return answer.text[:300].strip()
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or content)[:2000]
