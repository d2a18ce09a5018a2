"""Proof: real vLLM engines bring about what each live rule finds, and a healthy run brings about none of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from control.tuning.observe import judged
from tests.support.proof import Row, row
from tests.tuning.live_vllm import Bench, Client, ask, beginnings, bench, clients, over_and_over, tokens

#: Seconds in which a rule has to find what was brought about; most need a few, on a busy machine many.
MOST = 90
HEALTHY_SECONDS = 15


@dataclass(frozen=True)
class Provoked:
    """What ``rule`` is to find at ``model`` (a way of the edge to the engines) when these clients are at work."""

    rule: str
    model: str
    how: str
    crowd: Callable[[str], Iterable[Client]]
    #: The backend that it is said of, where both would have it.
    subject: str = ""


def _again(model: str, count: int, prompt: int, answer: int) -> Callable[[str], Iterable[Client]]:
    return lambda url: [over_and_over(url, model, lambda: tokens(prompt), answer) for _ in range(count)]


def _long_among_short(pause: float) -> Callable[[str], Iterable[Client]]:
    """Seconds of ``pause`` between two long prompts."""

    def crowd(url: str) -> list[Client]:
        short = [over_and_over(url, "promised", lambda: tokens(30), 90) for _ in range(3)]
        return [*short, over_and_over(url, "promised", lambda: tokens(800), 1, pause=pause, begin=2.0)]

    return crowd


def _prompts_without_pause(url: str) -> list[Client]:
    answers = [over_and_over(url, "free", lambda: tokens(30), 100) for _ in range(4)]
    return [*answers, *(over_and_over(url, "free", lambda: tokens(150), 1) for _ in range(10))]


def _one_beginning(url: str) -> list[Client]:
    prompt = beginnings(1, 512, 20)
    return [over_and_over(url, "promised", prompt, 40) for _ in range(24)]


def _many_beginnings(url: str) -> list[Client]:
    prompt = beginnings(10, 450, 10)
    return [over_and_over(url, "both", prompt, 4) for _ in range(4)]


def _pairs(url: str) -> list[Client]:
    """The second of two with one beginning comes while the first holds the only place of its engine."""

    def run(stop: threading.Event) -> None:
        while not stop.is_set():
            prompt = tokens(310)  # 2,100 bytes: the edge's first point is at 2 KB
            first = threading.Thread(target=ask, args=(url, "two", [*prompt, *tokens(2)], 20, stop))
            first.start()
            stop.wait(0.2)
            ask(url, "two", [*prompt, *tokens(2)], 20, stop)
            first.join()

    return [run]


def _salts(url: str) -> list[Client]:
    """One beginning, a new salt with each request."""
    prompt = beginnings(1, 320, 10)

    def run(stop: threading.Event) -> None:
        while not stop.is_set():
            ask(url, "both", prompt(), 4, stop, cache_salt=str(time.monotonic_ns()))

    return [run, run]


PROVOKED = (
    Provoked("preemptions", "free", "8 sequences that grow to 320 tokens, room for 1,440", _again("free", 8, 120, 200)),
    Provoked("kv_cache_nearly_full", "free", "2 sequences of 660 tokens, room for 1,440", _again("free", 2, 660, 8)),
    Provoked("queue_in_the_engine", "free", "20 clients, no limit, 8 sequences", _again("free", 20, 50, 100)),
    Provoked("prefix_cache_misses", "both", "10 beginnings of 450 tokens in turn, two engines of 1,440",
             _many_beginnings, "both-1"),
    Provoked("prefix_cache_misses", "both", "the same at an engine with its prefix cache off",
             _many_beginnings, "both-2"),
    Provoked("salts_keep_apart", "both", "one beginning of 320 tokens, a cache_salt for each request", _salts),
    Provoked("prefix_sent_elsewhere", "two", "pairs of equal beginnings, limit 1 at both engines", _pairs),
    Provoked("itl_spikes", "promised", "3 answers, and a prompt of 800 tokens every 2 s", _long_among_short(1.5)),
    Provoked("slo_itl_missed", "promised", "the same, 0.2 s between two prompts, itl: 150ms", _long_among_short(0.2)),
    Provoked("decode_starved", "free", "4 answers, and prompts of 150 tokens without a pause", _prompts_without_pause),
    Provoked("hits_without_gain", "promised", "24 clients with one beginning, limit 10", _one_beginning),
    Provoked("slo_ttft_missed", "promised", "the same, ttft: 300ms", _one_beginning),
    Provoked("slow_first_token", "bounded", "24 clients, limit 10", _again("bounded", 24, 100, 40)),
    Provoked("far_engine", "far", "a way on which bytes need 0.4 s in each direction", _again("far", 4, 50, 4)),
)  # fmt: skip


def healthy(one: Bench) -> Row:
    """Two clients with short prompts: nothing is to be said."""
    with clients(*_again("bounded", 2, 60, 40)(one.edge.url)):
        facts = one.watch("bounded", HEALTHY_SECONDS)
    found = judged([("bounded", facts)])
    made = facts.total("generation_tokens")
    return row(
        "findings about a healthy engine", len(found), 0, "", f"2 clients, {made:.0f} tokens in {HEALTHY_SECONDS} s",
        found=[one.as_data() for one in found],
    )  # fmt: skip


def provoked(one: Bench, case: Provoked) -> Row:
    """The seconds that it took until the rule found it; what it said is in the JSON."""
    began = time.monotonic()
    with clients(*case.crowd(one.edge.url), settle=0.0):
        found = one.until(case.model, case.rule, MOST, case.subject)
        took = time.monotonic() - began
    said = (found.text, found.cure) if found is not None else ("", "")
    return row(f"`{case.rule}` is found", took, MOST, "s", case.how, text=said[0], cure=said[1])


def proof() -> list[Row]:
    """Two engine starts for all."""
    with bench() as one:
        return [healthy(one), *(provoked(one, case) for case in PROVOKED)]
