"""Looks at running engines and at the edge, and remembers what they said: the samples that live facts are made of."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from control.edge.admin import AdminClient, read_token
from control.edge.site import state_paths
from control.engines.health import read_key
from control.errors import SignalboxError
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.tuning.advise import Finding, worst_first
from control.tuning.live_facts import Asked, EngineFacts, Gauges, ModelFacts, Slo, engine_facts, model_facts
from control.tuning.rules_live import ENGINE_RULES
from control.tuning.rules_slo import MODEL_RULES
from control.tuning.samples import MAX_BYTES, EdgeSample, EngineSample, edge_sample, engine_sample
from control.vllm.profiles import with_profile

#: Seconds to connect to an engine and to wait for its answer. A busy one may answer late.
TIMEOUTS = (2.0, 5.0)
#: So many engines are asked side by side.
TOGETHER = 16

#: Seconds between two looks of ``watch``.
EVERY = 1.0

Tell = Callable[[float], None]
#: Text of the edge's /metrics; raises SignalboxError when there is no edge.
EdgeMetrics = Callable[[], str]


class Observer:
    """What engines and edge said in the last ``keep`` seconds. ``look`` asks them; ``findings`` judges what it saw."""

    def __init__(self, loaded: LoadedFleet, edge: EdgeMetrics, keep: float) -> None:
        self._edge_metrics = edge
        self._keep = keep
        self._lock = threading.Lock()
        #: Backend id, or "" for the edge → why it said nothing usable the last time.
        self.silent: dict[str, str] = {}
        self.set_fleet(loaded)

    def set_fleet(self, loaded: LoadedFleet) -> None:
        """Look at another fleet from now on; nothing that was seen is compared with it."""
        with self._lock:
            self._loaded = loaded
            self._backends = resolve_backends(loaded)
            self._samples: dict[str, deque[EngineSample]] = {one.id: deque() for one in self._backends}
            self._gauges: dict[str, deque[tuple[float, Gauges]]] = {one.id: deque() for one in self._backends}
            self._edges: deque[EdgeSample] = deque()
            self.silent = {}

    def look(self, models: Iterable[str] = ()) -> None:
        """Ask the edge and all engines once; those of ``models``, when any are named. Silent ones raise nothing."""
        with self._lock:
            wanted = set(models)
            backends = [one for one in self._backends if not wanted or one.model in wanted]
        with ThreadPoolExecutor(min(TOGETHER, len(backends) or 1)) as pool:
            answers = list(pool.map(ask, backends))
        edge = self._ask_edge()
        with self._lock:
            for backend, (sample, problem) in zip(backends, answers, strict=True):
                if backend.id not in self._samples:
                    continue  # the fleet changed meanwhile
                if sample is None:
                    self.silent[backend.id] = problem
                    continue
                self.silent.pop(backend.id, None)
                samples = self._samples[backend.id]
                if samples and samples[-1].started != sample.started:
                    samples.clear()
                samples.append(sample)
                in_flight = edge.backends[backend.id].in_flight if edge and backend.id in edge.backends else None
                gauges = Gauges(sample.running, sample.waiting, sample.kv_usage, in_flight)
                self._gauges[backend.id].append((sample.at, gauges))
            if edge is not None:
                self._edges.append(edge)
            self._forget()

    def note(self, state: Mapping[str, Any]) -> None:
        """Take up the gauges of an answer to the edge's GET /state that was asked for something else."""
        rows = state.get("backends")
        now = time.monotonic()
        with self._lock:
            for row in rows if isinstance(rows, list) else []:
                if isinstance(row, Mapping) and row.get("id") in self._gauges:
                    values = (_number(row.get(name)) for name in ("running", "waiting", "kv_usage", "in_flight"))
                    self._gauges[row["id"]].append((now, Gauges(*values)))

    def facts(self) -> list[tuple[str, ModelFacts]]:
        """What happened from the oldest to the newest look that is kept, by model."""
        with self._lock:
            edge = (self._edges[0], self._edges[-1]) if len(self._edges) > 1 else None
            found = []
            for name, model in self._loaded.fleet.models.items():
                engines = {
                    one.id: facts
                    for one in self._backends
                    if one.model == name and (facts := self._facts_of(one, edge)) is not None
                }
                slo = Slo(*(value / 1000 if value else None for value in (model.slo.ttft, model.slo.itl)))
                found.append((name, model_facts(name, engines, edge, slo)))
            return found

    def findings(self) -> list[Finding]:
        """All that live rules find, the worst first."""
        return judged(self.facts())

    def _facts_of(self, backend: ResolvedBackend, edge: tuple[EdgeSample, EdgeSample] | None) -> EngineFacts | None:
        samples = tuple(self._samples[backend.id])
        gauges = [one for at, one in self._gauges[backend.id] if samples and samples[0].at <= at]
        ends = None
        if edge is not None and backend.id in edge[1].backends:
            last = edge[1].backends[backend.id]
            ends = (edge[0].backends.get(backend.id, last), last)
        return engine_facts(samples, gauges, ends, asked(backend))

    def _ask_edge(self) -> EdgeSample | None:
        try:
            sample = edge_sample(self._edge_metrics(), time.monotonic())
        except (SignalboxError, ValueError) as error:
            self.silent[""] = error.message if isinstance(error, SignalboxError) else str(error)
            return None
        self.silent.pop("", None)
        return sample

    def _forget(self) -> None:
        oldest = time.monotonic() - self._keep
        kept: list[deque[EngineSample] | deque[EdgeSample]] = [*self._samples.values(), self._edges]
        for samples in kept:
            while len(samples) > 2 and samples[1].at < oldest:  # one from before the window: its beginning
                samples.popleft()
        for gauges in self._gauges.values():
            while gauges and gauges[0][0] < oldest:
                gauges.popleft()


