"""The deployment that is measured: started for a variant and ended again, or one that runs already."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml
from rich.console import Console

from control import run as lifecycle
from control.bench.results import Slo, Way
from control.bench.variants import Choice, Ports, measured_fleet, tuned_settings
from control.edge.process import present
from control.edge.site import state_paths
from control.engines.health import read_key
from control.engines.prepare import local_engines
from control.engines.processes import Record
from control.errors import BenchRunError
from control.fleet.load import LoadedFleet, load
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.fleet.source import parse, read
from control.page_client import Address
from control.serve import daemon_pid
from control.tuning.observe import edge_metrics

#: The key that the edge asks for, when a running fleet is measured.
KEY_VARIABLE = "SIGNALBOX_BENCH_KEY"
#: Words for asking an engine how many tokens they are.
_TIMEOUT = (5.0, 30.0)


@dataclass(frozen=True)
class Stand:
    """A fleet that serves, and what measuring needs to know of it."""

    loaded: LoadedFleet
    model: str
    settings: dict[str, Any]

    @property
    def backends(self) -> list[ResolvedBackend]:
        """The engines of the measured model."""
        return [one for one in resolve_backends(self.loaded) if one.model == self.model]

    def urls(self, way: Way) -> list[str]:
        """Where requests are sent: to the edge, or to each engine in turn."""
        if way == "direct":
            return [one.url for one in self.backends]
        edge = self.loaded.fleet.edge
        return [Address(edge.listen, edge.tls is not None).url]

    def key(self, way: Way) -> str:
        """The API key to send there; empty for none. Raises BenchRunError where keys differ, or one is missing."""
        if way == "edge":
            key = os.environ.get(KEY_VARIABLE, "")
            if self.loaded.fleet.edge.keys not in (None, "none") and not key:
                raise BenchRunError("The edge asks for an API key.", f"Put one into the variable {KEY_VARIABLE}.")
            return key
        keys = {read_key(one) for one in self.backends}
        if len(keys) > 1:
            raise BenchRunError(
                "The engines have different API keys: they cannot be asked in turn.", "Measure the variant edge alone."
            )
        return keys.pop()

    def verify(self, way: Way) -> bool | Path:
        """How certificates are checked there: the edge is ours and has no name here; engines may have their own CA."""
        return False if way == "edge" else self.backends[0].ca or True

    def name(self, way: Way) -> str:
        """What the model is called there."""
        return self.model if way == "edge" else self.backends[0].name

    def processes(self) -> list[psutil.Process]:
        """The engines' processes on this machine."""
        found: list[psutil.Process] = []
        for one in self.backends:
            record = Record.load(state_paths(self.loaded).engine(one.id))
            try:
                own = psutil.Process(record.pid) if record is not None else None
                found += [own, *own.children(recursive=True)] if own is not None else []
            except psutil.Error:
                continue
        return found

    def edge_metrics(self) -> str:
        """The edge's own metrics. Raises EdgeError."""
        return edge_metrics(self.loaded)

    @property
    def access_log(self) -> Path:
        return state_paths(self.loaded).edge_logs / "access.log"

    def arguments(self) -> list[str]:
        """How the first engine was started, where we started it; without the paths of this machine."""
        for engine in local_engines(self.loaded):
            if engine.spec.model == self.model and engine.spec.engine.command is None:
                from control.engines.args import vllm_arguments

                return vllm_arguments(replace(engine.spec, model_folder=Path(self.model)))
        return []


@dataclass(frozen=True)
class Server:
    """What the first engine says of itself. ``tokens_per_word`` is that of the words that prompts are made of."""

    version: str
    scripted: bool
    max_model_len: int | None
    tokens_per_word: float


