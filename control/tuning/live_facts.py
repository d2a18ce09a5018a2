"""What happened between two looks at running engines and at the edge: the facts that live rules judge. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from control.tuning.histogram import Histogram, joined
from control.tuning.samples import BackendSample, Counted, EdgeSample, EngineSample, ModelSample


@dataclass(frozen=True)
class Gauges:
    """Numbers of one moment: the engine's own, and what the edge has in flight there. ``kv_usage`` 0 to 1."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    in_flight: float | None = None


@dataclass(frozen=True)
class Asked:
    """What fleet.yaml says of an engine, as far as rules need it. None: not said, or not ours to start."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    chunked_prefill: bool | None = None
    ours: bool = False


@dataclass(frozen=True)
class Slo:
    """Seconds within which 95 of 100 are to be; None: no promise."""

    ttft: float | None = None
    itl: float | None = None


@dataclass(frozen=True)
class EngineFacts(Counted):
    """One engine over ``seconds``. Counts and histograms are of that time alone; what nothing told is None."""

    seconds: float
    gauges: tuple[Gauges, ...] = ()
    limit: float | None = None
    edge: BackendSample = field(default_factory=BackendSample)
    asked: Asked = Asked()

    def mean(self, gauge: str) -> float | None:
        """The mean of a gauge over the looks that saw it."""
        seen = self._seen(gauge)
        return sum(seen) / len(seen) if seen else None

    def peak(self, gauge: str) -> float | None:
        """The greatest value that a look saw."""
        return max(self._seen(gauge), default=None)

    def _seen(self, gauge: str) -> list[float]:
        return [value for one in self.gauges if (value := getattr(one, gauge)) is not None]

    @property
    def hit_share(self) -> float | None:
        """Of the tokens looked up in the prefix cache, those found."""
        return _share(self.prefix_hits, self.prefix_queries)

    @property
    def computed_tokens(self) -> float | None:
        """Tokens of prompts that were computed, not taken from the cache."""
        if self.prompt_tokens is None:
            return None
        return max(0.0, self.prompt_tokens - (self.prefix_hits or 0.0))

    @property
    def known_share(self) -> float | None:
        """Of the bytes of prompts that the edge routed here by their beginnings, those this engine had seen."""
        return _share(self.edge.known_bytes, self.edge.prompt_bytes)

    @property
    def tokens_each(self) -> float | None:
        """Tokens of KV cache that a running sequence has, on average."""
        running = [one for one in self.gauges if one.running and one.kv_usage is not None]
        if self.kv_tokens is None or not running:
            return None
        used = sum((one.kv_usage or 0.0) * self.kv_tokens for one in running)
        return used / sum(one.running or 0.0 for one in running) or None


@dataclass(frozen=True)
class Parts:
    """Where the mean TTFT went, in seconds. ``engine_rest``: tokenizing, and hops inside the server."""

    edge_wait: float
    engine_queue: float
    prefill: float
    engine_rest: float
    #: Between edge and engine, or unknown (0) when others' requests came past the edge.
    network: float

    @property
    def whole(self) -> float:
        """All together."""
        return self.edge_wait + self.engine_queue + self.prefill + self.engine_rest + self.network

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        values: dict[str, float] = asdict(self)
        return max(values, key=lambda name: values[name])


@dataclass(frozen=True)
class ModelFacts:
    """One model over a window: what clients saw, and its engines by id. Without an edge its histograms are None."""

    seconds: float
    engines: dict[str, EngineFacts] = field(default_factory=dict)
    wait: Histogram | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None
    waiting: float | None = None
    slo: Slo = Slo()

    @property
    def seen_ttft(self) -> Histogram | None:
        """As clients saw it; without an edge as the engines did."""
        return self.ttft if self.ttft is not None and self.ttft.count else self.of_engines("ttft")

    @property
    def seen_itl(self) -> Histogram | None:
        """Likewise."""
        return self.itl if self.itl is not None and self.itl.count else self.of_engines("itl")

    def of_engines(self, name: str) -> Histogram | None:
        """A histogram of all engines together."""
        return joined(getattr(engine, name) for engine in self.engines.values())

    def total(self, name: str) -> float:
        """The sum of a number over the engines that know it."""
        known: list[float | None] = [getattr(engine, name) for engine in self.engines.values()]
        return sum(value for value in known if value is not None)

    @property
    def hit_share(self) -> float | None:
        """As of an engine, over all of them."""
        return _share(self.total("prefix_hits"), self.total("prefix_queries"))

    @property
    def prompt_bytes(self) -> float:
        """Bytes of prompts that were routed by their beginnings, as far as they were hashed."""
        return sum(one.edge.prompt_bytes for one in self.engines.values())

    def share_of_bytes(self, name: str) -> float | None:
        """Of these bytes: ``known_bytes`` to the chosen engine, ``shared_bytes`` to any, ``salted_bytes`` to none."""
        part = sum(float(getattr(one.edge, name)) for one in self.engines.values())
        return _share(part, self.prompt_bytes)

    @property
    def parts(self) -> Parts | None:
        """Where the mean TTFT went; None when no engine told, or nothing ended in this window.

        vLLM counts a TTFT when the token comes, queue and prefill when the request ends. Over a window longer than the
        requests they belong together; in a shorter one the queue is that of requests which came earlier, and Little's
        law says what the present ones wait: requests that wait × time ÷ requests that came through. Where the parts do
        not add up, the engine's own TTFT is shared out in proportion.
        """
        ttft, queue, prefill = (self.of_engines(name) for name in ("ttft", "queue", "prefill"))
        inside, queued, filled = (one.mean if one is not None else None for one in (ttft, queue, prefill))
        if ttft is None or queue is None or inside is None or queued is None or filled is None:
            return None
        if abs(queue.count - ttft.count) > 0.2 * ttft.count:
            waiting = sum(engine.mean("waiting") or 0.0 for engine in self.engines.values())
            queued = waiting * self.seconds / ttft.count
        scale = min(1.0, inside / (queued + filled)) if queued + filled else 1.0
        waited = self.wait.mean or 0.0 if self.wait is not None else 0.0
        seen, network = self.ttft, 0.0
        if seen is not None and seen.mean is not None and abs(seen.count - ttft.count) <= 0.2 * ttft.count:
            network = max(0.0, seen.mean - waited - inside)
        rest = max(0.0, inside - (queued + filled) * scale)
        return Parts(waited, queued * scale, filled * scale, rest, network)


def engine_facts(
    samples: Sequence[EngineSample],
    gauges: Iterable[Gauges] = (),
    edge: tuple[BackendSample, BackendSample] | None = None,
    asked: Asked = Asked(),
) -> EngineFacts | None:
    """What an engine did from the first sample to the last.

    ``gauges``: looks between; without any, the samples' own. ``edge``: the edge's counts at both ends. None when there
    are not two samples, or the engine was started anew meanwhile.
    """
    if len(samples) < 2 or samples[0].started != samples[-1].started:
        return None
    first, last = samples[0], samples[-1]
    counts: dict[str, Any] = {}
    for name in ("preemptions", "prefix_queries", "prefix_hits", "prompt_tokens", "generation_tokens"):
        old, new = getattr(first, name), getattr(last, name)
        if old is not None and new is not None:
            if new < old:
                return None
            counts[name] = new - old
    for name in ("ttft", "itl", "queue", "prefill", "decode", "prompts", "iterations"):
        old, new = getattr(first, name), getattr(last, name)
        counts[name] = new.minus(old) if old is not None and new is not None else None
    looks = tuple(gauges) or tuple(Gauges(one.running, one.waiting, one.kv_usage) for one in samples)
    return EngineFacts(
        seconds=last.at - first.at, gauges=looks, kv_tokens=last.kv_tokens, prefix_caching=last.prefix_caching,
        limit=edge[1].limit if edge else None, edge=_between(*edge) if edge else BackendSample(), asked=asked, **counts,
    )  # fmt: skip


def model_facts(
    name: str, engines: dict[str, EngineFacts], edge: tuple[EdgeSample, EdgeSample] | None, slo: Slo = Slo()
) -> ModelFacts:
    """What clients of a model saw between two samples of the edge, and its engines' facts."""
    seconds = max((facts.seconds for facts in engines.values()), default=0.0)
    if edge is None:
        return ModelFacts(seconds, engines, slo=slo)
    nothing = ModelSample()
    first, last = edge[0].models.get(name, nothing), edge[1].models.get(name, nothing)
    histograms = {part: _since(getattr(first, part), getattr(last, part)) for part in ("wait", "ttft", "itl")}
    return ModelFacts(edge[1].at - edge[0].at, engines, waiting=last.waiting, slo=slo, **histograms)


def _since(old: Histogram | None, new: Histogram | None) -> Histogram | None:
    """A series of the edge begins with its first event: without an old one, all of it is new."""
    return new.minus(old) if old is not None and new is not None else new


def _between(old: BackendSample, new: BackendSample) -> BackendSample:
    counts = {name: max(0.0, getattr(new, name) - getattr(old, name))
              for name in ("prompt_bytes", "known_bytes", "shared_bytes", "salted_bytes")}  # fmt: skip
    return BackendSample(new.in_flight, new.limit, **counts)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
