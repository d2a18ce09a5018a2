"""The pages, as HTML that is whole without JavaScript, and the stream behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, g, render_template, request, url_for

from control.web.engine_logs import EngineLogs
from control.web.keys import KeysAnswer
from control.web.live import Gone, Listeners, stream
from control.web.poller import FleetView
from control.web.render import Renderer
from control.web.safety import text_answer
from control.web.texts import LANGUAGE_COOKIE, LANGUAGES, Words, language
from control.web.view import Snapshot
from control.web.views.backend import Backend
from control.web.views.backends import Backends
from control.web.views.keys import Keys
from control.web.views.overview import Overview
from control.web.views.requests import Requests
from control.web.views.view import View

#: The menu: name of the view, its address.
NAVIGATION = (("overview", "pages.overview"), ("backends", "pages.backends"), ("requests", "pages.requests"),
              ("keys", "pages.keys"))  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What the pages look at."""

    fleet: FleetView
    renderer: Renderer
    logs: EngineLogs
    keys: Callable[[float], KeysAnswer]
    listeners: Listeners
    heartbeat: float


def blueprint(shown: Shown) -> Blueprint:
    """The routes."""
    pages = Blueprint("pages", __name__)

    @pages.get("/")
    def overview() -> Response:
        return _page(shown, Overview(), shown.fleet.snapshot, url_for("api.overview"))

    @pages.get("/backends")
    def backends() -> Response:
        return _page(shown, Backends.of(request.args), shown.fleet.snapshot, url_for("api.fleet"))

    @pages.get("/backends/<id_>")
    def backend(id_: str) -> Response:
        snapshot = shown.fleet.snapshot
        if snapshot.backend(id_) is None:
            abort(404)
        view = Backend.of(id_, shown.logs, request.args, fresh=True)
        return _page(shown, view, snapshot, url_for("api.backend", id_=id_))

    @pages.get("/requests")
    def requests() -> Response:
        return _page(shown, Requests(), shown.fleet.with_requests(), url_for("api.requests"))

    @pages.get("/keys")
    def keys() -> Response:
        return _page(shown, Keys.of(shown.keys, request.args), shown.fleet.snapshot, url_for("api.keys"))

    @pages.get("/api/events")
    def events() -> Response:
        view = _view(shown, request.args)
        if view is None:
            return text_answer(404, "There is no such page to follow.")
        if request.method == "HEAD":
            return Response(content_type="text/event-stream; charset=utf-8")
        leave = shown.listeners.enter()
        if leave is None:
            answer = text_answer(503, "Too many pages are watching. Close a tab, or reload this one by hand.")
            answer.headers["Retry-After"] = "5"
            return answer
        left: Gone = request.environ.get("waitress.client_disconnected", lambda: False)
        welcome: Callable[[], bool] = g.welcome
        following = stream(
            shown.fleet, shown.renderer, view, Words(language()), lambda: left() or not welcome(), shown.heartbeat
        )
        answer = Response(following, content_type="text/event-stream; charset=utf-8")
        answer.call_on_close(leave)  # not the generator's finally: one that never started has none
        return answer

    return pages


def _view(shown: Shown, arguments: Mapping[str, str]) -> View | None:
    """The page that a stream is asked to follow."""
    name = arguments.get("view", "overview")
    if name == "overview":
        return Overview()
    if name == "backends":
        return Backends.of(arguments)
    if name == "requests":
        return Requests()
    if name == "keys":
        return Keys.of(shown.keys, arguments)
    id_ = arguments.get("id", "")
    if name == "backend" and shown.fleet.snapshot.backend(id_) is not None:
        return Backend.of(id_, shown.logs, arguments, fresh=False)
    return None


def _page(shown: Shown, view: View, snapshot: Snapshot, json: str) -> Response:
    words = Words(language())
    rendered = shown.renderer.parts(view, snapshot, words)
    told = {"view": view.name, "lang": words.language, **view.query()}
    text = render_template(
        "page.html",
        w=words,
        view=view,
        snapshot=snapshot,
        title=view.title(words),
        navigation=NAVIGATION,
        stream=f"{url_for('pages.events')}?{urlencode(told)}",
        switch=urlencode({**request.args.to_dict(), "lang": words("switch_lang")}),
        here=request.full_path.rstrip("?"),
        json=json,
        **view.context(),
        **rendered.context(),
    )
    answer = Response(text)
    answer.headers["Vary"] = "Accept-Language, Cookie"
    answer.headers["Content-Language"] = words("html_lang")
    chosen = request.args.get("lang")
    if chosen in LANGUAGES:
        answer.set_cookie(LANGUAGE_COOKIE, chosen, max_age=365 * 86_400, httponly=True, samesite="Strict")
    return answer
