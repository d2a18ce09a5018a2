"""Joins what the fleet, the edge, the engines and this machine say into one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from control.engines.facts import Facts
from control.engines.samples import Use
from control.host import HostFacts
from control.web.view import (
    MAX_DETAIL,
    MAX_LEAVING,
    MAX_REPORTED,
    MAX_TEXT,
    SERVING,
    STATES,
    BackendView,
    EdgeView,
    EngineStatusLike,
    EngineView,
    FleetBackend,
    FleetFacts,
    LeavingView,
    ModelView,
    Note,
    Snapshot,
    TunnelStatusLike,
    TunnelView,
    WorkerView,
)


def merge(
    version: int,
    taken: float,
    fleet: FleetFacts,
    edge: EdgeView,
    edge_state: Mapping[str, Any] | None,
    engines: Iterable[EngineStatusLike],
    host: HostFacts,
    tunnels: Iterable[TunnelStatusLike] = (),
    uses: Mapping[str, Use] = MappingProxyType({}),
) -> Snapshot:
    """Join the sources. ``edge_state`` is None when the edge did not answer; then every state is unknown.

    The edge decides what state a backend has, the supervisor what its process does: neither overrules the other.
    """
    processes = {status.id: _engine(status) for status in engines}
    ways = {status.id: _tunnel(status) for status in tunnels}
    told = {_text(row.get("id")): row for row in _rows(edge_state, "backends")}
    backends = [
        replace(
            _backend(b, told.get(b.id), processes.get(b.id), _note(edge_state, b.id in told)),
            tunnel=ways.get(b.id),
            use=uses.get(b.id),
        )
        for b in fleet.backends
    ]
    known = {backend.id for backend in fleet.backends}
    for id_, row in told.items():
        if id_ and id_ not in known:
            older = FleetBackend(id_, _text(row.get("model")), _text(row.get("address")), _text(row.get("scheme")))
            backends.append(_backend(older, row, processes.get(id_), "not_in_fleet"))
    models = _models(fleet, backends, {_text(row.get("id")): row for row in _rows(edge_state, "models")})
    return Snapshot(version, taken, edge, host, models, tuple(backends), _leaving(edge_state))


def edge_view(state: Mapping[str, Any]) -> EdgeView:
    """The edge's own facts from its /state."""
    workers = tuple(
        WorkerView(_count(row.get("pid")) or 0, _text(row.get("generation")), bool(row.get("exiting")))
        for row in _rows(state, "workers")
    )
    shared = state.get("state")
    shared = shared if isinstance(shared, Mapping) and shared.get("kind") == "redis" else None
    return EdgeView(
        "running",
        _text(state.get("generation")),
        _count(state.get("fleet_version")),
        workers,
        redis_ok=bool(shared.get("ok")) if shared else None,
        redis_since=_number(shared.get("since")) if shared else None,
        edges=_count(shared.get("edges")) if shared else None,
    )


def _note(edge_state: Mapping[str, Any] | None, told: bool) -> Note:
    if edge_state is None:
        return "no_edge"
    return "" if told else "not_in_edge"


def _backend(
    backend: FleetBackend, row: Mapping[str, Any] | None, engine: EngineView | None, note: Note
) -> BackendView:
    row = row or {}
    state = row.get("state")
    return BackendView(
        id=backend.id,
        model=backend.model,
        address=backend.address,
        scheme=backend.scheme,
        state=next((known for known in STATES if known == state), "unknown"),
        note=note,
        reason=_text(row.get("reason")),
        since=_number(row.get("since")),
        in_flight=_count(row.get("in_flight")),
        requests=_count(row.get("requests")),
        reported=_texts(row.get("reported")),
        ours=backend.ours or engine is not None,
        engine=engine,
        pool=backend.pool,
        machine=backend.machine,
        gpus=backend.gpus,
        container=backend.container,
        settings=backend.settings,
        running=_number(row.get("running"), 0),
        waiting=_number(row.get("waiting"), 0),
        kv_usage=_number(row.get("kv_usage"), 0),
        drained_by=_texts(row.get("drained_by")),
    )


def _leaving(edge_state: Mapping[str, Any] | None) -> tuple[LeavingView, ...]:
    rows = _rows(edge_state, "leaving")[:MAX_LEAVING]
    return tuple(
        LeavingView(_text(row.get("id")), _text(row.get("address")), _count(row.get("in_flight")) or 0) for row in rows
    )


def _models(
    fleet: FleetFacts, backends: Sequence[BackendView], told: Mapping[str, Mapping[str, Any]]
) -> tuple[ModelView, ...]:
    views = []
    for model in fleet.models:
        states = [backend.state for backend in backends if backend.model == model.name]
        ready = sum(state in SERVING for state in states)
        queue = _count(told.get(model.name, {}).get("queue_length"))
        views.append(ModelView(model.name, model.aliases, model.loras, model.policy, ready, len(states), queue))
    return tuple(views)


def _engine(status: EngineStatusLike) -> EngineView:
    return EngineView(
        state=_text(status.state),
        phase=_text(status.phase),
        detail=_text(status.detail, MAX_DETAIL),
        since=_number(status.since),
        pid=status.pid,
        restarts=status.restarts,
        phases=status.phases,
        phase_since=_number(status.phase_since),
        facts=_facts(status.facts),
        alarms=tuple(_text(alarm) for alarm in status.alarms[:MAX_REPORTED]),
        failure=status.failure,
    )


def _facts(facts: Facts | None) -> Mapping[str, Any] | None:
    if facts is None:
        return None
    return {name: _text(value) if isinstance(value, str) else value for name, value in asdict(facts).items()}


def _tunnel(status: TunnelStatusLike) -> TunnelView:
    return TunnelView(
        target=_text(status.target),
        state=_text(status.state),
        detail=_text(status.detail, MAX_DETAIL),
        since=_number(status.since),
        pid=status.pid,
        restarts=status.restarts,
    )


def _rows(state: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """A list of objects; Lua writes an empty list as ``{}``, and a broken edge must not break the page."""
    rows = state.get(key) if state is not None else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _text(value: object, most: int = MAX_TEXT) -> str:
    return "" if value is None else str(value)[:most]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(one) for one in value[:MAX_REPORTED]) if isinstance(value, list) else ()


def _number(value: object, least: float = 1e-9) -> float | None:
    """A usable time: NaN, infinity and what no calendar holds (over 100,000 years) are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e11:
        return None
    return float(value)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        return None
    return int(value)
