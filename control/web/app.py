"""The Flask app of the control plane's page: read-only, for this machine's own browser."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, Response, request
from jinja2 import StrictUndefined

from control.web.poller import FleetView
from control.web.render import Renderer
from control.web.safety import allowed_hosts, refuse_strangers, text_answer, with_safe_headers
from control.web.views import Listeners, blueprint


@dataclass(frozen=True)
class WebSettings:
    """``host`` (no brackets) and ``port`` that the server listens on; ``listeners``: event streams at the same time;
    ``heartbeat``: seconds between two signs of life on a quiet stream."""

    host: str = "127.0.0.1"
    port: int = 9090
    listeners: int = 16
    heartbeat: float = 10.0


def create_app(view: FleetView, settings: WebSettings) -> Flask:
    """Make the WSGI app: ``/`` the page, ``/api/fleet`` the same as JSON, ``/api/events`` the live stream."""
    app = Flask(__name__, static_folder="static", template_folder="templates")
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.json.sort_keys = False  # type: ignore[attr-defined]
    hosts = allowed_hosts(settings.host, settings.port)

    @app.before_request
    def _refuse() -> Response | None:
        return refuse_strangers(request, hosts)

    app.after_request(with_safe_headers)
    app.register_blueprint(blueprint(view, Renderer(app.jinja_env), Listeners(settings.listeners), settings.heartbeat))

    @app.errorhandler(404)
    def _not_found(_error: Exception) -> Response:
        return text_answer(404, "There is no such page. The fleet is at /.")

    @app.errorhandler(500)
    def _failed(_error: Exception) -> Response:
        return text_answer(500, "The page failed. The control plane's log says why; the edge is not affected.")

    return app
