"""The Flask app of the control plane's page."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from jinja2 import StrictUndefined

from control.errors import ControlError
from control.web import actions, api, key_actions, pages
from control.web.actions import Actions, EngineAction, KeyAction, Operator
from control.web.audit import Audit
from control.web.engine_logs import EngineLogs
from control.web.jobs import Job
from control.web.keys import KeysAnswer
from control.web.live import Listeners
from control.web.login import Guard, protect
from control.web.pages import Shown
from control.web.poller import FleetView
from control.web.render import Renderer
from control.web.safety import Addresses, refuse_strangers, text_answer, with_safe_headers


class _Nobody:
    """Where nothing can be done."""

    def drain(self, backend: str) -> str:
        raise ControlError(f"Nothing can be done with {backend} here.")

    def resume(self, backend: str) -> str:
        raise ControlError(f"Nothing can be done with {backend} here.")

    def cancel(self, request: str) -> str:
        raise ControlError(f"Nothing can be done with {request} here.")

    def engine(self, backend: str, action: EngineAction, done: Callable[[Job], None]) -> str:
        raise ControlError(f"Nothing can be done with {backend} here.")

    def create_key(self, name: str, wishes: Mapping[str, Any]) -> tuple[str, str]:
        raise ControlError(f"No key {name} can be made here.")

    def change_key(self, name: str, action: KeyAction) -> tuple[str | None, str]:
        raise ControlError(f"Nothing can be done with {name} here.")


@dataclass(frozen=True)
class WebSettings:
    """``host`` (no brackets) and ``port`` that the server listens on, ``url`` where a proxy offers it; ``listeners``:
    event streams at the same time; ``heartbeat``: seconds between two signs of life on a quiet stream."""

    host: str = "127.0.0.1"
    port: int = 9090
    url: str | None = None
    listeners: int = 16
    heartbeat: float = 10.0
    guard: Guard = field(default_factory=lambda: Guard(secrets.token_hex(32)))
    audit_log: Path | None = None


def create_app(
    fleet: FleetView,
    settings: WebSettings,
    operator: Operator | None = None,
    logs: EngineLogs | None = None,
    keys: Callable[[float], KeysAnswer] = lambda _now: KeysAnswer(()),
) -> Flask:
    """Make the WSGI app. ``operator`` does what is asked for on the page, ``logs`` reads those of engines.

    ``keys`` tells the API keys at a moment (Unix seconds).
    """
    app = Flask(__name__, static_folder="static", template_folder="templates")
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.config["MAX_FORM_PARTS"] = 20
    addresses, audit = Addresses(settings.host, settings.port, settings.url), Audit(settings.audit_log)
    logs = logs or EngineLogs(lambda _id: Path("/nonexistent"), lambda _id, _lines: None)

    @app.before_request
    def _refuse() -> Response | None:
        return refuse_strangers(request, addresses)

    protect(app, settings.guard, addresses, audit)
    app.after_request(with_safe_headers)
    listeners = Listeners(settings.listeners)
    app.register_blueprint(
        pages.blueprint(Shown(fleet, Renderer(app.jinja_env), logs, keys, listeners, settings.heartbeat))
    )
    app.register_blueprint(api.blueprint(fleet, logs, keys))
    doing = Actions(operator or _Nobody(), audit)
    app.register_blueprint(actions.blueprint(doing, fleet))
    app.register_blueprint(key_actions.blueprint(doing))

    @app.errorhandler(404)
    def _not_found(_error: Exception) -> Response:
        return text_answer(404, "There is no such page. The fleet is at /.")

    @app.errorhandler(405)
    def _not_allowed(_error: Exception) -> Response:
        return text_answer(405, "This address cannot be used so. /api/openapi.json tells what there is.")

    @app.errorhandler(500)
    def _failed(_error: Exception) -> Response:
        return text_answer(500, "The page failed. The control plane's log says why; the edge is not affected.")

    return app
