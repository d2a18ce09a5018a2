"""Real vLLM engines on this machine's CPU: the root's fleet.yaml in small, one engine to a core."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import requests
import yaml

from control.bench.edge.process import pinned
from control.engines.prepare import local_engines, prepare
from control.fleet.load import load
from control.paths import REPOSITORY, StatePaths
from tests.support.net import free_port

MODEL = "smollm2"
START_SECONDS = 300


class Cache(NamedTuple):
    """Prompt tokens that an engine looked up in its prefix cache, and those of them that were there."""

    queries: float
    hits: float


@contextmanager
def two_engines(**settings: Any) -> Iterator[list[str]]:
    """Addresses of two engines, whose caches hold all conversations of one arm; they end with the block.

    ``settings``: what fleet.yaml may say of an engine, in place of what stands here. Runtime and model are those of
    .signalbox; what is missing is installed, which takes minutes.
    """
    cores = sorted(os.sched_getaffinity(0)) * 2
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder, ExitStack() as running:
        fleet = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())
        model = fleet["models"] = {MODEL: fleet["models"][MODEL]}
        model[MODEL]["backends"] = [{"host": "here", "port": free_port()} for _ in range(2)]
        model[MODEL]["engine"] |= {"max_model_len": 2048, "kv_cache_memory": "2GiB", **settings}
        # Blocks: as small as this build takes them; on GPUs they have 16 tokens. (fleet.yaml says float32: on a CPU
        # without AVX-512 a prompt in bfloat16 takes six times as long.)
        model[MODEL]["engine"]["extra_args"] += ["--block-size", "32"]
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump(fleet))
        engines = local_engines(load(file))
        launches = [prepare(engine, StatePaths(REPOSITORY / ".signalbox")) for engine in engines]
        starts = [
            pinned(
                engine.id, launch.argv, core=core, port=engine.spec.port, path="/health",
                log=Path(folder) / f"{engine.id}.log", environment=launch.environment, seconds=START_SECONDS,
            )
            for engine, launch, core in zip(engines, launches, cores, strict=False)
        ]  # fmt: skip
        with ThreadPoolExecutor(len(starts)) as pool:  # side by side: each takes most of a minute
            trees = list(pool.map(running.enter_context, starts))
        yield [f"http://127.0.0.1:{tree.port}" for tree in trees]


def cache(url: str) -> Cache:
    """The engine's own counters of its prefix cache since it started."""
    text = requests.get(f"{url}/metrics", timeout=10).text

    def total(name: str) -> float:
        values = re.findall(rf"^vllm:prefix_cache_{name}_total\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        assert values, f"{url} has no counter of prefix cache {name}"
        return sum(map(float, values))

    return Cache(total("queries"), total("hits"))
