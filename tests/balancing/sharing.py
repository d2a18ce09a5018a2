"""One beginning that all clients share, on two real vLLM engines: does the engine that saw it first get everything?"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from tests.balancing.clients import Client, Text, closed_loop, drive
from tests.balancing.comparison import facts, ratios
from tests.balancing.routers import OURS, Router
from tests.balancing.vllm_engines import MODEL
from tests.support.client import percentile
from tests.support.proof import Row, row

AT_ONCE, REQUESTS, ROUNDS = 8, 60, 4
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 60, 6, 4
ARMS = (Router(OURS, "prefix"), Router(OURS, "least_loaded"))


async def ask(seed: str, client: Client) -> None:
    """Short questions below one system prompt, 8 at a time; each client asks again as soon as it has its answer."""
    text = Text(seed)
    system = {"role": "system", "content": text.words(SYSTEM_WORDS)}

    def body() -> dict[str, Any]:
        messages = [system, {"role": "user", "content": text.words(QUESTION_WORDS)}]
        return {"model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}

    await closed_loop(AT_ONCE, [partial(client.first_event, body()) for _ in range(REQUESTS)])


def repeat(engines: Sequence[str], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """TTFT of each request in seconds, by arm. The arms take turns; each round has a system prompt of its own."""
    found: dict[str, list[float]] = {arm.title: [] for arm in ARMS}
    with ExitStack() as running:
        urls = {arm.title: running.enter_context(arm.in_front_of(MODEL, engines)) for arm in ARMS}
        for number in range(rounds):
            for title in list(urls)[:: 1 if number % 2 else -1]:
                found[title] += drive(urls[title], partial(ask, uuid.uuid4().hex))
    for title, seconds in found.items():
        p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
        print(f"  {title}: TTFT p50 {p50:.3f} s, p99 {p99:.3f} s", file=sys.stderr, flush=True)
    return found


def rows(repeats: Sequence[dict[str, list[float]]]) -> list[Row]:
    """The promise, from all repeats: percentiles of all their requests together, one run alone has too few."""
    together = {title: [one for found in repeats for one in found[title]] for title in repeats[0]}
    figures = [
        {title: {"TTFT p50, s": percentile(seconds, 0.5), "TTFT p99, s": percentile(seconds, 0.99)}
         for title, seconds in found.items()}
        for found in (together, *(repeats if len(repeats) > 1 else ()))
    ]  # fmt: skip
    first, *single = ratios(figures, "TTFT p99, s", *(arm.title for arm in ARMS))
    runs = f"; single runs {', '.join(f'{one:.2f}' for one in single)}" if single else ""
    return [
        row("A beginning that all clients share does not starve the second engine: TTFT p99 of `prefix` to that of "
            "`least_loaded`", first, 1.2, "×",
            f"{len(together[ARMS[0].title])} requests of each, in turns, two vLLM engines{runs}",
            **facts("One system prompt for all, real vLLM", figures[:1])),
    ]  # fmt: skip
