"""``signalbox diff``, ``restart``, ``logs``, ``adopt``; what ``up``, ``down`` and ``status`` do about containers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table

from control.edge.gate import EdgeGate
from control.edge.site import state_paths
from control.engines import image_version
from control.engines.adoption import unlike
from control.engines.containers import ContainerSpec, container_spec, container_specs, docker_backends
from control.engines.converge import Tools
from control.engines.hosts import Hosts
from control.engines.left_hosts import left
from control.engines.ownership import Adopted, adopt
from control.engines.plan import Found, Seen, Step, gone, plan
from control.engines.rollout import Rollout
from control.errors import EngineError
from control.fleet.load import LoadedFleet, load
from control.fleet.messages import did_you_mean
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.paths import StatePaths
from control.terminal import EngineRow, EngineTable, Steps
from control.tunnels.report import in_the_way

#: Seconds that threads get to end after Ctrl-C; Docker may still be answering.
CANCEL_SECONDS = 10.0
_STYLES = {"start": "green", "replace": "yellow", "wait": "yellow", "stop": "red", "conflict": "bold red"}
_WORDS = {"keep": "as it is", "wait": "finish", "start": "start", "replace": "replace", "stop": "stop",
          "conflict": "cannot"}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """What is to be done on which hosts, and which hosts cannot be asked."""

    steps: list[Step]
    seen: dict[str, Seen]
    problems: dict[str, EngineError]


def has_containers(loaded: LoadedFleet, paths: StatePaths) -> bool:
    """Whether any host of the fleet runs containers, or has left it with some."""
    return any(host.docker is not None for host in loaded.fleet.hosts.values()) or bool(left(paths, {}))


def require_known(loaded: LoadedFleet, names: Iterable[str]) -> None:
    """Raise EngineError for a name that is neither a model nor a backend."""
    backends = resolve_backends(loaded)
    known = [*loaded.fleet.models, *(backend.id for backend in backends)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"There are {', '.join(known[:20])}.")
            raise EngineError(f"There is no model and no backend {name!r} in {loaded.path.name}.", hint)


def planned(
    loaded: LoadedFleet, hosts: Hosts, names: Sequence[str] = (), anew: bool = False, ask: bool = True
) -> Planned:
    """Look at all Docker hosts and compare. Raises EngineError when the fleet itself cannot be made into containers.

    ``ask``: images that do not say which vLLM they have may be asked (``image_version.py``).
    """
    seen, problems = hosts.see()
    specs = container_specs(loaded, image_version.versions(loaded, state_paths(loaded), hosts, seen, ask))
    return Planned(plan(specs, seen, names or None, anew), seen, problems)


def announce(loaded: LoadedFleet, hosts: Hosts, console: Console, names: Sequence[str], pull: bool) -> Planned:
    """The plan, shown; ``pull``: after a look for newer images. Raises EngineError."""
    if pull:
        with Steps(console) as progress:
            hosts.pull(progress)
    elif any(image_version.unnamed(loaded)):
        with Steps(console) as progress:
            image_version.fetch(loaded, hosts, progress)
    found = planned(loaded, hosts, names)
    if found.steps or found.problems:
        console.print("Containers:")
        show_plan(found, console)
    return found


def show_plan(found: Planned, console: Console, details: bool = False) -> None:
    """Print what would be done and why; ``details``: also of what stays."""
    for step in found.steps:
        if step.settled and not details:
            continue
        style = _STYLES.get(step.do, "dim")
        console.print(f"  [{style}]{_WORDS[step.do]:<8}[/] {step.backend} on {step.host}: ", end="")
        console.print(step.why, markup=False, soft_wrap=True)
        for change in step.changes:
            console.print(f"           {change}", markup=False, soft_wrap=True)
    kept = sum(step.settled for step in found.steps)
    if kept and not details:
        console.print(f"  {kept} of {len(found.steps)} containers stay as they are.")
    for problem in found.problems.values():
        console.print(f"  [bold red]away    [/] {problem.message} {problem.hint}", soft_wrap=True)


def converge(
    found: Planned, hosts: Hosts, paths: StatePaths, console: Console, anew: bool = False,
    way: Callable[[str], str] = lambda _: "",
) -> None:  # fmt: skip
    """Carry the plan out and show how far it is. Raises EngineError with everything that failed.

    Ctrl-C ends it in good order; the next `up` goes on. ``anew``: what runs as asked is started again. ``way``: why a
    backend is out of reach whatever its engine does (``control.tunnels.report``).
    """
    states: dict[str, tuple[str, str, str, float]] = {}

    def tell(backend: str, state: str, phase: str, detail: str = "") -> None:
        before = states.get(backend)
        since = before[3] if before is not None and before[:2] == (state, phase) else time.time()
        states[backend] = (state, phase, detail, since)

    for step in found.steps:
        if step.spec is not None and not step.settled:
            hosts.remember(step.host)
    gate = EdgeGate(paths)
    tools = Tools(paths, gate, tell, threading.Event(), way)
    rollout = Rollout(found.steps, hosts.by_name, tools, gate, anew)
    rollout.start()
    with EngineTable(console) as table:

        def show() -> None:
            table.show(EngineRow(name, *row[:3], time.time() - row[3]) for name, row in sorted(states.items()))

        try:
            while rollout.running:
                show()
                time.sleep(0.2)
        except KeyboardInterrupt:
            tools.cancel.set()
            deadline = time.monotonic() + CANCEL_SECONDS
            while rollout.running and time.monotonic() < deadline:
                time.sleep(0.1)
            show()
            raise EngineError("Interrupted.", "The same command goes on where it was.") from None
        show()
    _raise_failures(rollout, found)


def _raise_failures(rollout: Rollout, found: Planned) -> None:
    failures = [*rollout.failures.values(), *found.problems.values()]
    if failures:
        texts = dict.fromkeys(failure.message for failure in failures)
        hints = dict.fromkeys(failure.hint for failure in failures if failure.hint)
        raise EngineError("\n".join(texts), "\n".join(hints))


def restart(path: Path, console: Console, names: Sequence[str]) -> None:
    """Start containers anew, one after another, each when it is empty. Raises EngineError."""
    loaded = load(path)
    paths = state_paths(loaded)
    require_known(loaded, names)
    _require_containers(loaded, names)
    with Hosts(loaded, paths) as hosts:
        found = planned(loaded, hosts, names, anew=True)
        show_plan(found, console)
        converge(found, hosts, paths, console, anew=True, way=in_the_way(loaded, paths))


def stop_named(path: Path, console: Console, names: Sequence[str]) -> None:
    """Drain, stop and remove the containers of these models and backends. Raises EngineError."""
    loaded = load(path)
    require_known(loaded, names)
    _require_containers(loaded, names)
    stop(loaded, state_paths(loaded), console, names)


def stop(loaded: LoadedFleet, paths: StatePaths, console: Console, names: Sequence[str] | None) -> None:
    """Drain, stop and remove the containers of these backends and models (None: all of this fleet)."""
    with Hosts(loaded, paths) as hosts:
        seen, problems = hosts.see()
        wanted = None if names is None else set(names)
        models = {backend.id: backend for backend in docker_backends(loaded)}
        steps = [
            gone(backend, host, there, "as you asked")
            for host, there in seen.items()
            for backend in dict.fromkeys(one.backend for one in there.ours)
            if wanted is None or backend in wanted or (backend in models and models[backend].model in wanted)
        ]
        if steps or problems:
            converge(Planned(steps, seen, problems), hosts, paths, console)
        else:
            console.print("None of its containers exists.")


def _require_containers(loaded: LoadedFleet, names: Sequence[str]) -> None:
    mine = docker_backends(loaded)
    known = {name for backend in mine for name in (backend.id, backend.model)}
    for name in names:
        if name not in known:
            raise EngineError(
                f"{name} has no container: its engine is a process of this machine, or not ours.",
                "The control plane starts local engines; `signalbox reload` gives one that failed another try.",
            )
    if not mine:
        raise EngineError(
            "This fleet has no engines in containers.", "Give it a host with docker (docs/containers.md)."
        )


def rows(loaded: LoadedFleet, paths: StatePaths) -> list[dict[str, Any]]:
    """What `signalbox status` says of containers: one row for each backend on a host with ``docker``."""
    if not has_containers(loaded, paths):
        return []
    with Hosts(loaded, paths) as hosts:
        found = planned(loaded, hosts, ask=False)
        lines = [_row(step) for step in found.steps]
        for name, problem in found.problems.items():
            if name not in loaded.fleet.hosts:
                lines.append(_nobody(name, problem))
            for backend in docker_backends(loaded):
                if backend.machine == name:
                    lines.append(_away(backend, problem))
        return lines


def pending(loaded: LoadedFleet, paths: StatePaths) -> list[str]:
    """What a reload leaves undone, in words: the containers that `signalbox up` would change, and how."""
    if not has_containers(loaded, paths):
        return []
    try:
        with Hosts(loaded, paths) as hosts:
            found = planned(loaded, hosts, ask=False)
    except EngineError as error:
        return [f"The containers were not compared with fleet.yaml: {error}"]
    lines = [f"{problem.message} {problem.hint}".strip() for problem in found.problems.values()]
    steps = [step for step in found.steps if not step.settled]
    if steps:
        lines.append("A reload leaves containers as they are. `signalbox up` would change these:")
        lines += [f"  {step.backend} on {step.host}: {'; '.join((step.why, *step.changes))}" for step in steps]
    return lines


def _row(step: Step) -> dict[str, Any]:
    best = max(step.found, key=lambda one: (one.alive, one.started), default=None)
    return {
        "id": step.backend,
        "host": step.host,
        "container": best.short if best else None,
        "name": best.name if best else None,
        "state": best.state if best else "absent",
        "exit_code": best.exit_code if best and not best.alive else None,
        "since": (best.started if best.alive else best.finished) or None if best else None,
        "image": step.spec.image if step.spec else best.facts.get("image") if best else None,
        "as_asked": step.settled,
        "why": step.why,
    }


def _away(backend: ResolvedBackend, problem: EngineError) -> dict[str, Any]:
    image = backend.engine.image if backend.engine is not None else None
    return {"id": backend.id, "host": backend.machine, "container": None, "name": None, "state": "unknown",
            "exit_code": None, "since": None, "image": image, "as_asked": None, "why": problem.message}  # fmt: skip


def _nobody(host: str, problem: EngineError) -> dict[str, Any]:
    """A host that has left fleet.yaml, and cannot be asked what it still runs."""
    return {"id": "?", "host": host, "container": None, "name": None, "state": "unknown", "exit_code": None,
            "since": None, "image": None, "as_asked": None, "why": f"{problem.message} {problem.hint}"}  # fmt: skip


def show_rows(lines: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print them as a table."""
    console = console or Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for heading in ("container of", "host", "id", "state", "image", "as fleet.yaml says"):
        table.add_column(heading)
    for line in lines:
        state = line["state"] + (f" ({line['exit_code']})" if line["exit_code"] else "")
        asked = "yes" if line["as_asked"] else f"no: {line['why']}" if line["as_asked"] is False else line["why"]
        cells = (line["id"], line["host"], line["container"] or "", state, line["image"] or "", asked)
        table.add_row(*(str(cell).replace("[", "\\[") for cell in cells))
    console.print(table)