def ask_server(stand: Stand, sample: Sequence[str]) -> Server:
    """Ask the first engine. What it does not tell has a usual value; raises BenchRunError when it does not answer."""
    first = stand.backends[0]
    key = read_key(first)
    with requests.Session() as session:
        session.trust_env = False
        session.headers.update({"Authorization": f"Bearer {key}"} if key else {})
        session.verify = str(first.ca) if first.ca else True
        try:
            listed = session.get(f"{first.url}/v1/models", timeout=_TIMEOUT).json()
            told = session.get(f"{first.url}/version", timeout=_TIMEOUT).json()
            body = {"model": first.name, "prompt": " ".join(sample)}
            counted = session.post(f"{first.url}/tokenize", json=body, timeout=_TIMEOUT)
        except (requests.RequestException, ValueError) as error:
            raise BenchRunError(f"{first.url} does not answer as vLLM does: {error}"[:300], "Is it ready?") from error
    cards = [card for card in listed.get("data", ()) if card.get("id") == first.name]
    ratio = counted.json()["count"] / len(sample) if counted.status_code == 200 else 1.3
    length = cards[0].get("max_model_len") if cards else None
    return Server(str(told.get("version", "")), bool(told.get("scripted")), length, ratio)


def write_fleet(base: LoadedFleet, model: str, choice: Choice, folder: Path, file: str) -> LoadedFleet:
    """The fleet of ``choice`` as a file of the run. Runtimes and models are the base fleet's own."""
    source = load(choice.fleet) if choice.fleet is not None else base
    if model not in source.fleet.models:
        raise BenchRunError(f"{source.path} has no model {model!r}.", "Name one with --model that all variants have.")
    data = parse(read(source.path), source.path).data
    count = len(source.fleet.models[model].backends)
    free = free_ports(3 + count)
    ports = Ports(free[0], free[1], free[2], free[3:])
    measured = measured_fleet(data, source.folder, model, choice, ports, "site")
    path = folder / file
    path.write_text(yaml.safe_dump(measured, sort_keys=False, allow_unicode=True))
    site = folder / "site"
    site.mkdir(exist_ok=True)
    kept = state_paths(base)
    for name, target in (("runtimes", kept.runtimes), ("models", kept.models)):
        target.mkdir(parents=True, exist_ok=True)
        if not (site / name).exists():
            (site / name).symlink_to(target.resolve())
    return load(path)


def start(loaded: LoadedFleet, model: str, console: Console) -> Stand:
    """Bring up a measured fleet, and wait until it serves. Raises what ``signalbox run`` raises."""
    lifecycle.run(loaded.path, console)
    return Stand(loaded, model, _settings(loaded, model))


def end(loaded: LoadedFleet, console: Console) -> None:
    """End it, whatever of it runs."""
    lifecycle.down(loaded.path, console, now=True)


def running(loaded: LoadedFleet, model: str) -> Stand:
    """The fleet that runs already. Raises BenchRunError when its edge does not."""
    if not present(state_paths(loaded)):
        raise BenchRunError(f"Nothing of {loaded.path} runs.", "`make run` starts it; or measure without --running.")
    return Stand(loaded, model, _settings(loaded, model))


def _settings(loaded: LoadedFleet, model: str) -> dict[str, Any]:
    engine = (parse(read(loaded.path), loaded.path).data["models"][model]).get("engine") or {}  # type: ignore[index]
    return tuned_settings(engine)


def require_idle(loaded: LoadedFleet) -> None:
    """Raise BenchRunError when engines of the fleet run here: they would take cores and memory from measured ones."""
    paths = state_paths(loaded)
    if local_engines(loaded) and daemon_pid(paths) is not None:
        raise BenchRunError(
            f"The engines of {loaded.path} run here: they would take cores and memory from those that are measured.",
            "`make stop` first. To measure them as they run: --running with the variants direct and edge.",
        )


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now, all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def choose_model(loaded: LoadedFleet, name: str | None) -> str:
    """The model that is measured: the one that is named (an alias will do), else the default or the first."""
    models = loaded.fleet.models
    if name is None:
        return loaded.fleet.default_model or next(iter(models))
    for model, facts in models.items():
        if name == model or name in facts.aliases:
            return model
    raise BenchRunError(f"{loaded.path} has no model {name!r}.", f"Take one of {', '.join(models)}.")


def slo_of(loaded: LoadedFleet, model: str) -> Slo:
    """The limits that fleet.yaml gives the model: its ITL is what each token may take."""
    asked = loaded.fleet.models[model].slo
    return Slo(ttft=asked.ttft / 1000 if asked.ttft else None, tpot=asked.itl / 1000 if asked.itl else None)
