"""What the page knows at one moment: immutable, from the fleet, the edge's /state, the engines and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.origins import Setting
from control.engines.phases import Span
from control.engines.samples import Use
from control.host import HostFacts, ProcessFacts
from control.tuning.advise import Finding
from control.web.history import Bin
from control.web.jobs import Job
from control.web.recent import Answers, Finished, Used
from control.web.running import Running
from control.web.traffic import Share, Traffic
from control.web.troubles import Trouble

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
#: Parts of a snapshot that are not in its JSON, which is asked for often.
HIDDEN = ("bins", "running", "finished", "keys_used")
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
    pool: str = ""
    #: Its entry in ``hosts``, and the GPUs of that machine that it has.
    machine: str = ""
    gpus: tuple[str, ...] = ()
    #: Whether its process runs in a container.
    container: bool = False
    #: What vLLM is told, and who said so.
    settings: tuple[Setting, ...] = ()


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
    pool: str = ""
    machine: str = ""
    gpus: tuple[str, ...] = ()
    container: bool = False
    settings: tuple[Setting, ...] = ()
    #: The engine's own numbers, as the edge reads them; ``kv_usage`` is a share from 0 to 1.
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    #: Who keeps new requests from it: operator, control.
    drained_by: tuple[str, ...] = ()
    #: Sequences that may be in flight; None: no bound, or not known.
    limit: int | None = None
    #: What an engine of ours uses of its machine, now and in the last hour.
    use: Use | None = None
    #: Lately: share of prompt tokens found in its prefix cache, requests per second, and what it answered.
    share: Share | None = None
    answers: Answers | None = None


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
    #: Requests that wait in the edge for one of its backends; None: not known.
    queue: int | None = None


@dataclass(frozen=True)
class WorkerView:
    """One nginx worker and the generation of the configuration that it was born with."""

    pid: int
    generation: str
    exiting: bool
    process: ProcessFacts | None = None


@dataclass(frozen=True)
class EdgeView:
    """``running``: it answers. ``absent``: no process. ``silent``: a process without a good answer, see ``problem``."""

    state: Literal["running", "absent", "silent"]
    generation: str = ""
    fleet_version: int | None = None
    workers: tuple[WorkerView, ...] = ()
    problem: str = ""
    #: The Redis that several edges share: does it answer, and since when it is so; None without one.
    redis_ok: bool | None = None
    redis_since: float | None = None
    edges: int | None = None


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
    #: Every model's traffic over the last minute, and under "" that of all; empty while unknown.
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    #: The last hour.
    bins: tuple[Bin, ...] = ()
    running: Running | None = None
    finished: tuple[Finished, ...] = ()
    jobs: tuple[Job, ...] = ()
    #: What each API key took in the last hour, by its name.
    keys_used: Mapping[str, Used] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        """How many backends are ready."""
        return sum(1 for backend in self.backends if backend.state in SERVING)

    def backend(self, id_: str) -> BackendView | None:
        """The backend of this id."""
        return next((one for one in self.backends if one.id == id_), None)

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON values, without what has addresses of its own (HIDDEN)."""
        told = asdict(replace(self, bins=(), running=None, finished=()))
        return {name: value for name, value in told.items() if name not in HIDDEN}
