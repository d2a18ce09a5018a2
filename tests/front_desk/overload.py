"""Four times as many requests as two engines can serve, with the edge's queue and without it.

Both arms get the same arrivals. Clients are the same too: they ask for a stream, and leave when no first token has come
within ``PATIENCE``. Goodput counts short requests whose first token came within ``SLO``; a refusal is a miss.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import requests

from tests.balancing.clients import Text, open_loop
from tests.balancing.vllm_engines import MODEL, two_engines
from tests.support.client import CHAT
from tests.support.edge import Edge
from tests.support.net import wait_until
from tests.support.proof import Row, row

OVERLOAD = 4
SHORT_OF_TEN = 7
WARM = 6


@dataclass(frozen=True)
class Scale:
    """Times in seconds, lengths in words of the prompt and tokens of the answer (least, most).

    ``sequences``: max_num_seqs of an engine. ``wait``: how long the edge lets a request wait.
    """

    model: str
    sequences: int
    seconds: float
    calibration: float
    slo: float
    wait: float
    patience: float
    short: tuple[int, int, int]
    long: tuple[int, int, int]


@dataclass
class Asked:
    """One request as its client saw it. ``first``: seconds until its first token, if that came."""

    short: bool
    words: int
    tokens: int
    status: int = 0
    first: float | None = None
    whole: bool = False


@dataclass
class Arm:
    """What happened with the queue on, or off. Counts of the engines are sums of both, ``waiting`` is of one."""

    asked: list[Asked] = field(default_factory=list)
    waiting: float = 0
    preemptions: float = 0
    tokens: float = 0
    seconds: float = 0

    def good(self, slo: float) -> int:
        """Short requests whose first token came in time."""
        return sum(one.short and one.first is not None and one.first <= slo for one in self.asked)

    def facts(self, slo: float) -> dict[str, Any]:
        """For the JSON."""
        firsts = sorted(one.first for one in self.asked if one.short and one.first is not None)
        return {
            "arrivals": len(self.asked), "short": sum(one.short for one in self.asked), "good": self.good(slo),
            "whole": sum(one.whole for one in self.asked), "refused": sum(one.status == 429 for one in self.asked),
            "ttft_short_p50": round(firsts[len(firsts) // 2], 2) if firsts else None,
            "preemptions": self.preemptions, "waiting_in_one_engine": self.waiting,
            "tokens_per_second": round(self.tokens / self.seconds, 1),
        }  # fmt: skip


def _counts(url: str) -> dict[str, float]:
    text = requests.get(f"{url}/metrics", timeout=30).text
    return {
        name: sum(map(float, re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)))
        for name in ("num_requests_running", "num_requests_waiting", "num_preemptions_total", "generation_tokens_total")
    }


def _sum(urls: list[str], name: str) -> float:
    return sum(_counts(url)[name] for url in urls)


@contextmanager
def _watched(urls: list[str], arm: Arm) -> Iterator[None]:
    """Look at the engines twice a second, and count what they did."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            arm.waiting = max(arm.waiting, *(_counts(url)["num_requests_waiting"] for url in urls))

    names = ("num_preemptions_total", "generation_tokens_total")
    before, began = [_sum(urls, name) for name in names], time.monotonic()
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        arm.seconds = time.monotonic() - began
        arm.preemptions, arm.tokens = (_sum(urls, name) - old for name, old in zip(names, before, strict=True))
        stop.set()
        watcher.join()


def _requests(scale: Scale, seed: str) -> Iterator[Asked]:
    """Seven short ones of ten, in no order that repeats."""
    chance = Text(f"mix {seed}")
    while True:
        short = chance.number(1, 10) <= SHORT_OF_TEN
        words, least, most = scale.short if short else scale.long
        yield Asked(short, words, chance.number(least, most))


class Crowd:
    """Clients of one edge."""

    def __init__(self, edge: Edge, scale: Scale, http: httpx.AsyncClient, seed: str) -> None:
        self.url, self.scale, self.http = edge.url + CHAT, scale, http
        self.text = Text(f"text {seed}")

    async def ask(self, one: Asked) -> None:
        """Ask, and leave when the first token does not come in time."""
        body = {"model": self.scale.model, "stream": True, "max_tokens": one.tokens, "ignore_eos": True,
                "messages": [{"role": "user", "content": self.text.words(one.words)}]}  # fmt: skip
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.scale.patience) as patience:
                async with self.http.stream("POST", self.url, json=body) as answer:
                    one.status = answer.status_code
                    async for line in answer.aiter_lines():
                        # The event with the role alone, which vLLM sends first, is no token.
                        if one.first is None and '"content":"' in line and '"content":""' not in line:
                            one.first = time.monotonic() - began
                            patience.reschedule(None)
                        one.whole = one.whole or line == "data: [DONE]"
        except (TimeoutError, httpx.HTTPError):
            return


async def _session(edge: Edge, scale: Scale, seed: str, work: Any) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as http:
        await work(Crowd(edge, scale, http, seed))


def _fleet(urls: list[str], scale: Scale, on: bool) -> dict[str, Any]:
    """``on``: as docs/queue.md advises for engines with ``sequences``; else all goes to the engines at once."""
    limit = scale.sequences + 2 if on else 100_000
    queue = {"max_waiting": 1000, "timeout": f"{round(scale.wait * 1000)}ms", "kv_budget": on}
    backends = [{"url": url, "limit": limit} for url in urls]
    # Else streams teach nothing of how many tokens their bytes are.
    settings = {"probe": {"metrics": "500ms"}, "count_usage": True}
    return {"edge": settings, "models": {scale.model: {
        "backends": backends, "queue": queue, "routing": {"policy": "least_loaded"}}}}  # fmt: skip