def logs(path: Path, name: str, follow: bool, tail: int | None, output: BinaryIO) -> None:
    """Copy the output of one backend's engine to ``output``. Raises EngineError."""
    loaded = load(path)
    paths = state_paths(loaded)
    backend = next((one for one in resolve_backends(loaded) if one.id == name), None)
    if backend is None:
        require_known(loaded, [name])
        ids = ", ".join(one.id for one in resolve_backends(loaded) if one.model == name)
        raise EngineError(f"{name} is a model with several logs.", f"Name one of its backends: {ids}.")
    if backend.machine is None or loaded.fleet.hosts[backend.machine].docker is None:
        raise EngineError(
            f"{name} has no container.", f"The log of a local engine is {paths.engine(name) / 'engine.log'}."
        )
    with Hosts(loaded, paths) as hosts:
        seen, problems = hosts.see([backend.machine])
        for problem in problems.values():
            raise problem
        found = _newest(seen[backend.machine], name)
        if found is None:
            raise EngineError(f"{name} has no container on {backend.machine}.", f"Start it: signalbox up {name}")
        for piece in hosts.by_name[backend.machine].logs(found.id, follow, "all" if tail is None else tail):
            output.write(piece)
            output.flush()


def _newest(there: Seen, backend: str) -> Found | None:
    mine = [found for found in there.ours if found.backend == backend]
    return max(mine, key=lambda one: (one.alive, one.started), default=None)


