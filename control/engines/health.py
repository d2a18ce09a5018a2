"""Is an engine ready? Asked over HTTP; and is its port free to begin with?"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from control.edge.ports import holder
from control.engines.args import EngineSpec
from control.errors import EngineError

_ANSWER_LIMIT = 4 * 1024 * 1024


def unready(spec: EngineSpec, timeout: float = 2.0) -> str:
    """Why the engine of ``spec`` does not serve its model yet; empty when it does. ``timeout`` in seconds.

    ``/health`` must answer 200 and ``/v1/models`` must list the name: another program on that port is not our engine.
    """
    name = spec.model
    try:
        key = read_key(spec)
    except EngineError as error:
        return f"{error.message} {error.hint}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection = http.client.HTTPConnection(spec.host, spec.port, timeout=timeout)
    try:
        connection.request("GET", "/health", headers=headers)
        status = _read(connection)[0]
        if status != 200:
            return f"/health answers {status}"
        connection.request("GET", "/v1/models", headers=headers)
        status, body = _read(connection)
        if status == 401:
            wrong = "another key than key_file or key_env gives" if key else "a key: name it by key_file or key_env"
            return f"/v1/models answers 401: the engine wants {wrong}"
        if status != 200:
            return f"/v1/models answers {status}"
        listed = [entry["id"] for entry in json.loads(body)["data"]]
        return "" if name in listed else f"/v1/models lists {', '.join(map(str, listed[:5])) or 'nothing'}, not {name}"
    except ConnectionRefusedError:
        return "does not listen yet"
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer: {error}"
    except (ValueError, KeyError, TypeError):
        return "/v1/models answers something that is not a model list"
    finally:
        connection.close()


def listed(spec: EngineSpec, timeout: float = 2.0) -> Mapping[str, Any]:
    """The entry of the engine's model in /v1/models; empty when there is none, or no answer. ``timeout`` in seconds."""
    try:
        entries = json.loads(_get(spec, "/v1/models", timeout))["data"]
        return next((entry for entry in entries if entry["id"] == spec.model), {})
    except (ValueError, KeyError, TypeError):
        return {}


def metrics(spec: EngineSpec, timeout: float = 2.0) -> str:
    """The engine's /metrics; empty when it has none. ``timeout`` in seconds."""
    return _get(spec, "/metrics", timeout).decode(errors="replace")


def _get(spec: EngineSpec, path: str, timeout: float) -> bytes:
    """The body of a 200 answer; empty for any other, and for none."""
    connection = http.client.HTTPConnection(spec.host, spec.port, timeout=timeout)
    try:
        key = read_key(spec)
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        status, body = _read(connection)
        return body if status == 200 else b""
    except (EngineError, OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


class HasKey(Protocol):
    """Whatever says where an engine's key is: ``EngineSpec``, ``ResolvedBackend``."""

    @property
    def key_file(self) -> Path | None: ...
    @property
    def key_env(self) -> str | None: ...


def read_key(spec: HasKey) -> str:
    """The engine's API key, read as the edge does; empty when it has none. Raises EngineError, without the key."""
    if spec.key_env is not None:
        place, text = f"The variable {spec.key_env}", os.environ.get(spec.key_env, "")
    elif spec.key_file is not None:
        place = f"The key file {spec.key_file}"
        try:
            with spec.key_file.open(errors="replace") as file:
                text = file.readline(64 * 1024)
        except OSError as error:
            raise EngineError(f"{place} cannot be read: {error.strerror}.", "Correct its permissions.") from error
    else:
        return ""
    key = text.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise EngineError(f"{place} holds no key that a header can carry.", "Put the key alone on its first line.")
    return key


def _read(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    answer = connection.getresponse()
    return answer.status, answer.read(_ANSWER_LIMIT)


def listens(host: str, port: int) -> bool:
    """Whether anything accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def cannot_listen(spec: EngineSpec) -> tuple[bool, str]:
    """Why the engine could not listen at its address, and what to do; empty when it could.

    The first value says whether it is because somebody else listens there.
    """
    host, port = spec.host, spec.port
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = f"Stop it, or give {spec.id} another port in fleet.yaml."
            return True, f"port {port} is taken by {holder(port)}. {other}"
        if error.errno == errno.EADDRNOTAVAIL:
            return False, f"{host} is not an address of this machine. Correct the host's address in fleet.yaml."
        if error.errno in (errno.EACCES, errno.EPERM):
            return False, f"this user may not listen on port {port}. Give {spec.id} a port from 1024 on in fleet.yaml."
        return False, f"{host}:{port} cannot be listened on: {error.strerror}. Correct it in fleet.yaml."
    return False, ""
