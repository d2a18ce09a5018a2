"""`signalbox advise --live` at the real engines: nothing about healthy ones; a queue and long prompts are found."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import requests

from control.tuning.catalogue import catalogue
from tests.vllm.conftest import Stack

LIVE = {rule.id for rule in catalogue() if rule.kind == "live"}


def ask(url: str, words: int, answer: int, stop: threading.Event) -> None:
    """A stream to its end, or until ``stop``. No two prompts begin alike."""
    prompt = f"{time.monotonic_ns()} " + "word " * words
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "stream": True}
    with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=120) as reply:
        assert reply.status_code == 200, reply.text
        for _ in reply.iter_lines():
            if stop.is_set():
                return


@contextmanager
def at_work(clients: Iterable[tuple[str, int, int, float]]) -> Iterator[None]:
    """Clients (address, words, tokens, seconds of pause) that ask over and over until the block ends."""
    stop = threading.Event()

    def run(url: str, words: int, answer: int, pause: float) -> None:
        while not stop.wait(pause):
            ask(url, words, answer, stop)

    with ThreadPoolExecutor(64) as pool:
        running = [pool.submit(run, *client) for client in clients]
        try:
            yield
        finally:
            stop.set()
    for one in running:
        one.result()


def advised(stack: Stack, seconds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The live findings, and everything that the command said."""
    said = stack.signalbox("advise", f"--live={seconds}s", "--json")
    told: dict[str, Any] = json.loads(said[said.index("{") :])  # before it, how far the look is
    assert told["silent"] == {}
    return [one for one in told["findings"] if one["id"] in LIVE], told


def until(stack: Stack, wanted: Callable[[set[tuple[str, str]]], bool]) -> None:
    """Advice until it has what is wanted: on a busy machine a prompt takes longer than on a quiet one."""
    for _ in range(4):
        found = {(one["id"], one["subject"]) for one in advised(stack, 8)[0]}
        if wanted(found):
            return
    raise AssertionError(found)


def test_healthy_engines_have_no_live_findings(stack: Stack) -> None:
    with at_work([(stack.url, 20, 30, 0.0)] * 2):
        found, told = advised(stack, 6)
    assert found == []
    seen = told["observed"]["smollm2"]
    assert seen["ttft"]["count"] > 0 and seen["ttft_parts"]["prefill"] > 0
    assert sum(engine["generation_tokens"] for engine in seen["engines"].values()) > 0


def test_a_queue_in_one_engine_and_long_prompts_in_the_other_are_told_apart(stack: Stack) -> None:
    """Past the edge: twenty-four short ones to an engine that runs sixteen, and a long one among few to the other."""
    first, second = stack.engine_urls
    with at_work([*[(first, 10, 120, 0.0)] * 24, *[(second, 10, 300, 0.0)] * 3, (second, 1500, 1, 1.5)]):
        until(stack, lambda found: {("queue_in_the_engine", "smollm2-1"), ("itl_spikes", "smollm2-2")} <= found)
    while stack.requests_running():
        time.sleep(0.2)
