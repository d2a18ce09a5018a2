"""Who asks: a browser with a session, a program with the token, or, without logins, anybody on this machine."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Flask, Response, g, redirect, render_template, request, session
from flask.sessions import SecureCookieSessionInterface
from flask_wtf.csrf import CSRFError, CSRFProtect  # type: ignore[import-untyped]
from werkzeug.wrappers import Response as AnyResponse

from control.edge.files import write
from control.errors import ControlError, SignalboxError
from control.web.attempts import Attempts
from control.web.audit import Audit
from control.web.logins import mark, read_logins, right
from control.web.safety import READING, Addresses, text_answer
from control.web.texts import Words, language

log = logging.getLogger(__name__)

SESSION = timedelta(hours=12)
#: What can be asked without a session: the way to one, and what it looks like.
OPEN = ("login.form", "login.enter", "static")
LONGEST_PASSWORD = 1024


@dataclass(frozen=True)
class Guard:
    """``token``: what programs show, and what signs sessions. ``logins``: their file; None: nobody is asked."""

    token: str
    logins: Path | None = None

    def known(self) -> Mapping[str, str]:
        """The logins as they are now: a change counts at once. Raises ControlError; then nobody comes in."""
        return read_logins(self.logins) if self.logins else {}


def token_of(path: Path) -> str:
    """The page's token, made when there is none. Raises ControlError when it cannot be read."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, secrets.token_hex(32) + "\n", mode=0o600)
        token = path.read_text().strip()
    except (OSError, SignalboxError) as error:
        raise ControlError(f"{path} cannot be used: {error}", "Check that folder and its permissions.") from error
    if len(token) < 32:
        raise ControlError(f"{path} holds no token", "Remove the file: a new one is made at the next start.")
    return token


class _Sessions(SecureCookieSessionInterface):
    """Cookies that never leave TLS where the page is reached over it."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def get_cookie_secure(self, app: Flask) -> bool:
        return self._addresses.secure(request.headers.get("Host", ""))


def protect(app: Flask, guard: Guard, addresses: Addresses, audit: Audit) -> None:
    """Make every request of ``app`` say who asks (``g.who``), and forms carry a token that only our pages have."""
    app.config.update(
        SECRET_KEY=hmac.new(guard.token.encode(), b"sessions of the page", hashlib.sha256).digest(),
        # Cookies do not tell ports apart: two pages on one machine must not log each other out.
        SESSION_COOKIE_NAME=f"signalbox-{addresses.port}",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=SESSION,
        WTF_CSRF_CHECK_DEFAULT=False,  # a program with the token needs none
        WTF_CSRF_TIME_LIMIT=None,  # a page may stay open: the session ends it
        WTF_CSRF_SSL_STRICT=False,  # safety.py looks at Origin
        WTF_CSRF_HEADERS=["X-CSRF-Token"],
    )
    app.session_interface = _Sessions(addresses)
    forms = CSRFProtect(app)

    @app.before_request
    def _who() -> AnyResponse | None:
        given = request.headers.get("Authorization", "")
        if given:
            if not hmac.compare_digest(given.encode(), f"Bearer {guard.token}".encode()):
                return text_answer(401, "This is not the page's token (control/page.token in the state folder).")
            g.who, g.welcome = "token", lambda: True
            return None
        if request.method not in READING:
            forms.protect()
        name = "" if guard.logins else "this machine"
        if guard.logins:
            name = _session_of(guard)
            if not name and request.endpoint not in OPEN:
                return _ask()
        g.who, g.welcome = name, _still(guard, dict(session))
        return None

    @app.errorhandler(CSRFError)
    def _forged(error: CSRFError) -> Response:
        return text_answer(400, f"{error.description} Go back, load the page again and try once more.")

    app.register_blueprint(_blueprint(guard, addresses, audit))
    app.jinja_env.globals["asks_login"] = guard.logins is not None


def _session_of(guard: Guard) -> str:
    """The name of a good session; empty for none, for one of an older password, and for one that is over."""
    return _name_in(session, guard)


def _name_in(held: Mapping[str, Any], guard: Guard) -> str:
    name, until = str(held.get("name", "")), held.get("until", 0)
    try:
        hashed = guard.known().get(name)
    except ControlError as error:
        log.error("%s %s", error.message, error.hint)
        return ""
    good = hashed is not None and held.get("mark") == mark(hashed) and time.time() < until
    return name if good else ""


def _still(guard: Guard, held: dict[str, Any]) -> Callable[[], bool]:
    """Whether this session is good at a later moment: a stream lives longer than a request."""
    return (lambda: bool(_name_in(held, guard))) if guard.logins else (lambda: True)


def _ask() -> AnyResponse:
    if request.path.startswith("/api/"):
        answer = text_answer(401, "Log in on the page, or send the token of control/page.token as a bearer token.")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    back = request.full_path.rstrip("?") if request.method in READING else "/"
    return redirect("/login?" + urlencode({"next": back}), 303)


def own_path(path: str) -> str:
    """``path`` when it is one of this site; a browser reads // and /\\ as another site."""
    plain = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if plain else "/"


def _blueprint(guard: Guard, addresses: Addresses, audit: Audit) -> Blueprint:
    pages, attempts = Blueprint("login", __name__), Attempts()

    def shown(problem: str = "", status: int = 200, **values: object) -> Response:
        words = Words(language())
        asked = own_path(request.values.get("next", "/"))
        text = render_template("login.html", w=words, problem=problem and words(problem, **values), next=asked)
        return Response(text, status=status)

    @pages.get("/login")
    def form() -> AnyResponse:
        if guard.logins is None or g.who:
            return redirect(own_path(request.args.get("next", "/")), 303)
        return shown()

    @pages.post("/login")
    def enter() -> AnyResponse:
        if guard.logins is None:
            return redirect("/", 303)
        client, name = request.remote_addr or "", request.form.get("name", "")[:64]
        # Behind a proxy all have its address: there the name is counted, or one guesser would lock out everybody.
        counted = f"name {name}" if addresses.through_proxy(request.headers.get("Host", "")) else client
        wait = attempts.begin(counted, time.monotonic())
        if wait:
            audit.note(name, client, "login", result=f"refused: too many attempts, {wait} s to wait")
            answer = shown("login_wait", 429, n=max(1, round(wait / 60)))
            answer.headers["Retry-After"] = str(wait)
            return answer
        logins = guard.known()
        if not right(logins, name, request.form.get("password", "")[:LONGEST_PASSWORD]):
            audit.note(name, client, "login", result="refused: wrong name or password")
            return shown("login_wrong", 401)
        attempts.succeeded(counted)
        session.clear()
        session.permanent = True
        session.update(name=name, mark=mark(logins[name]), until=time.time() + SESSION.total_seconds())
        audit.note(name, client, "login")
        return redirect(own_path(request.form.get("next", "/")), 303)

    @pages.post("/logout")
    def leave() -> AnyResponse:
        audit.note(g.who, request.remote_addr or "", "logout")
        session.clear()
        return redirect("/login" if guard.logins else "/", 303)

    return pages
