"""Two small vLLM engines on this machine's CPU behind an edge, and clients that bring about what live rules find."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml

from control.bench.edge.process import pinned
from control.engines.prepare import local_engines, prepare
from control.fleet.load import load
from control.paths import REPOSITORY, StatePaths
from control.tuning.advise import Finding
from control.tuning.live_facts import ModelFacts
from control.tuning.observe import EVERY, Observer, edge_metrics, judged, watch
from tests.support.edge import Edge
from tests.support.net import free_port

NAME = "smollm2"
START_SECONDS = 300
#: Each engine has room for 1,440 tokens (45 blocks of 32) and eight sequences: small, so that little work fills them.
SEQUENCES, STEP, LENGTH, KV_CACHE = 8, 2048, 1024, "64MiB"
#: Seconds that the relay to the far engine holds each direction's bytes.
FAR = 0.4


@dataclass
class Bench:
    """The edge and its models: what they differ in is how the edge sees the same two engines."""

    edge: Edge

    def watch(self, model: str, length: float) -> ModelFacts:
        """What `signalbox advise --live` would see of this model in so many seconds."""
        observer = watch(load(self.edge.fleet_file), length, [model])
        assert not observer.silent, observer.silent
        return dict(observer.facts())[model]

    def until(self, model: str, wanted: str, most: float, subject: str = "") -> Finding | None:
        """Look once a second until ``wanted`` is found (of ``subject``), for ``most`` seconds."""
        loaded = load(self.edge.fleet_file)
        observer = Observer(loaded, lambda: edge_metrics(loaded), most + 10)
        deadline = time.monotonic() + most
        while time.monotonic() < deadline:
            observer.look([model])
            facts = dict(observer.facts())[model]
            for found in judged([(model, facts)]):
                if found.id == wanted and subject in ("", found.subject):
                    return found
            time.sleep(EVERY)
        return None


def _write_engines(folder: Path) -> None:
    """A fleet.yaml of two engines, the second without a prefix cache."""
    fleet: dict[str, Any] = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())
    model = fleet["models"][NAME]
    model["engine"] |= {"kv_cache_memory": KV_CACHE, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": STEP,
                        "max_model_len": LENGTH}  # fmt: skip
    model["engine"]["extra_args"] += ["--block-size", "32"]
    model["backends"] = [{"host": "here", "port": free_port()}]
    other = json.loads(json.dumps(model))
    other["engine"]["prefix_caching"] = False
    other["backends"][0]["port"] = free_port()
    fleet["models"] = {NAME: model, "uncached": {**other, "aliases": []}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))


@contextmanager
def bench() -> Iterator[Bench]:
    """The running engines and the edge; everything ends with the block."""
    cores = sorted(os.sched_getaffinity(0)) * 2
    with tempfile.TemporaryDirectory(prefix="live-") as name, ExitStack() as running:
        folder = Path(name)
        _write_engines(folder)
        specs = local_engines(load(folder / "fleet.yaml"))
        launches = [prepare(engine, StatePaths(REPOSITORY / ".signalbox")) for engine in specs]
        starts = [
            pinned(
                spec.id, launch.argv, core=core, port=spec.spec.port, path="/health", log=folder / f"{spec.id}.log",
                environment=launch.environment, seconds=START_SECONDS,
            )
            for spec, launch, core in zip(specs, launches, cores, strict=False)
        ]  # fmt: skip
        with ThreadPoolExecutor(len(starts)) as pool:
            cached, uncached = (f"http://127.0.0.1:{tree.port}" for tree in pool.map(running.enter_context, starts))
        relay = running.enter_context(slow_relay(int(cached.rpartition(":")[2])))
        edge = running.enter_context(Edge(edge_fleet(cached, uncached, f"http://127.0.0.1:{relay}")))
        for model in MODELS:  # the first request of an engine compiles and allocates
            ask(edge.url, model, tokens(20), 4, threading.Event())
        yield Bench(edge)


MODELS = ("bounded", "free", "promised", "far", "both", "two")


def edge_fleet(cached: str, uncached: str, far: str) -> dict[str, Any]:
    """Models over the same engines: with and without a limit, with promises, over a slow way, two of them."""

    def model(*backends: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"backends": [{"model_name": NAME, **one} for one in backends], **more}

    limit = {"limit": SEQUENCES + 2}
    waiting = {"max_waiting": 256, "timeout": "120s"}
    return {
        "edge": {"probe": {"idle": "1h", "window": "30s"}},
        "models": {
            "bounded": model({"url": cached, **limit}, queue=waiting),
            "free": model({"url": cached}, queue={**waiting, "kv_budget": False}),
            "promised": model(
                {"url": cached, **limit}, queue={**waiting, "kv_budget": False}, slo={"ttft": "0.3s", "itl": "150ms"}
            ),
            "both": model({"url": cached, **limit}, {"url": uncached, "model_name": "uncached", **limit}),
            "far": model({"url": far, **limit}),
            "two": model({"url": cached, "limit": 1}, {"url": uncached, "model_name": "uncached", "limit": 1}),
        },
    }


_CHANCE = random.Random()


def tokens(count: int, seed: int | None = None) -> list[int]:
    """A prompt of so many tokens; the same for the same seed."""
    chance = random.Random(seed) if seed is not None else _CHANCE
    return [chance.randrange(1000, 40_000) for _ in range(count)]


def ask(url: str, model: str, prompt: list[int], answer: int, stop: threading.Event, **more: Any) -> int:
    """One stream to its end, or until ``stop``; the number of its events. ``more``: further keys of the body."""
    body = {"model": model, "prompt": prompt, "max_tokens": answer, "ignore_eos": True, "stream": True, **more}
    events = 0
    with requests.Session() as session:
        session.trust_env = False
        with session.post(f"{url}/v1/completions", json=body, stream=True, timeout=180) as reply:
            assert reply.status_code == 200, reply.text
            for line in reply.iter_lines():
                events += line.startswith(b"data: {")
                if stop.is_set():
                    break
    return events


Client = Callable[[threading.Event], None]


def over_and_over(
    url: str, model: str, prompt: Callable[[], list[int]], answer: int, pause: float = 0.0, begin: float = 0.0
) -> Client:
    """A client that asks again as soon as it has its answer, or ``pause`` seconds later."""

    def run(stop: threading.Event) -> None:
        stop.wait(begin)
        while not stop.is_set():
            ask(url, model, prompt(), answer, stop)
            stop.wait(pause)

    return run


@contextmanager
def clients(*all_of_them: Client, settle: float = 1.0) -> Iterator[None]:
    """These clients at work; after the block they leave, and their engine gets time to notice."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(all_of_them)) as pool:
        runs = [pool.submit(client, stop) for client in all_of_them]
        try:
            time.sleep(settle)
            yield
        finally:
            stop.set()
    for run in runs:
        run.result()
    time.sleep(1.0)


