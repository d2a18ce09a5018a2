"""``signalbox run`` and ``signalbox down``: the whole of one fleet on this machine, up and down again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from control import up as containers
from control.edge import apply, calls
from control.edge.ports import require_free, split
from control.edge.process import present, running
from control.edge.report import SERVING, Report, collect
from control.edge.site import Site, open_site, state_paths
from control.elsewhere import refuse_elsewhere
from control.engines.hosts import Hosts
from control.engines.install import only_one
from control.engines.model import require_folder
from control.engines.phases import Span, times
from control.engines.prepare import is_prepared, local_engines, prepare
from control.engines.processes import Record, birth, bound
from control.engines.recorded import stop_recorded
from control.errors import ControlError, EngineError, FleetError
from control.fleet.load import LoadedFleet, load
from control.foreground import reload_anywhere
from control.page_client import Address
from control.page_client import snapshot as page_snapshot
from control.paths import REPOSITORY, StatePaths
from control.serve import daemon_address, daemon_pid, listen, signal_daemon
from control.sharing.publish import publish
from control.terminal import EngineRow, EngineTable, Steps
from control.tuning.advice import last_starts, of_fleet_and_starts
from control.tuning.showing import show_findings
from control.tunnels import report as tunnels

#: Seconds for the control plane to answer after its start (it imports, binds, polls once).
CONTROL_TIMEOUT = 30.0
#: Seconds that a failure seen just after a reload may be an old one.
SETTLE_SECONDS = 3.0
#: Seconds for the edge to find engines that are ready; it asks them about once a second.
EDGE_SECONDS = 30.0
#: Seconds that engines which are not ours get to be ready; they may be down for reasons that we do not know.
MODELS_SECONDS = 6.0
#: States of a backend that the edge reaches; one that an operator drains is no failure.
_FOUND = SERVING | {"draining"}
LOG_TAIL = 15


def run(path: Path, console: Console, names: Sequence[str] = (), pull: bool = False) -> None:
    """Bring up everything that fleet.yaml describes, and wait until every engine of ours is ready.

    ``names``: only containers of these models and backends, and only they are waited for. ``pull``: look for newer
    images first. What runs already goes on: only what changed is started again. Raises a SignalboxError at the first
    failure; what was started until then goes on running, and ``down`` ends it.
    """
    paths = state_paths(load(path))
    refuse_elsewhere(path, paths)
    with ExitStack() as stack:
        with Steps(console) as progress:
            waiting = "Another run of this fleet is at work; waiting for it"
            stack.enter_context(only_one(paths.root / "run.lock", waiting, progress))
        loaded = load(path)  # it may have changed while we waited
        for warning in loaded.warnings:
            console.print(f"warning: {warning}", markup=False)
        containers.require_known(loaded, names)
        site = open_site(loaded)
        _check_first(site)
        _prepare(loaded, site.paths, console)
        _advise(loaded, console)
        some = containers.has_containers(loaded, site.paths)
        hosts = stack.enter_context(Hosts(loaded, site.paths)) if some else None
        planned = containers.announce(loaded, hosts, console, names, pull) if hosts is not None else None
        # The edge comes first: when it refuses a change, no engine has been stopped for it.
        _start_edge(site, console)
        _start_control_plane(loaded, site.paths, console)
        for line in tunnels.settled(loaded, site.paths):
            console.print(line, markup=False, soft_wrap=True)
        if hosts is not None and planned is not None:
            containers.converge(planned, hosts, site.paths, console, way=tunnels.in_the_way(loaded, site.paths))
        _wait_for_engines(loaded, site.paths, console, names)
        _say_what_next(loaded, site.paths, console)


def _advise(loaded: LoadedFleet, console: Console) -> None:
    """What is wrong or wasteful about the engines' settings, before any of them starts. It stops nobody."""
    found = of_fleet_and_starts(loaded, last_starts(loaded)).findings
    worth = [one for one in found if one.severity != "info"]
    if worth:
        show_findings(worth, console)
        console.print("`signalbox advise` says more.")


def prepare_only(path: Path, console: Console) -> None:
    """Install the runtimes and prepare the models of fleet.yaml; start nothing. Raises InstallError, EngineError."""
    loaded = load(path)
    _prepare(loaded, state_paths(loaded), console)
    console.print("Everything that the engines need is here.")