def watch(loaded: LoadedFleet, length: float, models: Iterable[str] = (), tell: Tell | None = None) -> Observer:
    """Look once a second for ``length`` seconds, or until Ctrl-C. ``tell`` hears how many of them are over."""
    observer = Observer(loaded, lambda: edge_metrics(loaded), length + 10)
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            observer.look(models)
            over = time.monotonic() - began
            if tell is not None:
                tell(min(over, length))
            if over >= length:
                break
            time.sleep(min(EVERY, length - over))
    return observer


def edge_metrics(loaded: LoadedFleet) -> str:
    """The /metrics of the edge of this fleet on this machine. Raises EdgeError when there is none, or no answer."""
    client = AdminClient(loaded.fleet.edge.admin, read_token(state_paths(loaded).admin_token))
    try:
        return client.metrics()
    finally:
        client.close()


def judged(models: Iterable[tuple[str, ModelFacts]]) -> list[Finding]:
    """What the live rules find in these facts, the worst first."""
    found: list[Finding] = []
    for name, model in models:
        found += MODEL_RULES.findings(name, model)
        for backend, engine in model.engines.items():
            found += ENGINE_RULES.findings(backend, engine)
    return worst_first(found)


def asked(backend: ResolvedBackend) -> Asked:
    """What fleet.yaml says of this engine, its profile included."""
    if backend.engine is None:
        return Asked()
    names = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "chunked_prefill",
             "max_model_len")  # fmt: skip
    given = {name: value for name in names if (value := getattr(backend.engine, name)) is not None}
    merged: dict[str, Any] = with_profile(backend.engine.profile, given)
    return Asked(ours=True, **{name: merged.get(name) for name in names[:-1]})


def ask(backend: ResolvedBackend) -> tuple[EngineSample | None, str]:
    """A sample of the engine's own metrics; or None, and why there is none."""
    try:
        key = read_key(backend)
        with requests.Session() as session:
            session.trust_env = False  # no proxy of the environment stands between us and an engine
            answer = session.get(
                f"{backend.url}/metrics", headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=TIMEOUTS,
                verify=str(backend.ca) if backend.ca else True, allow_redirects=False, stream=True,
            )  # fmt: skip
            text = answer.raw.read(MAX_BYTES + 1, decode_content=True).decode(errors="replace")
        if answer.status_code != 200:
            return None, f"/metrics answers {answer.status_code}"
        sample = engine_sample(text, time.monotonic())
    except SignalboxError as error:
        return None, error.message
    except (requests.RequestException, OSError, ValueError) as error:
        return None, f"{backend.url}/metrics cannot be read: {error}"[:300]
    if sample.running is None and sample.prompt_tokens is None:
        return None, f"{backend.url}/metrics has none of vLLM's numbers"
    return sample, ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
