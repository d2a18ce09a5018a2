"""What stands on the two cores: the fake engine, and the proxies that are compared."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from control.bench.edge import peers
from control.bench.edge.load import EVENTS_PER_STREAM, KEY, MODEL
from control.bench.edge.process import START_SECONDS, BenchError, Cores, Tree, free_port, pinned
from control.edge import apply
from control.edge.binary import find_engine
from control.edge.site import Site, client, open_site
from control.fleet.load import load
from control.keys.secrets import hash_of

NGINX, SIGNALBOX, VLLM_ROUTER = "nginx", "signalbox", peers.VLLM_ROUTER.name
SPACING_SECONDS = 0.02

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)


@dataclass(frozen=True)
class Stand:
    """Where a run happens: cores, the two ports of the fake engine, a scratch folder."""

    cores: Cores
    engines: tuple[int, int]
    folder: Path

    def room(self, name: str) -> Path:
        """A folder of its own for one process, made when first asked for."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run this thread, and whatever it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def write_template(name: str, target: Path, **values: Any) -> Path:
    """Render one of the bench's configurations."""
    target.write_text(_TEMPLATES.get_template(name).render(**values))
    return target


def nginx_command(binary: Path, folder: Path, configuration: Path) -> list[str]:
    """How the bench's own nginx processes are started: in the foreground, everything in ``folder``."""
    return [str(binary), "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(configuration)]


@contextlib.contextmanager
def fake_engine(cores: Cores, folder: Path) -> Iterator[Stand]:
    """Start the fake engine, two ports of one process, on the load's core."""
    engine = find_engine()
    stand = Stand(cores, (free_port(), free_port()), folder)
    room = stand.room("engine")
    configuration = write_template(
        "backend.conf.j2",
        room / "nginx.conf",
        load_modules=engine.profile.load_modules,
        folder=room,
        ports=stand.engines,
        events=EVENTS_PER_STREAM,
        spacing_seconds=SPACING_SECONDS,
        model=MODEL,
    )
    command = nginx_command(engine.path, room, configuration)
    with pinned("fake engine", command, core=cores.load, port=stand.engines[0], path="/health", log=room / "out.log"):
        yield stand


@contextlib.contextmanager
def plain_nginx(stand: Stand) -> Iterator[Tree]:
    """The ideal: the same nginx binary with a proxy_pass and nothing else."""
    room, port = stand.room(NGINX), free_port()
    configuration = write_template("nginx.conf.j2", room / "nginx.conf", folder=room, port=port, backends=stand.engines)
    command = nginx_command(find_engine().path, room, configuration)
    with pinned(NGINX, command, core=stand.cores.proxy, port=port, path="/health", log=room / "out.log") as tree:
        yield tree


@contextlib.contextmanager
def signalbox(stand: Stand, name: str = SIGNALBOX, state: str = "memory") -> Iterator[Tree]:
    """Signalbox with everything on: keys, limits and the queue, access log, metrics, probes, per-address limits.

    All limits are so high that wrk passes. ``state``: where it counts, as edge.state says.
    """
    room = stand.room(name)
    port = free_port()
    fleet = write_template(
        "fleet.yaml.j2", room / "fleet.yaml", port=port, admin=free_port(), model=MODEL, engines=stand.engines,
        state=state,
    )  # fmt: skip
    write_template("keys.yaml.j2", room / "keys.yaml", hash=hash_of(KEY))
    site = open_site(load(fleet))
    with on_core(stand.cores.proxy):
        pid = apply.start(site).pid
    if pid is None:
        raise BenchError("The edge did not say its pid.", "Report this: it is a fault of `signalbox start`.")
    try:
        _await_ready(site)
        yield Tree(name, pid, port)
    finally:
        site.process.stop(quit=False)


def _await_ready(site: Site) -> None:
    """Wait for the first probes. Raises BenchError when a fake engine is not ready within START_SECONDS."""
    admin = client(site.paths)
    deadline = time.monotonic() + START_SECONDS
    try:
        while any(backend["state"] != "ready" for backend in admin.state()["backends"]):
            if time.monotonic() > deadline:
                raise BenchError("The edge never found the fake engines ready.", f"Read {site.paths.edge_logs}.")
            time.sleep(0.05)
    finally:
        admin.close()


@contextlib.contextmanager
def vllm_router(stand: Stand) -> Iterator[Tree]:
    """The peer: vllm-router with two workers, round robin, one Tokio thread, its metrics on as by default."""
    program = peers.VLLM_ROUTER.install()
    room, port = stand.room(VLLM_ROUTER), free_port()
    command = [
        str(program),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--policy",
        "round_robin",
        "--prometheus-port",
        str(free_port()),
        "--worker-urls",
        *(f"http://127.0.0.1:{engine}" for engine in stand.engines),
    ]
    with pinned(
        VLLM_ROUTER,
        command,
        core=stand.cores.proxy,
        port=port,
        path="/health",
        log=room / "out.log",
        environment={"TOKIO_WORKER_THREADS": "1"},
    ) as tree:
        yield tree


PROXIES: dict[str, Callable[[Stand], contextlib.AbstractContextManager[Tree]]] = {
    NGINX: plain_nginx,
    SIGNALBOX: signalbox,
    VLLM_ROUTER: vllm_router,
}
