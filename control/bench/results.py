"""run.json: what one run of ``signalbox bench`` keeps. The contract between measuring and everything that shows it.

Times are seconds, points in time Unix seconds (floats), sizes bytes, shares 0 to 1. What could not be measured is None
or absent, never 0. docs/bench.md says how each figure is defined.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from control.errors import BenchRunError

#: Raised when a reader of older files would misread a newer one.
SCHEMA = 1
FILE = "run.json"

#: How a request ended that gave no whole answer. ``http`` has its status in ``Failure.status``.
FailureKind = Literal[
    "http",  # a status other than 2xx
    "connect",  # no connection, or one that closed before an answer
    "cut",  # the stream ended without finish_reason, or without [DONE] before its connection was closed
    "error_event",  # an error object inside a stream with status 200
    "aborted",  # finish_reason "abort": the engine gave up, with status 200
    "empty",  # a stream without one token
    "timeout",  # nothing, or not all, within the request's time
    "no_usage",  # complete, but without usage: its tokens are unknown, so it has no TPOT
    "other",
]
Way: TypeAlias = Literal["direct", "edge"]
#: TTFT, TPOT, ITL and E2E, in seconds.
Metric = Literal["ttft", "tpot", "itl", "e2e"]


class Strict(BaseModel):
    """No unknown fields, no changes after it was made, no infinity: JSON has none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Estimate(Strict):
    """A figure with its 95 % confidence interval over repeats; ``each`` has the figure of every repeat alone.

    ``low`` and ``high`` are None with one repeat: nothing is known of the spread then.
    """

    value: float
    low: float | None = None
    high: float | None = None
    each: list[float] = []


class Distribution(Strict):
    """All values of one metric, over all repeats.

    ``curve`` has (share, value) for drawing, from 0 to 1 in steps of 0.01; empty in the figures of a single pass.
    """

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p99: Estimate
    curve: list[tuple[float, float]] = []


class Figures(Strict):
    """What was measured of one group of requests, in one variant, over all repeats.

    A metric is absent (None) where no request had one: no TPOT with one token an answer.
    ``goodput``: requests per second that kept the whole SLO; ``slo_share``: which share of all that were sent. None
    without an SLO. Rates are per second of the time between the first request's start and the last one's end.
    """

    sent: int
    succeeded: int
    failures: dict[FailureKind, int] = {}
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft: Distribution | None = None
    tpot: Distribution | None = None
    itl: Distribution | None = None
    e2e: Distribution | None = None
    requests_per_second: Estimate | None = None
    output_tokens_per_second: Estimate | None = None
    goodput: Estimate | None = None
    slo_share: Estimate | None = None


class Histogram(Strict):
    """A Prometheus histogram over one pass: ``buckets`` are (upper bound, observations up to it); the last is +Inf.

    The last bound is None, because JSON has no infinity.
    """

    buckets: list[tuple[float | None, int]]
    sum: float
    count: int


class EngineCounters(Strict):
    """What the engines themselves counted during a pass, all engines of the variant added up; None: not told.

    The few short requests with which the load generator opens its connections are in it.
    """

    prefix_hits: int | None = None  # tokens
    prefix_queries: int | None = None  # tokens
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    iterations: int | None = None  # scheduler steps
    iteration_tokens: int | None = None  # tokens of all steps: divided by iterations, what one step did
    ttft: Histogram | None = None
    itl: Histogram | None = None
    queue: Histogram | None = None  # seconds in the engine's own queue
    kv_cache_tokens: int | None = None  # its size


class EdgeCounters(Strict):
    """What the edge's access log says of the pass's requests, joined by request id. Only of variants with the edge."""

    joined: int  # requests of the pass that the log has
    queued: int  # of them, those that waited for a slot
    queue_wait: Distribution | None = None  # seconds, of all that were joined
    ttft_difference_p99: float | None = None  # seconds, the client's TTFT less the edge's; absolute value
    ttft_agreeing: float | None = None  # share of requests whose two TTFTs differ by at most 5 ms + 1 %
    by_backend: dict[str, int] = {}  # backend -> requests


class Client(Strict):
    """Whether the load generator kept up. ``overloaded`` says why not, in words; empty: it did."""

    lateness_p50: float  # seconds between the moment when a request was due and when it was sent
    lateness_p99: float
    cpu_busiest: float | None = None  # cores, of its busiest process
    cpu: float | None = None  # cores, of all its processes
    overloaded: list[str] = []