async def _warm(crowd: Crowd) -> None:
    """Let a fresh edge see some requests: how many tokens their bytes are it has learned long before an overload."""
    scale = crowd.scale
    for words in [scale.long[0], scale.short[0]] * WARM:
        await crowd.ask(Asked(True, words, 4))


def capacity(urls: list[str], scale: Scale) -> float:
    """Requests per second of this mix: as many clients as sequences, each of which asks again at once.

    They wait for a slot as long as it takes: a refusal would not be what the engines can serve.
    """
    done: list[Asked] = []
    scale = replace(scale, wait=60, patience=120)

    async def work(crowd: Crowd) -> None:
        mix, stop = _requests(scale, "capacity"), time.monotonic() + scale.calibration

        async def client() -> None:
            while time.monotonic() < stop:
                one = next(mix)
                await crowd.ask(one)
                if time.monotonic() < stop:
                    done.append(one)

        await asyncio.gather(*(client() for _ in range(scale.sequences * len(urls))))

    with Edge(_fleet(urls, scale, on=True)) as edge:
        asyncio.run(_session(edge, scale, "capacity", work))
    assert all(one.whole for one in done)
    return len(done) / scale.calibration


def run(urls: list[str], scale: Scale, rate: float, on: bool, seed: str) -> Arm:
    """One arm: ``rate`` arrivals a second for ``scale.seconds``; who is under way then leaves."""
    arm = Arm()
    pauses = Text(f"pauses {seed}").pauses(round(rate * scale.seconds), 1 / rate)
    arm.asked = list(itertools.islice(_requests(scale, seed), len(pauses)))

    async def work(crowd: Crowd) -> None:
        await _warm(crowd)
        ends = time.monotonic() + scale.seconds
        everything = asyncio.ensure_future(
            open_loop(pauses, [lambda one=one: crowd.ask(one) for one in arm.asked])  # type: ignore[misc]
        )
        with _watched(urls, arm):
            await asyncio.wait([everything], timeout=ends - time.monotonic())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with Edge(_fleet(urls, scale, on)) as edge:
        asyncio.run(_session(edge, scale, seed, work))
        edge.idle(30)
    wait_until("idle engines", lambda: _sum(urls, "num_requests_running") + _sum(urls, "num_requests_waiting") == 0, 60)
    return arm


def rows(scale: Scale, engines: str, rate: float, on: Arm, off: Arm) -> list[Row]:
    """The promises of waiting in the edge."""
    what = (
        f"{engines}, {scale.seconds:g} s with {rate:.1f} arrivals a second ({OVERLOAD} times what they serve), 7 "
        f"of 10 short; clients leave after {scale.patience:g} s without a token, the edge lets wait {scale.wait:g} s"
    )
    good = f"short requests with a first token within {scale.slo:g} s: {on.good(scale.slo)} with, "
    good += f"{off.good(scale.slo)} without the queue, of the same {on.facts(scale.slo)['short']}"
    arms = {"on": on.facts(scale.slo), "off": off.facts(scale.slo)}
    times = on.good(scale.slo) / max(off.good(scale.slo), 1)
    throughput = on.tokens / on.seconds * off.seconds / off.tokens
    others = f"the same; without the queue {off.preemptions:g}"
    return [
        row("Under overload requests wait in the edge, not in an engine", on.waiting, 2, "sequences", what, arms=arms),
        row("Under overload no engine preempts", on.preemptions, 0, "preemptions", others),
        row("Under overload more are answered in time than without a queue", times, 2, "×", good, at_least=True),
        row("It costs no throughput: output tokens to those without a queue", throughput, 0.97, "×",
            f"the same; {on.tokens / on.seconds:.0f} tokens a second", at_least=True),
    ]  # fmt: skip


#: About 50 tokens of prompt and 8 to 24 of answer; about 300 and 120 to 280. The cache holds four long ones.
FULL = Scale(model=MODEL, sequences=6, seconds=180, calibration=30, slo=10, wait=5, patience=30,
             short=(6, 8, 24), long=(70, 120, 280))  # fmt: skip
#: Of scripted engines, which wait in line as vLLM does, but never preempt.
SMALL = Scale(model="alpha", sequences=4, seconds=4, calibration=1.5, slo=1, wait=0.5, patience=3,
              short=(6, 5, 10), long=(60, 40, 80))  # fmt: skip
ENGINE = {"max_model_len": 1024, "max_num_seqs": FULL.sequences, "kv_cache_memory": "96MiB"}


def measure(urls: list[str], scale: Scale) -> tuple[float, Arm, Arm]:
    """Arrivals a second, then what happened with the queue and without."""
    rate = OVERLOAD * capacity(urls, scale)
    return rate, run(urls, scale, rate, True, "arrivals"), run(urls, scale, rate, False, "arrivals")


def proof() -> list[Row]:
    """Two real vLLM engines on CPU, three minutes with the queue and three without."""
    with two_engines(**ENGINE) as urls:
        rate, on, off = measure(urls, FULL)
    what = f"two vLLM engines with {FULL.sequences} sequences and a KV cache that holds four long requests"
    return rows(FULL, what, rate, on, off)