def down(path: Path, console: Console, now: bool = False) -> None:
    """End the edge, the engines and the control plane of this fleet; logs, runtimes and models stay.

    ``now`` cuts running answers. What does not run is left out; nothing is an error. A fleet.yaml that cannot be used
    is one at the end, because it may name another state folder than the usual one. Raises ControlError when something
    of the fleet runs from a folder that fleet.yaml does not name any more.
    """
    listen_on, broken, fleet = "", None, None
    edge_only = False
    try:
        loaded = fleet = load(path, edge_only=True)
        paths, listen_on = state_paths(loaded), loaded.fleet.edge.listen
        edge_only = not loaded.fleet.models
    except FleetError as error:
        paths, broken = StatePaths((path.absolute().parent / ".signalbox").resolve()), error
    if not paths.root.is_dir():
        refuse_elsewhere(path, paths, listen_on)
        if broken is not None:
            raise broken
        console.print("Nothing was ever started here.")
        return
    if edge_only:
        _end_follower(paths, console)  # it would start the edge again
    ending = apply.stop(paths, quit=not now)
    console.print(f"The edge {ending}.")
    if ending == "was not running" and calls.answers(paths):
        console.print("An edge that was started in the foreground goes on: end it where it was started.")
    with Steps(console) as progress:
        pid = daemon_pid(paths)
        if pid is not None:
            _end_control_plane(paths, pid, signal.SIGTERM, progress)
        progress("Making sure that no engine is left")
        left = stop_recorded(paths)
        ways = stop_recorded(paths, "tunnels")
    for identity in left:
        console.print(f"The engine {identity} was stopped.")
    for identity in ways:
        console.print(f"The tunnel to {identity} was ended.")
    if fleet is not None and containers.has_containers(fleet, paths):
        containers.stop(fleet, paths, console, None)
    refuse_elsewhere(path, paths)
    if broken is not None:
        raise ControlError(
            f"{broken}\nSo only the usual state folder was looked at, {paths.root}: nothing runs from there any more.",
            "If the fleet has another state_dir, correct the file and run `make stop` again.",
        )
    console.print("Nothing of this fleet runs any more.")


def _check_first(site: Site) -> None:
    """What would fail at the end of a long installation should fail before it."""
    for engine in local_engines(site.loaded):
        if isinstance(engine.source, Path):
            require_folder(engine.spec.model, engine.source)
    apply.render_next(site)
    if not present(site.paths):  # orphans end first when the edge starts
        require_free([site.loaded.fleet.edge.listen, site.loaded.fleet.edge.admin])
    new, old = site.loaded.fleet.control.listen, daemon_address(site.paths)
    if daemon_pid(site.paths) is None or (old and split(old)[1] != split(new)[1]):
        with listen(new):
            pass


def _prepare(loaded: LoadedFleet, paths: StatePaths, console: Console) -> None:
    missing = [engine for engine in local_engines(loaded) if not is_prepared(engine, paths)]
    if missing:
        with Steps(console) as progress:
            for engine in missing:
                prepare(engine, paths, progress)


def _start_control_plane(loaded: LoadedFleet, paths: StatePaths, console: Console) -> None:
    pid, old, new = daemon_pid(paths), daemon_address(paths), loaded.fleet.control.listen
    if pid is not None and old in ("", new):
        signal_daemon(pid, signal.SIGHUP)  # it reads fleet.yaml again, and gives engines that failed another try
        console.print(f"The control plane runs already (pid {pid}).")
        return
    if pid is not None:
        console.print(f"control.listen changed from {old} to {new}: the control plane starts anew, engines run on.")
        with Steps(console) as progress:
            _end_control_plane(paths, pid, signal.SIGUSR1, progress)  # the next one adopts the engines
    paths.control_log.parent.mkdir(parents=True, exist_ok=True)
    bound(paths.control_log)
    command = [sys.executable, "-m", "control", "--fleet", str(loaded.path), "serve"]
    with paths.control_log.open("ab") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + CONTROL_TIMEOUT
    while daemon_pid(paths) != process.pid or page_snapshot(loaded) is None:
        code = process.poll()
        if code is not None or time.monotonic() > deadline:
            said = _tail(paths.control_log, start) or f"it ended with {code}"
            raise ControlError(f"The control plane did not start:\n{said}", f"The whole log: {paths.control_log}")
        time.sleep(0.1)
    console.print(f"The control plane runs (pid {process.pid}).")