class Timeline(Strict):
    """Samples of one pass, in columns of equal length. ``t`` is seconds since ``Pass.started``; None: not known then.

    ``running``, ``waiting`` and ``kv_usage`` are the engines' gauges (sums; the greatest usage); ``in_edge`` are
    requests that wait in the edge. ``cpu`` is the share of the whole machine; ``engine_cpu`` cores of the engines'
    processes; ``memory`` bytes in use on the machine. ``generation_tokens`` counts from the pass's start.
    """

    t: list[float] = []
    running: list[float | None] = []
    waiting: list[float | None] = []
    kv_usage: list[float | None] = []
    in_edge: list[float | None] = []
    generation_tokens: list[float | None] = []
    cpu: list[float | None] = []
    engine_cpu: list[float | None] = []
    memory: list[float | None] = []

    @model_validator(mode="after")
    def _even(self) -> Self:
        if any(len(getattr(self, name)) != len(self.t) for name in type(self).model_fields):
            raise ValueError("the columns of a timeline are of equal length")
        return self


class Mark(Strict):
    """A request to show on the timeline, such as a long prompt. Seconds since ``Pass.started``."""

    group: str
    start: float
    first_token: float | None = None
    end: float
    prompt_tokens: int | None = None


class Pass(Strict):
    """One repeat of one variant. ``order`` counts passes of the run in the order in which they were measured, from 0.

    ``requests`` names the file beside run.json that has one JSON line per request (``control.bench.records.Request``).
    ``figures`` have no intervals and no curves: those are the variant's. ``usable`` is False where ``problem`` says
    that the figures must not be counted, and then they are not.
    """

    variant: str
    repeat: int
    order: int
    seed: int
    started: float
    ended: float
    requests: str
    usable: bool = True
    problem: str = ""
    figures: Figures
    engine: EngineCounters = EngineCounters()
    edge: EdgeCounters | None = None
    client: Client | None = None
    timeline: Timeline = Timeline()
    marks: list[Mark] = []


class Variant(Strict):
    """One thing that was compared. ``settings`` are the engine settings that tell it from the others, as in fleet.yaml.

    ``figures`` count all usable passes; ``groups`` the same for each group of requests of the workload (``short``,
    ``long``). Both are None and empty as long as nothing was measured. ``fleet`` names a file beside run.json.
    """

    name: str
    path: Way
    settings: dict[str, bool | int | float | str | list[str]] = {}
    fleet: str = ""
    engines: int = 1
    engine_version: str = ""
    arguments: list[str] = []  # how the first engine was started
    model: str = ""
    figures: Figures | None = None
    groups: dict[str, Figures] = {}
    engine: EngineCounters | None = None  # all usable passes added up
    warnings: list[str] = []


class Workload(Strict):
    """What was sent. ``parameters``: the workload file's, after scaling; ``file`` is its copy beside run.json."""

    name: str
    title: str
    scale: str
    file: str
    parameters: dict[str, object] = {}
    requests: int  # of each pass, warm-up left out
    groups: list[str]
    capacity: float | None = None  # requests per second that were found to be the capacity (burst)


class Slo(Strict):
    """Limits that a request has to keep to count for goodput, in seconds."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


class Machine(Strict):
    """Where it was measured: the client's machine, which on one machine is the engines' too."""

    cpu: str
    cores: int
    memory: int
    system: str
    load_before: float
    gpus: list[str] = []


class Run(Strict):
    """The whole of run.json."""

    schema_: Annotated[int, Field(alias="schema", serialization_alias="schema")] = SCHEMA
    id: str
    name: str = ""
    state: Literal["running", "complete", "interrupted", "failed"]
    problem: str = ""  # why it is not complete
    started: float
    ended: float
    signalbox: str
    commit: str = ""
    tools: dict[str, str] = {}  # name -> version
    command: list[str] = []
    machine: Machine
    workload: Workload
    slo: Slo = Slo()
    seed: int
    seed_pinned: bool = False
    repeats: int
    scripted: bool = False  # the engines were scripted: nothing is said about a model
    variants: list[Variant]
    passes: list[Pass] = []
    warnings: list[str] = []

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    def to_json(self) -> str:
        """As it stands in the file."""
        return self.model_dump_json(by_alias=True) + "\n"


def load(folder: Path) -> Run:
    """The run that ``folder`` holds. Raises BenchRunError when there is none, or one that this version cannot read."""
    file = folder / FILE
    try:
        text = file.read_text()
    except OSError as error:
        raise BenchRunError(
            f"{file} cannot be read: {error.strerror}.", "`signalbox bench list` shows the runs that there are."
        ) from error
    try:
        run = Run.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BenchRunError(
            f"{file} is no run that this version can read: {where}: {first['msg']}.",
            "It was cut short, or another version wrote it: measure again.",
        ) from error
    if run.schema_ != SCHEMA:
        raise BenchRunError(
            f"{file} has schema {run.schema_}; this version reads {SCHEMA}.", "Read it with the version that wrote it."
        )
    return run
