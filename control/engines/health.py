"""Is an engine ready? Asked over HTTP; and is its port free to begin with?"""

from __future__ import annotations

import errno
import http.client
import json
import socket

from control.edge.ports import holder

_ANSWER_LIMIT = 4 * 1024 * 1024


def unready(host: str, port: int, name: str, timeout: float = 2.0) -> str:
    """Why the engine at ``host``:``port`` does not serve ``name`` yet; empty when it does. ``timeout`` in seconds.

    ``/health`` must answer 200 and ``/v1/models`` must list the name: another program on that port is not our engine.
    """
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        status = _read(connection)[0]
        if status != 200:
            return f"/health answers {status}"
        connection.request("GET", "/v1/models")
        status, body = _read(connection)
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


def port_taken(host: str, port: int) -> str:
    """Who already listens where an engine should, in words; empty when the port is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return holder(port) if error.errno == errno.EADDRINUSE else f"nobody, but {error.strerror}"
    return ""