@contextmanager
def slow_relay(port: int) -> Iterator[int]:
    """A way to ``port`` of this machine on which bytes need FAR seconds in each direction; the port that it has."""
    listener = socket.create_server(("127.0.0.1", 0))
    closing = threading.Event()

    def accept() -> None:
        while not closing.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        closing.set()
        listener.close()


def _carry(source: socket.socket, target: socket.socket) -> None:
    """All bytes in order, each FAR seconds later."""
    held: list[tuple[float, bytes]] = []
    there = threading.Condition()

    def deliver() -> None:
        while True:
            with there:
                there.wait_for(lambda: bool(held))
                due, piece = held.pop(0)
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not piece:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(piece)
            except OSError:
                return

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        try:
            piece = source.recv(65536)
        except OSError:
            piece = b""
        with there:
            held.append((time.monotonic() + FAR, piece))
            there.notify()
        if not piece:
            return


def beginnings(count: int, shared: int, own: int) -> Callable[[], list[int]]:
    """Prompts that begin in ``count`` ways, in turn: so many shared tokens, then some of their own."""
    firsts = [tokens(shared) for _ in range(count)]
    turn = itertools.cycle(firsts)
    lock = threading.Lock()

    def prompt() -> list[int]:
        with lock:
            return [*next(turn), *tokens(own)]

    return prompt
