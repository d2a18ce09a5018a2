"""The JSON behind every page: the same facts, the same way in. openapi.py describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from flask import Blueprint, Response, abort, jsonify, request

from control.engines.samples import Sample
from control.web.engine_logs import MOST_LINES, EngineLogs, LogEnd
from control.web.history import BIN, BackendPoint
from control.web.keys import KeysAnswer
from control.web.openapi import document
from control.web.poller import FleetView
from control.web.recent import Finished, Used
from control.web.running import Running
from control.web.traffic import Traffic
from control.web.troubles import Trouble
from control.web.view import BackendView, EdgeView, ModelView


@dataclass(frozen=True)
class OverviewAnswer:
    """``traffic`` of the last minute and of each bin of the last ``hour`` by model, "" for all; oldest bin first."""

    taken: float
    edge: EdgeView
    models: tuple[ModelView, ...]
    troubles: tuple[Trouble, ...]
    traffic: Mapping[str, Traffic]
    hour: tuple[Mapping[str, Traffic], ...]
    bin_seconds: float = BIN


@dataclass(frozen=True)
class BackendAnswer:
    """One backend, and what it did in each bin of the last hour; null where nothing is known."""

    taken: float
    backend: BackendView
    hour: tuple[BackendPoint | None, ...]
    bin_seconds: float = BIN


@dataclass(frozen=True)
class RequestsAnswer:
    """``running``: null while the edge does not tell. ``finished``: the newest first."""

    taken: float
    running: Running | None
    finished: tuple[Finished, ...]


@dataclass(frozen=True)
class KeysListing(KeysAnswer):
    """``used``: what each key took in the last hour."""

    used: Mapping[str, Used] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplesAnswer:
    """What an engine used of its machine in the last hour, the oldest look first."""

    samples: tuple[Sample, ...]


#: What each address of the API answers.
ANSWERS = {
    "overview": OverviewAnswer,
    "backend": BackendAnswer,
    "log": LogEnd,
    "samples": SamplesAnswer,
    "requests": RequestsAnswer,
    "keys": KeysListing,
}


def blueprint(fleet: FleetView, logs: EngineLogs, keys: Callable[[float], KeysAnswer]) -> Blueprint:
    """The routes that read; actions.py has those that act."""
    api = Blueprint("api", __name__, url_prefix="/api")

    @api.get("/fleet", endpoint="fleet")
    def whole() -> Response:
        return jsonify(fleet.snapshot.as_json())

    @api.get("/overview")
    def overview() -> Response:
        now = fleet.snapshot
        hour = tuple(one.models for one in now.bins)
        return jsonify(asdict(OverviewAnswer(now.taken, now.edge, now.models, now.troubles, now.traffic, hour)))

    @api.get("/backends/<id_>")
    def backend(id_: str) -> Response:
        now = fleet.snapshot
        found = now.backend(id_) or abort(404)
        hour = tuple(one.backends.get(id_) for one in now.bins)
        return jsonify(asdict(BackendAnswer(now.taken, found, hour)))

    @api.get("/backends/<id_>/log")
    def log(id_: str) -> Response:
        if fleet.snapshot.backend(id_) is None:
            abort(404)
        lines = request.args.get("lines", 200, type=int)
        return jsonify(asdict(logs.end(id_, max(1, min(lines, MOST_LINES)), request.args.get("find", "")[:100])))

    @api.get("/backends/<id_>/samples")
    def samples(id_: str) -> Response:
        if fleet.snapshot.backend(id_) is None:
            abort(404)
        return jsonify(asdict(SamplesAnswer(tuple(fleet.samples(id_)))))

    @api.get("/requests")
    def requests() -> Response:
        now = fleet.with_requests()
        return jsonify(asdict(RequestsAnswer(now.taken, now.running, now.finished)))

    @api.get("/keys", endpoint="keys")
    def all_keys() -> Response:
        now = fleet.snapshot
        told = keys(now.taken)
        return jsonify(asdict(KeysListing(told.keys, told.advice, told.problem, now.keys_used)))

    @api.get("/openapi.json")
    def openapi() -> Response:
        return jsonify(document(ANSWERS))

    return api
