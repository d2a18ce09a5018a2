"""What a person may write under ``edge:`` in fleet.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from control.fleet.shapes import (
    FilePath,
    HeaderName,
    HostPattern,
    Identifier,
    ListenAddress,
    Network,
    Origin,
    Strict,
    shape,
)
from control.fleet.units import Bytes, Milliseconds


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
    shape(rf"^{_REDIS}$", "a URL such as redis://10.0.0.5:6379/0 (rediss:// with TLS)"),
]
StateText = Annotated[
    str,
    BeforeValidator(_no_password),
    shape(rf"^(memory|{_REDIS})$", "memory, or a URL such as redis://10.0.0.5:6379/0 (rediss:// with TLS)"),
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
