"""What can be done on the page. Everything that is done, or was refused, stands in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args

from flask import Blueprint, abort, flash, g, jsonify, redirect, request
from werkzeug.wrappers import Response

from control.errors import SignalboxError
from control.web.audit import Audit
from control.web.jobs import Job
from control.web.login import own_path
from control.web.poller import FleetView

EngineAction = Literal["start", "stop", "restart"]
ENGINE_ACTIONS: tuple[EngineAction, ...] = get_args(EngineAction)
KeyAction = Literal["enable", "disable", "rotate", "revoke"]
KEY_ACTIONS: tuple[KeyAction, ...] = get_args(KeyAction)
#: Everything that can be done to a backend.
BACKEND_ACTIONS = ("drain", "resume", *ENGINE_ACTIONS)


class Operator(Protocol):
    """Who does it (``control.operate.Operator``). Methods return what happened, and raise SignalboxError."""

    def drain(self, backend: str) -> str: ...
    def resume(self, backend: str) -> str: ...
    def cancel(self, request: str) -> str: ...
    def engine(self, backend: str, action: EngineAction, done: Callable[[Job], None]) -> str: ...
    def create_key(self, name: str, wishes: Mapping[str, Any]) -> tuple[str, str]: ...
    def change_key(self, name: str, action: KeyAction) -> tuple[str | None, str]: ...


class Actions:
    """Does what was asked for, and writes it down with who asked."""

    def __init__(self, operator: Operator, audit: Audit) -> None:
        self._operator = operator
        self._audit = audit

    def backend(self, id_: str, action: str) -> str:
        """One of BACKEND_ACTIONS. Raises SignalboxError when it was refused."""
        if action == "drain":
            return self._noted("drain", id_, lambda: self._operator.drain(id_))
        if action == "resume":
            return self._noted("resume", id_, lambda: self._operator.resume(id_))
        engine = next(one for one in ENGINE_ACTIONS if one == action)
        who, client = g.who, request.remote_addr or ""

        def done(job: Job) -> None:
            lines = job.output.strip().splitlines()
            self._audit.note(who, client, f"{action} ended", id_, f"{job.state}: {lines[-1] if lines else ''}")

        return self._noted(action, id_, lambda: self._operator.engine(id_, engine, done))

    def cancel(self, id_: str) -> str:
        """End a running request. Raises SignalboxError when there is none."""
        return self._noted("cancel", id_, lambda: self._operator.cancel(id_))

    def create_key(self, name: str, wishes: Mapping[str, Any]) -> tuple[str, str]:
        """Make an API key; its secret, which stands nowhere else. Raises SignalboxError when it was refused."""
        secrets: list[str] = []

        def make() -> str:
            secret, told = self._operator.create_key(name, wishes)
            secrets.append(secret)
            return told

        told = self._noted("create key", name, make)
        return secrets[0], told

    def change_key(self, name: str, action: str) -> tuple[str | None, str]:
        """One of KEY_ACTIONS. Raises SignalboxError when it was refused."""
        wanted = next(one for one in KEY_ACTIONS if one == action)
        secrets: list[str | None] = []

        def change() -> str:
            secret, told = self._operator.change_key(name, wanted)
            secrets.append(secret)
            return told

        told = self._noted(f"{action} key", name, change)
        return secrets[0], told

    def _noted(self, what: str, target: str, do: Callable[[], str]) -> str:
        who, client = g.who, request.remote_addr or ""
        try:
            told = do()
        except SignalboxError as error:
            self._audit.note(who, client, what, target, f"refused: {error.message}")
            raise
        self._audit.note(who, client, what, target, told or "ok")
        return told


def blueprint(actions: Actions, fleet: FleetView) -> Blueprint:
    """For forms, which come back to the page; and for programs, which get JSON."""
    pages = Blueprint("actions", __name__)

    def returned(do: Callable[[], str]) -> Response:
        try:
            flash(do(), "done")
            fleet.after()
        except SignalboxError as error:
            flash(f"{error.message} {error.hint}".strip(), "failed")
        return redirect(own_path(request.form.get("next", "/")), 303)

    def told(do: Callable[[], str]) -> Response | tuple[Response, int]:
        try:
            return jsonify({"result": do()})
        except SignalboxError as error:
            return jsonify({"error": {"message": error.message, "hint": error.hint}}), 409

    @pages.post("/backends/<id_>/<action>")
    def backend(id_: str, action: str) -> Response:
        known(action, BACKEND_ACTIONS)
        return returned(lambda: actions.backend(id_, action))

    @pages.post("/requests/<id_>/cancel")
    def cancel(id_: str) -> Response:
        return returned(lambda: actions.cancel(id_))

    @pages.post("/api/backends/<id_>/<action>")
    def api_backend(id_: str, action: str) -> Response | tuple[Response, int]:
        known(action, BACKEND_ACTIONS)
        return told(lambda: actions.backend(id_, action))

    @pages.delete("/api/requests/<id_>")
    def api_cancel(id_: str) -> Response | tuple[Response, int]:
        return told(lambda: actions.cancel(id_))

    return pages


def known(action: str, actions: tuple[str, ...]) -> None:
    """Anything else is no address of ours."""
    if action not in actions:
        abort(404)
