"""Making and changing API keys: forms, which show a new secret once, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flask import Blueprint, flash, jsonify, redirect, render_template, request
from werkzeug.wrappers import Response

from control.errors import ControlError, SignalboxError
from control.fleet.schema import Limits
from control.web.actions import KEY_ACTIONS, Actions, known
from control.web.texts import Words, language


def wishes_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a form or a program says of a new key, as ``control.keys.store.Wishes`` has it.

    Raises ControlError for what cannot be read; what can is judged where keys are made.
    """
    models = given.get("models") or []
    names = models.split(",") if isinstance(models, str) else models
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ControlError("models must be a list of names.")
    wishes: dict[str, Any] = {"models": tuple(name.strip() for name in names if name.strip())}
    for name in ("priority", "expires"):
        if given.get(name):
            wishes[name] = str(given[name])
    if given.get("weight"):
        wishes["weight"] = _whole("weight", given["weight"])
    wishes["limits"] = {name: _whole(name, given[name]) for name in Limits.model_fields if given.get(name)}
    return wishes


def _whole(name: str, value: object) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 10**15 and len(text) < 16):
        raise ControlError(f"{name} must be a whole number from 1.")
    return int(text)


def blueprint(actions: Actions) -> Blueprint:
    """The routes."""
    pages = Blueprint("key_actions", __name__)

    @pages.post("/keys")
    def create_key() -> Response:
        name = request.form.get("name", "")
        return secret_page(name, lambda: actions.create_key(name, wishes_of(request.form)))

    @pages.post("/keys/<name>/<action>")
    def change_key(name: str, action: str) -> Response:
        known(action, KEY_ACTIONS)
        return secret_page(name, lambda: actions.change_key(name, action))

    def secret_page(name: str, do: Callable[[], tuple[str | None, str]]) -> Response:
        try:
            secret, told = do()
        except SignalboxError as error:
            flash(f"{error.message} {error.hint}".strip(), "failed")
            return redirect("/keys", 303)
        if secret is None:
            flash(told, "done")
            return redirect("/keys", 303)
        # No redirect: the secret would have to be kept for the next request, and stands nowhere but in this answer.
        return Response(
            render_template("secret.html", w=Words(language()), name=name, secret=secret, told=told),
            mimetype="text/html",
        )

    def secret_told(do: Callable[[], tuple[str | None, str]]) -> Response | tuple[Response, int]:
        try:
            secret, told = do()
        except SignalboxError as error:
            return jsonify({"error": {"message": error.message, "hint": error.hint}}), 409
        return jsonify({"result": told, "secret": secret})

    @pages.post("/api/keys")
    def api_create_key() -> Response | tuple[Response, int]:
        given = request.get_json(silent=True)
        if not isinstance(given, dict):
            return jsonify({"error": {"message": "the body is no JSON object", "hint": "/api/openapi.json"}}), 400
        return secret_told(lambda: actions.create_key(str(given.get("name", "")), wishes_of(given)))

    @pages.post("/api/keys/<name>/<action>")
    def api_change_key(name: str, action: str) -> Response | tuple[Response, int]:
        known(action, KEY_ACTIONS)
        return secret_told(lambda: actions.change_key(name, action))

    return pages
