"""The API's description, made from the very types that it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from control import __version__
from control.fleet.schema import Limits
from control.web.actions import BACKEND_ACTIONS, KEY_ACTIONS
from control.web.view import HIDDEN, Snapshot

_REF = "#/components/schemas/{model}"
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_NAME = {**_ID, "name": "name"}
_ABOUT = (
    "What the page of a Signalbox control plane shows and does. Browsers come with a session; programs send the token "
    "in control/page.token (in the state folder) as a bearer token. Without `control.login` everybody on the machine "
    "may read; actions always need the token, or a form of the page."
)


def document(answers: Mapping[str, type]) -> dict[str, Any]:
    """An OpenAPI 3.1 document. ``answers``: name of an address → the type of its answer (``control.web.api``)."""
    schemas: dict[str, Any] = {}
    refs = {name: _schema(kind, schemas) for name, kind in {"fleet": Snapshot, **answers}.items()}
    for hidden in HIDDEN:
        schemas["Snapshot"]["properties"].pop(hidden)
    schemas["Result"] = _object({"result": {"type": "string"}})
    schemas["Secret"] = _object({"result": {"type": "string"}, "secret": {"type": ["string", "null"]}})
    limits = {name: {"type": "integer", "minimum": 1} for name in Limits.model_fields}
    more = {"models": {"type": "array", "items": {"type": "string"}}, "priority": {"enum": ["high", "normal", "low"]},
            "weight": {"type": "integer"}, "expires": {"type": "string"}}  # fmt: skip
    schemas["NewKey"] = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, **more, **limits},
    }
    problem = _object({"message": {"type": "string"}, "hint": {"type": "string"}})
    schemas["Error"] = _object({"error": problem})
    action = {"name": "action", "in": "path", "required": True, "schema": {"enum": list(BACKEND_ACTIONS)}}
    change = {"name": "action", "in": "path", "required": True, "schema": {"enum": list(KEY_ACTIONS)}}
    lines = {"name": "lines", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 1000}}
    find = {"name": "find", "in": "query", "schema": {"type": "string"}}
    paths = {
        "/api/fleet": {"get": _read("Everything that is known at this moment", refs["fleet"])},
        "/api/overview": {"get": _read("Traffic, its last hour, and what is wrong", refs["overview"])},
        "/api/backends/{id}": {"get": _read("One backend and its last hour", refs["backend"], _ID)},
        "/api/backends/{id}/log": {"get": _read("The end of its engine's log", refs["log"], _ID, lines, find)},
        "/api/backends/{id}/samples": {"get": _read("What its engine used, look by look", refs["samples"], _ID)},
        "/api/backends/{id}/{action}": {
            "post": _act("Drain or resume a backend; start, stop or restart its engine", _ID, action)
        },
        "/api/requests": {"get": _read("Requests that run, and those that ended last", refs["requests"])},
        "/api/requests/{id}": {"delete": _act("End a running request", _ID)},
        "/api/keys": {
            "get": _read("API keys, without secrets", refs["keys"]),
            "post": _act("Make a key; its secret stands in this answer only", answer="Secret", body="NewKey"),
        },
        "/api/keys/{name}/{action}": {
            "post": _act("Enable, disable, rotate or revoke a key", _NAME, change, answer="Secret")
        },
        "/api/events": {
            "get": {
                "summary": "Server-sent events for an open page: finished HTML, not for programs",
                "responses": {"200": {"description": "the stream", "content": {"text/event-stream": {}}}},
            }
        },
        "/api/openapi.json": {"get": _read("This document", {"type": "object"})},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Signalbox", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _schema(kind: type, schemas: dict[str, Any]) -> dict[str, str]:
    """Adds the type and all that it is made of; a reference to it."""
    made = TypeAdapter(kind).json_schema(mode="serialization", ref_template=_REF)
    schemas.update(made.pop("$defs", {}))
    schemas[kind.__name__] = made
    return {"$ref": _REF.format(model=kind.__name__)}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": dict(schema)}}


def _read(summary: str, schema: Mapping[str, Any], *parameters: Mapping[str, Any]) -> dict[str, Any]:
    refused = {"description": "no session, or not the token", "content": {"text/plain": {}}}
    answers = {"200": {"description": summary, "content": _json(schema)}, "401": refused}
    if parameters:
        answers["404"] = {"description": "there is none", "content": {"text/plain": {}}}
    return {"summary": summary, "parameters": list(parameters), "responses": answers}


def _act(summary: str, *parameters: Mapping[str, Any], answer: str = "Result", body: str = "") -> dict[str, Any]:
    answers = {
        "200": {"description": "done, or begun", "content": _json({"$ref": _REF.format(model=answer)})},
        "401": {"description": "not the token", "content": {"text/plain": {}}},
        "409": {"description": "it could not be done", "content": _json({"$ref": _REF.format(model="Error")})},
    }
    told = {"summary": summary, "parameters": list(parameters), "responses": answers, "security": [{"token": []}]}
    return told | ({"requestBody": {"content": _json({"$ref": _REF.format(model=body)})}} if body else {})
