"""What the edge's counters say of a span of time: rates, shares, quantiles. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

#: Stands for all models together.
ALL = ""
#: How a request ended that did not get its answer (docs/errors.md); a client that leaves is no error.
FAILED = frozenset({"engine_cut", "engine_error", "engine_timeout", "edge_error"})
_HISTOGRAMS = {
    "signalbox_ttft_seconds": "ttft",
    "signalbox_itl_seconds": "itl",
    "signalbox_queue_wait_seconds": "wait",
}
_ENGINE = {
    "signalbox_engine_prefix_queries_total": "prefix_queries",
    "signalbox_engine_prefix_hits_total": "prefix_hits",
}


@dataclass
class Counters:
    """Of one model or backend since the edge began. Histograms: upper bound in seconds → observations up to it."""

    requests: float = 0.0
    failed: float = 0.0
    tokens: float = 0.0
    queue: float = 0.0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    ttft: dict[float, float] = field(default_factory=dict)
    itl: dict[float, float] = field(default_factory=dict)
    wait: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """The edge's counters at one moment (Unix seconds)."""

    at: float
    models: Mapping[str, Counters]
    backends: Mapping[str, Counters]
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """One model (or ALL) over ``seconds``. Rates per second, times in seconds; None where nothing was observed."""

    seconds: float
    requests: float
    tokens: float
    failed: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    wait_p50: float | None
    wait_p99: float | None
    queue: float


@dataclass(frozen=True)
class Share:
    """One backend over a span: requests per second, and the share of prompt tokens found in its prefix cache."""

    requests: float
    prefix_hits: float | None


def read_sample(text: str, at: float) -> Sample:
    """A sample out of the edge's ``/metrics``. Raises ValueError for what is no Prometheus text."""
    models: dict[str, Counters] = {}
    backends: dict[str, Counters] = {}
    limits: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            model, backend = labels.get("model", ""), labels.get("backend", "")
            if name == "signalbox_requests_total":
                for counters in _both(models, backends, model, backend):
                    counters.requests += value
                    counters.failed += value if _failed(labels.get("end", ""), labels.get("code", "")) else 0.0
            elif name == "signalbox_tokens_total" and labels.get("kind") == "completion":
                models.setdefault(model, Counters()).tokens += value
            elif name == "signalbox_queue_length":
                models.setdefault(model, Counters()).queue += value
            elif name == "signalbox_backend_limit":
                limits[backend] = value
            elif name in _ENGINE:
                of = backends.setdefault(backend, Counters())
                setattr(of, _ENGINE[name], getattr(of, _ENGINE[name]) + value)
            elif name.endswith("_bucket") and name[:-7] in _HISTOGRAMS:
                buckets = getattr(models.setdefault(model, Counters()), _HISTOGRAMS[name[:-7]])
                buckets[float(labels["le"])] = value
    return Sample(at, models, backends, limits)


def _failed(end: str, code: str) -> bool:
    """Whether good requests ended so: a wrong key or body is the client's own, no room and no engine are not."""
    return end in FAILED or (end == "refused" and (code == "429" or code.startswith("5")))


def _both(models: dict[str, Counters], backends: dict[str, Counters], model: str, backend: str) -> list[Counters]:
    found = [models.setdefault(model, Counters())]
    return [*found, backends.setdefault(backend, Counters())] if backend else found


def between(old: Sample, new: Sample) -> dict[str, Traffic]:
    """The traffic of every model, and of ALL, from one sample to a later one."""
    seconds = max(new.at - old.at, 1e-3)
    names = sorted(new.models)
    deltas = {name: _delta(old.models.get(name, Counters()), new.models[name]) for name in names}
    traffic = {name: _traffic(deltas[name], seconds) for name in names if name != ALL}
    return {ALL: _traffic(_sum(deltas.values()), seconds), **traffic}


def shares(old: Sample, new: Sample) -> dict[str, Share]:
    """The same of every backend."""
    seconds = max(new.at - old.at, 1e-3)
    found = {}
    for name, counters in new.backends.items():
        delta = _delta(old.backends.get(name, Counters()), counters)
        hits = delta.prefix_hits / delta.prefix_queries if delta.prefix_queries else None
        found[name] = Share(delta.requests / seconds, hits)
    return found


def quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """The ``q``-quantile of a cumulative histogram as Prometheus' histogram_quantile has it; None when it is empty.

    Above the last finite bound it is that bound.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank, lower, below = q * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below:
            inside = max(0.0, rank - below) / (count - below)
            return lower if bound == float("inf") else lower + (bound - lower) * inside
        lower, below = (bound if bound != float("inf") else lower), max(below, count)
    return lower


def middle(values: Sequence[float], q: float) -> float | None:
    """The ``q``-quantile of single values, by rank; None of none."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


def _traffic(delta: Counters, seconds: float) -> Traffic:
    return Traffic(
        seconds=seconds,
        requests=delta.requests / seconds,
        tokens=delta.tokens / seconds,
        failed=delta.failed / delta.requests if delta.requests else None,
        ttft_p50=quantile(delta.ttft, 0.5),
        ttft_p99=quantile(delta.ttft, 0.99),
        itl_p50=quantile(delta.itl, 0.5),
        itl_p99=quantile(delta.itl, 0.99),
        wait_p50=quantile(delta.wait, 0.5),
        wait_p99=quantile(delta.wait, 0.99),
        queue=delta.queue,
    )


_COUNTS = ("requests", "failed", "tokens", "prefix_queries", "prefix_hits")


def _delta(old: Counters, new: Counters) -> Counters:
    """What came on top; an edge that was started anew began at 0. The length of a queue is no counter."""
    found = Counters(queue=new.queue)
    anew = any(getattr(new, name) < getattr(old, name) for name in _COUNTS[:3])
    before = Counters() if anew else old
    for name in _COUNTS:
        setattr(found, name, max(0.0, getattr(new, name) - getattr(before, name)))
    for name in _HISTOGRAMS.values():
        earlier = getattr(before, name)
        setattr(found, name, {le: max(0.0, count - earlier.get(le, 0.0)) for le, count in getattr(new, name).items()})
    return found


def _sum(parts: Iterable[Counters]) -> Counters:
    total = Counters()
    for part in parts:
        for name in (*_COUNTS, "queue"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        for name in _HISTOGRAMS.values():
            into = getattr(total, name)
            for le, count in getattr(part, name).items():
                into[le] = into.get(le, 0.0) + count
    return total
