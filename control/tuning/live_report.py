"""What a look at running engines has seen, in a line for people and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from control.tuning.histogram import Histogram
from control.tuning.live_facts import EngineFacts, ModelFacts
from control.tuning.rules_live import seconds
from control.tuning.rules_slo import parts_text


def summary(facts: ModelFacts) -> str:
    """One model over the window."""
    ttft, itl, parts = facts.seen_ttft, facts.seen_itl, facts.parts
    if ttft is None or not ttft.count:
        return f"nothing was asked of it in {seconds(facts.seconds)}."
    said = [f"{ttft.count:,.0f} first tokens in {seconds(facts.seconds)}, {_half_and_most(ttft)}"]
    if parts is not None:
        said.append(f"{seconds(parts.whole)} on average: {parts_text(parts)}")
    if itl is not None and itl.count:
        said.append(f"gaps between tokens {_half_and_most(itl)}")
    if facts.hit_share is not None:
        said.append(f"prefix cache hits {facts.hit_share:.0%}")
    peak = max((one.peak("kv_usage") or 0.0 for one in facts.engines.values()), default=0.0)
    return f"{'; '.join(said)}; KV caches {peak:.0%} full at the most, {facts.total('preemptions'):,.0f} preemptions."


def _half_and_most(times: Histogram) -> str:
    return f"P50 {seconds(times.quantile(0.5) or 0)}, P95 {seconds(times.quantile(0.95) or 0)}"


def as_data(facts: ModelFacts) -> dict[str, Any]:
    """For ``--json``: seconds and shares; null where nothing was observed."""
    return {
        "seconds": round(facts.seconds, 3), "ttft": _times(facts.seen_ttft), "itl": _times(facts.seen_itl),
        "queue_wait": _times(facts.wait), "ttft_parts": asdict(facts.parts) if facts.parts else None,
        "prefix_hits": facts.hit_share, "waiting": facts.waiting,
        "engines": {name: _engine(one) for name, one in facts.engines.items()},
    }  # fmt: skip


def _times(times: Histogram | None) -> dict[str, float | None] | None:
    if times is None or not times.count:
        return None
    shares = {f"p{100 * share:.0f}": times.quantile(share) for share in (0.5, 0.9, 0.95, 0.99)}
    return {"count": times.count, "mean": times.mean, **shares}


def _engine(facts: EngineFacts) -> dict[str, Any]:
    gauges = {name: {"mean": facts.mean(name), "peak": facts.peak(name)}
              for name in ("running", "waiting", "kv_usage", "in_flight")}  # fmt: skip
    return {
        "seconds": round(facts.seconds, 3), **gauges, "preemptions": facts.preemptions,
        "prompt_tokens": facts.prompt_tokens, "generation_tokens": facts.generation_tokens,
        "prefix_hits": facts.hit_share, "known_beginnings": facts.known_share, "kv_tokens": facts.kv_tokens,
        "queue": _times(facts.queue), "prefill": _times(facts.prefill), "decode": _times(facts.decode),
    }  # fmt: skip
