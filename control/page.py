"""The page of one fleet: who is asked for what it shows, who may look at it, and what it is told of fleet.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from control.edge.admin import AdminClient, read_token
from control.edge.process import running
from control.engines.origins import settings_of
from control.engines.sampler import Sampler
from control.engines.status import EngineStatus
from control.fleet.address import split_listen
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.host import read_host
from control.paths import StatePaths
from control.tuning.lookout import Lookout
from control.tunnels.keeper import TunnelStatus
from control.web.app import WebSettings
from control.web.certificates import Certificates
from control.web.jobs import Jobs
from control.web.login import Guard, token_of
from control.web.poller import EdgeAbsent, FleetView, Sources
from control.web.view import FleetBackend, FleetFacts, FleetModel

T = TypeVar("T")

#: Seconds to connect to the edge's admin listener and to wait for its answer: a slow one must not stop the page.
EDGE_TIMEOUTS = (1.0, 2.0)


class EdgeSource:
    """Asks the edge for its state; the edge may start, stop and change its token meanwhile."""

    def __init__(self, address: str, paths: StatePaths) -> None:
        self.address = address
        self._paths = paths

    def __call__(self) -> Mapping[str, Any]:
        """``GET /state``. Raises EdgeAbsent when no edge runs, else EdgeError."""
        if not running(self._paths):
            raise EdgeAbsent("The edge does not run.", "Start it with: make run")
        return self._ask(AdminClient.state)

    def metrics(self) -> str:
        """``GET /metrics``. Raises EdgeError."""
        return self._ask(AdminClient.metrics)

    def requests(self) -> Mapping[str, Any]:
        """``GET /requests``. Raises EdgeError."""
        return self._ask(AdminClient.running)

    def _ask(self, call: Callable[[AdminClient], T]) -> T:
        client = AdminClient(self.address, read_token(self._paths.admin_token), EDGE_TIMEOUTS)
        try:
            return call(client)
        finally:
            client.close()  # by the next call the edge may be another one


def fleet_facts(loaded: LoadedFleet) -> FleetFacts:
    """The part of fleet.yaml that the page shows."""
    models = tuple(
        FleetModel(name, tuple(model.aliases), tuple(model.loras), model.routing.policy)
        for name, model in loaded.fleet.models.items()
    )
    return FleetFacts(models, tuple(_backend_facts(loaded, backend) for backend in resolve_backends(loaded)))


def _backend_facts(loaded: LoadedFleet, b: ResolvedBackend) -> FleetBackend:
    return FleetBackend(
        id=b.id,
        model=b.model,
        address=f"[{b.host}]:{b.port}" if ":" in b.host else f"{b.host}:{b.port}",
        scheme=b.scheme,
        ours=b.ours,
        pool=b.pool or "",
        machine=b.machine or "",
        gpus=tuple(map(str, b.gpus)),
        container=b.machine is not None and loaded.fleet.hosts[b.machine].docker is not None,
        settings=settings_of(b.engine) if b.engine is not None else (),
    )


def login_file(loaded: LoadedFleet) -> Path | None:
    """The file of those who may open the page; None: nobody is asked."""
    written = loaded.fleet.control.login
    return None if written is None else loaded.folder / written


class Page:
    """What the daemon's page is made of. It is told of every fleet.yaml that comes into force."""

    def __init__(self, loaded: LoadedFleet, paths: StatePaths) -> None:
        self._loaded = loaded
        self._paths = paths
        self._edge = EdgeSource(loaded.fleet.edge.admin, paths)
        self._standing = Certificates(loaded, paths.reload_refused)

    def view(
        self,
        engines: Callable[[], Sequence[EngineStatus]],
        tunnels: Callable[[], Sequence[TunnelStatus]],
        jobs: Jobs,
        lookout: Lookout,
        sampler: Sampler,
    ) -> FleetView:
        """What all pages look at. ``lookout`` is told of every answer of the edge, and tells what it found."""

        def edge() -> Mapping[str, Any]:
            state = self._edge()
            lookout.note(state)
            return state

        sources = Sources(
            edge,
            engines,
            read_host,
            tunnels,
            metrics=self._edge.metrics,
            requests=self._edge.requests,
            access_log=self._paths.edge_logs / "access.log",
            standing=self._standing,
            jobs=jobs.all,
            findings=lambda: lookout.findings,
            uses=sampler.uses,
            samples=sampler.samples,
        )
        return FleetView(fleet_facts(self._loaded), sources)

    def settings(self, listeners: int) -> WebSettings:
        """How it listens and whom it asks. Raises ControlError when its token cannot be used."""
        control = self._loaded.fleet.control
        host, port = split_listen(control.listen)
        guard = Guard(token_of(self._paths.page_token), login_file(self._loaded))
        return WebSettings(host, port, control.url, listeners, guard=guard, audit_log=self._paths.audit_log)

    def reload(self, fresh: LoadedFleet) -> None:
        """Another fleet.yaml is in force. How the page listens and whom it asks stays until the next start."""
        self._edge.address = fresh.fleet.edge.admin
        self._standing.reload(fresh)

    def refused(self, problem: str) -> None:
        """fleet.yaml was read again and cannot be used."""
        self._standing.refused(problem)