def _start_edge(site: Site, console: Console) -> None:
    if running(site.paths):
        lines = reload_anywhere(site.loaded)
    else:
        lines = [*apply.start(site).lines(), *publish(site.loaded, site.paths)]
    for line in lines:
        console.print(line, markup=False)


def _wait_for_engines(loaded: LoadedFleet, paths: StatePaths, console: Console, names: Sequence[str] = ()) -> None:
    """Show local engines' phases until all are ready and the edge has found them. Raises EngineError at a failure."""
    ours = {
        engine.id for engine in local_engines(loaded) if not names or engine.id in names or engine.spec.model in names
    }
    if not ours:
        return
    began = time.monotonic()
    found_by = silent_since = None
    with EngineTable(console) as table:
        while True:
            snapshot = page_snapshot(loaded)
            if snapshot is None:
                if daemon_pid(paths) is None:
                    tail = _tail(paths.control_log)
                    raise ControlError(f"The control plane ended:\n{tail}", f"The whole log: {paths.control_log}")
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > CONTROL_TIMEOUT:
                    raise _silent(loaded, paths)
                time.sleep(0.3)
                continue
            silent_since = None
            mine = [backend for backend in snapshot["backends"] if backend["id"] in ours]
            table.show(_row(backend) for backend in mine)
            if time.monotonic() - began > SETTLE_SECONDS:
                _raise_if_failed(mine, paths)
            if len(mine) == len(ours) and all(_engine(backend).get("state") == "ready" for backend in mine):
                if all(backend["state"] in _FOUND for backend in mine):
                    break
                found_by = found_by or time.monotonic() + EDGE_SECONDS
                if time.monotonic() > found_by:
                    _raise_not_found(mine, paths)
            time.sleep(0.3)
    _tell_of_starts(mine, console)


def _tell_of_starts(backends: list[dict[str, Any]], console: Console) -> None:
    """How long each phase took, and where an engine runs, but not as fleet.yaml asks."""
    for backend in backends:
        spans = [Span(span["phase"], span["seconds"]) for span in _engine(backend).get("phases") or ()]
        if spans:
            console.print(f"{backend['id']}: {times(spans)}", markup=False, soft_wrap=True)
        for alarm in _engine(backend).get("alarms") or ():
            console.print(f"{backend['id']} runs, but not as asked: {alarm}", style="yellow", soft_wrap=True)


def _silent(loaded: LoadedFleet, paths: StatePaths) -> ControlError:
    url = Address(loaded.fleet.control.listen).url
    return ControlError(
        f"The control plane (pid {daemon_pid(paths)}) runs, but does not answer at {url}.",
        f"`make stop`, then `make run`. Its log: {paths.control_log}",
    )


def _row(backend: dict[str, Any]) -> EngineRow:
    engine = _engine(backend)
    state, phase = str(engine.get("state", "starting")), str(engine.get("phase", ""))
    if state == "ready" and backend["state"] not in _FOUND:
        phase = "the edge looks for it"
    since = engine.get("since") or time.time()
    return EngineRow(backend["id"], state, phase, str(engine.get("detail", "")), max(0.0, time.time() - float(since)))


def _engine(backend: dict[str, Any]) -> dict[str, Any]:
    return backend.get("engine") or {}


def _raise_if_failed(backends: list[dict[str, Any]], paths: StatePaths) -> None:
    for backend in backends:
        engine = _engine(backend)
        if engine.get("state") != "failed":
            continue
        log = paths.engine(backend["id"]) / "engine.log"
        failure = engine.get("failure") or {"kind": "unknown"}
        lines = "" if failure["kind"] == "unknown" else "\n".join(failure["lines"])
        tail = "" if lines else _tail(log)
        raise EngineError(
            f"The engine {backend['id']} failed ({engine['phase']}): {engine['detail']}"
            + (f"\nWhat {log} says of it:\n{lines}" if lines else "")
            + (f"\nThe end of {log}:\n{tail}" if tail else ""),
            "Correct the cause and run the same command again; what is ready goes on running. `make stop` ends all.",
        )