def adopt_container(path: Path, name: str, container: str | None, say: Callable[[str], None]) -> None:
    """Take over a running container that is what fleet.yaml asks for; it is not touched. Raises EngineError."""
    loaded = load(path)
    paths = state_paths(loaded)
    require_known(loaded, [name])
    _require_containers(loaded, [name])
    backend = next((one for one in docker_backends(loaded) if one.id == name), None)
    if backend is None:
        raise EngineError(f"{name} is a model.", "Name one of its backends.")
    with Hosts(loaded, paths) as hosts:
        seen, problems = hosts.see([str(backend.machine)])
        for problem in problems.values():
            raise problem
        version = image_version.versions(loaded, paths, hosts, seen, ask=True).get(name)
        spec = container_spec(backend, loaded, version)
        there = seen[spec.host]
        if mine := _newest(there, name):
            raise EngineError(f"{name} has a container already: {mine.name} ({mine.short}).", "Nothing was changed.")
        wanted = container or _on_port(there, spec)
        row = hosts.by_name[spec.host].describe(wanted)
        if problems_found := unlike(row, spec):
            raise EngineError(
                f"{wanted} is not what fleet.yaml asks for {name}:\n  " + "\n  ".join(problems_found),
                "Change fleet.yaml to what runs, or stop that container and let `signalbox up` start its own.",
            )
        adopt(paths, row["Id"], Adopted(name, spec.hash(), spec.facts()))
    say(f"{name}: the container {row['Name'].lstrip('/')} ({row['Id'][:12]}) is this fleet's from now on.")


def _on_port(there: Seen, spec: ContainerSpec) -> str:
    for other in there.foreign:
        if any(port == spec.engine.port for _, port in other.ports):
            return other.id
    raise EngineError(
        f"No running container on {spec.host} opens port {spec.engine.port}.", "Name it: signalbox adopt BACKEND ID"
    )
