"""What the page knows at one moment: immutable, from the fleet, the edge's /state, the engines and this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args

from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.phases import Span
from control.engines.samples import Use
from control.host import HostFacts
from control.tuning.advise import Finding

State = Literal["starting", "ready", "busy", "draining", "suspect", "down", "misconfigured", "unknown"]
STATES: tuple[State, ...] = get_args(State)
#: States in which a backend takes requests.
SERVING = ("ready", "busy")
#: Why a state is unknown or a row unusual, where that is ours to say; the page translates it.
Note = Literal["", "no_edge", "not_in_edge", "not_in_fleet"]

#: Engines say what they like: so many names, so many characters of each text reach the page.
MAX_REPORTED = 32
MAX_TEXT = 300
#: Why an engine of ours died may be a long line.
MAX_DETAIL = 1000
#: So many backends that have left the fleet are shown.
MAX_LEAVING = 100


class StatusLike(Protocol):
    """What is told of anything that the control plane keeps running."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def restarts(self) -> int: ...


class EngineStatusLike(StatusLike, Protocol):
    """What the supervisor tells of one local engine (``control.engines.local.EngineStatus``)."""

    @property
    def phase(self) -> str: ...
    @property
    def phases(self) -> tuple[Span, ...]: ...
    @property
    def phase_since(self) -> float | None: ...
    @property
    def facts(self) -> Facts | None: ...
    @property
    def alarms(self) -> tuple[str, ...]: ...
    @property
    def failure(self) -> Diagnosis | None: ...


@dataclass(frozen=True)
class FleetBackend:
    """One backend as fleet.yaml names it. ``ours``: its process is started here."""

    id: str
    model: str
    address: str
    scheme: str = "http"
    ours: bool = False


@dataclass(frozen=True)
class FleetModel:
    """One model as fleet.yaml names it."""

    name: str
    aliases: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    policy: str = ""


@dataclass(frozen=True)
class FleetFacts:
    """The part of fleet.yaml that the page shows."""

    models: tuple[FleetModel, ...]
    backends: tuple[FleetBackend, ...]


@dataclass(frozen=True)
class EngineView:
    """The process of an engine that we started. ``since`` in Unix seconds."""

    state: str
    phase: str
    detail: str
    since: float | None
    pid: int | None
    restarts: int
    #: The phases of its start that are over; when the present one began (Unix seconds).
    phases: tuple[Span, ...] = ()
    phase_since: float | None = None
    #: What it runs with (``control.engines.facts.Facts``), and where that is not what fleet.yaml asks for.
    facts: Mapping[str, Any] | None = None
    alarms: tuple[str, ...] = ()
    #: Why it died last, until it is ready again.
    failure: Diagnosis | None = None


class TunnelStatusLike(StatusLike, Protocol):
    """What is told of the SSH tunnel to one backend (``control.tunnels.keeper.TunnelStatus``)."""

    @property
    def target(self) -> str: ...


@dataclass(frozen=True)
class TunnelView:
    """The SSH tunnel to a backend. ``since`` in Unix seconds."""

    target: str
    state: str
    detail: str
    since: float | None
    pid: int | None
    restarts: int


@dataclass(frozen=True)
class BackendView:
    """One row of the table. Counts are None when the edge does not tell them; ``since`` in Unix seconds."""

    id: str
    model: str
    address: str
    scheme: str
    state: State
    note: Note
    reason: str
    since: float | None
    in_flight: int | None
    requests: int | None
    reported: tuple[str, ...]
    ours: bool
    engine: EngineView | None
    tunnel: TunnelView | None = None
    #: What an engine of ours uses of its machine, now and in the last hour.
    use: Use | None = None


@dataclass(frozen=True)
class LeavingView:
    """A backend that the edge's fleet has no longer (or has at another address), with what still runs there."""

    id: str
    address: str
    in_flight: int


@dataclass(frozen=True)
class ModelView:
    """One model with how many of its backends are ready."""

    name: str
    aliases: tuple[str, ...]
    loras: tuple[str, ...]
    policy: str
    ready: int
    backends: int


@dataclass(frozen=True)
class WorkerView:
    """One nginx worker and the generation of the configuration that it was born with."""

    pid: int
    generation: str
    exiting: bool


@dataclass(frozen=True)
class EdgeView:
    """``running``: it answers. ``absent``: no process. ``silent``: a process without a good answer, see ``problem``."""

    state: Literal["running", "absent", "silent"]
    generation: str = ""
    fleet_version: int | None = None
    workers: tuple[WorkerView, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment. ``version`` grows with every poll; ``taken`` in Unix seconds."""

    version: int
    taken: float
    edge: EdgeView
    host: HostFacts
    models: tuple[ModelView, ...]
    backends: tuple[BackendView, ...]
    leaving: tuple[LeavingView, ...] = ()
    #: What is to be said of engines and models (``signalbox advise``), the worst first.
    findings: tuple[Finding, ...] = ()

    @property
    def ready(self) -> int:
        """How many backends are ready."""
        return sum(1 for backend in self.backends if backend.state in SERVING)

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


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
    return Snapshot(version, taken, edge, host, _models(fleet, backends), tuple(backends), _leaving(edge_state))


def edge_view(state: Mapping[str, Any]) -> EdgeView:
    """The edge's own facts from its /state."""
    workers = tuple(
        WorkerView(_count(row.get("pid")) or 0, _text(row.get("generation")), bool(row.get("exiting")))
        for row in _rows(state, "workers")
    )
    return EdgeView("running", _text(state.get("generation")), _count(state.get("fleet_version")), workers)


def _note(edge_state: Mapping[str, Any] | None, told: bool) -> Note:
    if edge_state is None:
        return "no_edge"
    return "" if told else "not_in_edge"


def _backend(
    backend: FleetBackend, row: Mapping[str, Any] | None, engine: EngineView | None, note: Note
) -> BackendView:
    row = row or {}
    reported = row.get("reported")
    names = [_text(name) for name in reported[:MAX_REPORTED]] if isinstance(reported, list) else []
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
        reported=tuple(names),
        ours=backend.ours or engine is not None,
        engine=engine,
    )


def _leaving(edge_state: Mapping[str, Any] | None) -> tuple[LeavingView, ...]:
    rows = _rows(edge_state, "leaving")[:MAX_LEAVING]
    return tuple(
        LeavingView(_text(row.get("id")), _text(row.get("address")), _count(row.get("in_flight")) or 0) for row in rows
    )


def _models(fleet: FleetFacts, backends: Sequence[BackendView]) -> tuple[ModelView, ...]:
    views = []
    for model in fleet.models:
        states = [backend.state for backend in backends if backend.model == model.name]
        ready = sum(state in SERVING for state in states)
        views.append(ModelView(model.name, model.aliases, model.loras, model.policy, ready, len(states)))
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


def _number(value: object) -> float | None:
    """A usable time: NaN, infinity and what no calendar holds (over 100,000 years) are none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e11:
        return None
    return float(value)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        return None
    return int(value)
