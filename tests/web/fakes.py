"""Sources of a FleetView that a test can turn: no edge and no engine is needed to look at the page itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import Flask
from jinja2.bccache import Bucket, BytecodeCache

from control.engines.diagnosis import Diagnosis
from control.engines.facts import Facts
from control.engines.phases import Span
from control.host import HostFacts
from control.web import poller
from control.web.app import WebSettings, create_app
from control.web.keys import KeyRow, KeysAnswer
from control.web.poller import FleetView
from control.web.troubles import Standing
from control.web.view import FleetBackend, FleetFacts, FleetModel

HOST = HostFacts("testbox", 4, 12.0, 0.5, 8 * 1024**3, 3 * 1024**3)
FLEET = FleetFacts(
    (FleetModel("m", ("chat", "org/alias"), ("sql-lora",), "least_loaded"), FleetModel("e", policy="round_robin")),
    (
        FleetBackend("m-1", "m", "127.0.0.1:8101", ours=True),
        FleetBackend("m-2", "m", "127.0.0.1:8102", ours=True),
        FleetBackend("rented", "e", "gpu.example.com:443", "https"),
    ),
)


class _Compiled(BytecodeCache):
    """Templates compiled once for all apps of a test run."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._code:
            bucket.bytecode_from_string(self._code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


COMPILED = _Compiled()


@dataclass
class Status:
    """What the supervisor tells of one engine."""

    id: str
    state: str = "ready"
    phase: str = "serving"
    detail: str = ""
    since: float = 1_700_000_000.0
    pid: int | None = 4242
    restarts: int = 0
    phases: tuple[Span, ...] = ()
    phase_since: float | None = None
    facts: Facts | None = None
    alarms: tuple[str, ...] = ()
    failure: Diagnosis | None = None


@dataclass
class Way:
    """What is told of the SSH tunnel to one backend."""

    id: str
    target: str = "root@box.lan:2222"
    state: str = "up"
    detail: str = ""
    since: float = 1_700_000_000.0
    pid: int | None = 4343
    restarts: int = 0


def backend(id_: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    """A backend in the edge's /state."""
    row = {"id": id_, "model": "m", "address": "127.0.0.1:8101", "scheme": "http", "state": state, "reason": "",
           "since": 1_700_000_000, "in_flight": 0, "requests": 5, "reported": ["m"]}  # fmt: skip
    return row | more


def edge_state(*backends: Mapping[str, Any]) -> dict[str, Any]:
    """The edge's /state."""
    workers = [{"pid": 71, "generation": "3", "exiting": False}, {"pid": 60, "generation": "2", "exiting": True}]
    return {"generation": "3", "fleet_version": 7, "workers": workers, "models": [], "backends": list(backends)}


KEYS = KeysAnswer(
    (
        KeyRow("k" * 128, "abcd", "rotated", ("m" * 200, "e"), "low", 7, 1_900_000_000.0, "a=1 " * 40),
        KeyRow("bob", "", "disabled", (), "normal", 1, None, "none"),
    ),
    "x" * 300,
)


@dataclass
class Sources:
    """``state`` is the edge's answer, or the exception that asking it raises."""

    state: Any = field(default_factory=lambda: edge_state(backend("m-1"), backend("m-2", "starting")))
    engines: Any = field(default_factory=lambda: [Status("m-1"), Status("m-2", "starting", "loading weights")])
    fleet: FleetFacts = FLEET
    tunnels: list[Any] = field(default_factory=list)
    metrics: str = ""
    requests: Any = field(default_factory=lambda: {"requests": [], "total": 0, "silent_workers": []})
    access_log: Path | None = None
    standing: Standing = field(default_factory=Standing)
    keys: KeysAnswer = field(default_factory=lambda: KeysAnswer(()))

    def ask_edge(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def ask_engines(self) -> Any:
        if isinstance(self.engines, Exception):
            raise self.engines
        return self.engines

    def view(self, interval: float = 0.02) -> FleetView:
        """A view that has polled once; its thread does not run yet."""
        sources = poller.Sources(
            self.ask_edge,
            self.ask_engines,
            lambda: HOST,
            lambda: self.tunnels,
            metrics=lambda: self.metrics,
            requests=lambda: self.requests,
            access_log=self.access_log,
            standing=lambda: self.standing,
        )
        view = FleetView(self.fleet, sources, interval)
        view.watch_requests()
        view.poll()
        return view

    def app(self, **settings: Any) -> tuple[FleetView, Flask]:
        """The view and the app over it."""
        view = self.view()
        app = create_app(view, WebSettings(**settings), keys=lambda _now: self.keys)
        app.jinja_env.bytecode_cache = COMPILED
        return view, app