def _raise_not_found(backends: list[dict[str, Any]], paths: StatePaths) -> None:
    lost = ", ".join(f"{backend['id']}: {backend['reason'] or backend['state']}" for backend in backends
                     if backend["state"] not in _FOUND)  # fmt: skip
    raise EngineError(
        f"Engines are ready, but the edge does not reach them ({lost}).",
        f"Does something on this machine block loopback? The edge's log: {paths.edge_logs / 'error.log'}",
    )


def curl_command(loaded: LoadedFleet) -> str:
    """A shell command that streams an answer of the fleet's first model."""
    edge = loaded.fleet.edge
    model = loaded.fleet.default_model or next(iter(loaded.fleet.models))
    question = "What is the capital of France?"
    body = {"model": model, "stream": True, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    insecure = ["--insecure"] if edge.tls else []
    key = ' -H "Authorization: Bearer $KEY"' if edge.keys not in (None, "none") else ""
    url = f"{Address(edge.listen, edge.tls is not None).url}/v1/chat/completions"
    head = shlex.join(["curl", "--no-buffer", *insecure, url, "-H", "Content-Type: application/json"])
    return f"{head}{key} \\\n    -d {shlex.quote(json.dumps(body))}"


def _say_what_next(loaded: LoadedFleet, paths: StatePaths, console: Console) -> None:
    missing = _wait_for_models(paths, console)
    if missing:
        console.print("\n[bold yellow]Not every model can be used yet:[/]")
        for line in missing:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        console.print("\nThe edge asks them every second. Once they are ready, this streams an answer:\n")
    else:
        console.print("\n[bold green]Ready.[/] This streams an answer:\n")
    # Not through rich: it would wrap the line, and a wrapped command cannot be copied.
    print(f"  {curl_command(loaded)}\n", file=console.file, flush=True)
    console.print(f"The page: {Address(loaded.fleet.control.listen).url}/")
    console.print(f"Ends everything: {_stop_command(loaded)}")


def _wait_for_models(paths: StatePaths, console: Console) -> list[str]:
    """Wait a little until the edge has a ready backend for each model; what it says of those without one."""
    deadline = time.monotonic() + MODELS_SECONDS
    with Steps(console) as progress:
        while (missing := _without_backend(collect(paths))) and time.monotonic() < deadline:
            progress("Waiting until the edge has an engine for each model")
            time.sleep(0.2)
    return missing


def _without_backend(report: Report) -> list[str]:
    if report.state is None:
        return [report.problem]
    rows = list(report.state["backends"])
    served = {row["model"] for row in rows if row["state"] in SERVING}
    return [
        f"{row['id']} of {row['model']} at {row['address']} is not ready: {row['reason'] or 'it did not answer yet'}"
        for row in rows
        if row["model"] not in served
    ]


def _stop_command(loaded: LoadedFleet) -> str:
    """`make stop` alone knows the fleets that `make run` alone starts; any other one has to be named."""
    own = [REPOSITORY / "fleet.yaml", REPOSITORY / "examples" / "scripted.yaml"]
    return "make stop" if loaded.path in own else f"make stop FLEET={shlex.quote(str(loaded.path))}"


def _end_control_plane(paths: StatePaths, pid: int, number: signal.Signals, progress: Steps) -> None:
    """TERM ends the engines too; each may take its stop_timeout. KILL when it hangs: the engines' records remain."""
    born = birth(pid)
    signal_daemon(pid, number)
    deadline = time.monotonic() + _longest_stop(paths) + 20
    what = "Stopping the engines and the control plane" if number == signal.SIGTERM else "Ending the control plane"
    while born and birth(pid) == born:  # its pid file goes a moment before it does
        progress(what, "running answers may finish")
        if time.monotonic() > deadline:
            signal_daemon(pid, signal.SIGKILL)
            deadline += 20
        time.sleep(0.1)


def _end_follower(paths: StatePaths, console: Console) -> None:
    """End `signalbox edge` alone."""
    pid = daemon_pid(paths)
    if pid is not None:
        with Steps(console) as progress:
            _end_control_plane(paths, pid, signal.SIGUSR1, progress)


def _longest_stop(paths: StatePaths) -> float:
    """Seconds that the slowest engine may take to end."""
    found = [Record.load(file.parent) for file in (paths.root / "engines").glob("*/process.json")]
    return max([record.stop_seconds for record in found if record is not None], default=0.0)


def _tail(log: Path, start: int = 0) -> str:
    """The last lines of a log, from the byte ``start`` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_TAIL:])
