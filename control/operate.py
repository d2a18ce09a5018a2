"""What the page can do: to backends through the edge, to local engines through the supervisor, to containers by the
same commands that a person would type."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from control.edge.admin import AdminClient, EdgeRefused
from control.edge.site import client
from control.engines.local import Supervisor
from control.errors import ControlError, SignalboxError
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.keys import store
from control.keys.effect import effect
from control.paths import StatePaths
from control.up import logs
from control.web.actions import EngineAction, KeyAction
from control.web.jobs import Job, Jobs

#: The command that does it to a container.
_COMMANDS: Mapping[EngineAction, str] = {"start": "up", "stop": "down", "restart": "restart"}
_LOG_BYTES = 1024 * 1024
#: Seconds that the secret before a rotation still lets in.
GRACE = 86_400


class Operator:
    """Acts for the page. Every method returns what happened in words, and raises SignalboxError when it did not."""

    def __init__(
        self, loaded: Callable[[], LoadedFleet], paths: StatePaths, supervisor: Supervisor, jobs: Jobs
    ) -> None:
        self._loaded = loaded
        self._paths = paths
        self._supervisor = supervisor
        self._jobs = jobs

    def drain(self, backend: str) -> str:
        """Keep new requests from a backend, until ``resume``; what runs there goes on."""
        told = self._edge(lambda edge: edge.drain(backend))
        return f"{backend} gets no new requests; {told.get('in_flight', '?')} sequences still run there."

    def resume(self, backend: str) -> str:
        """Let requests in again."""
        self._edge(lambda edge: edge.resume(backend))
        return f"{backend} gets requests again."

    def cancel(self, request: str) -> str:
        """End a running request."""
        return str(self._edge(lambda edge: edge.cancel(request)).get("message", ""))

    def engine(self, backend: str, action: EngineAction, done: Callable[[Job], None]) -> str:
        """Start, stop or restart the engine of a backend; it is drained first. ``done`` hears the end of a command."""
        found = self._backend(backend)
        if not found.ours:
            raise ControlError(f"{backend} is not started here.", "Whoever runs that engine has to do it.")
        if self._in_container(found):
            file = str(self._loaded().path)
            command = [sys.executable, "-m", "control", "-f", file, _COMMANDS[action], backend]
            self._jobs.start(backend, action, command, done)
            return f"`signalbox {_COMMANDS[action]} {backend}` runs."
        self._supervisor.by_hand(backend, action)
        return f"{backend}: {action} asked for; requests that run there may finish."

    def create_key(self, name: str, wishes: Mapping[str, Any]) -> tuple[str, str]:
        """Make an API key as ``wishes`` (fields of ``store.Wishes``) say; its secret, and what came of it."""
        loaded = self._loaded()
        secret, found = store.create(loaded, name, store.Wishes(**wishes))
        return secret, effect(loaded, found)

    def change_key(self, name: str, action: KeyAction) -> tuple[str | None, str]:
        """Enable, disable, revoke or rotate a key; the new secret of a rotated one, and what came of it."""
        loaded, secret = self._loaded(), None
        if action == "rotate":
            secret, found = store.rotate(loaded, name, GRACE)
        elif action == "revoke":
            found = store.revoke(loaded, name)
        else:
            found = store.set_enabled(loaded, name, action == "enable")
        return secret, effect(loaded, found)

    def container_log(self, backend: str, lines: int) -> bytes | None:
        """The end of a container's output; None for an engine without one, whose log is a file."""
        found = self._backend(backend)
        if not self._in_container(found):
            return None
        output = BytesIO()
        logs(self._loaded().path, backend, False, lines, output)
        return output.getvalue()[-_LOG_BYTES:]

    def _in_container(self, backend: ResolvedBackend) -> bool:
        return backend.machine is not None and self._loaded().fleet.hosts[backend.machine].docker is not None

    def _backend(self, name: str) -> ResolvedBackend:
        found = next((one for one in resolve_backends(self._loaded()) if one.id == name), None)
        if found is None:
            raise ControlError(f"there is no backend {name!r} in fleet.yaml.", "The page of backends shows all.")
        return found

    def _edge(self, call: Callable[[AdminClient], Any]) -> Mapping[str, Any]:
        edge = client(self._paths, self._loaded().fleet.edge.admin)
        try:
            told: Mapping[str, Any] = call(edge)
            return told
        except EdgeRefused as error:
            raise SignalboxError(error.message, error.hint) from error
        finally:
            edge.close()
