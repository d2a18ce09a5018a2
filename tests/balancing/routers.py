"""The routers that are compared: ours, vllm-router and sglang-router, each in front of the same engines.

The peers run with the settings that their own documents start from; ours with those of a new fleet.yaml.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from control.bench.edge.peers import SGLANG_ROUTER, VLLM_ROUTER, Peer
from control.bench.edge.process import pinned
from tests.support.edge import Edge
from tests.support.net import free_port, wait_until

OURS = "signalbox"


@dataclass(frozen=True)
class Router:
    """One arm of a comparison."""

    name: str
    policy: str

    @property
    def title(self) -> str:
        return f"{self.name} {self.policy}"

    def in_front_of(self, model: str, urls: Sequence[str]) -> AbstractContextManager[str]:
        """Runs until the block ends; yields its address once it answers."""
        return _STARTS[self.name](self.policy, model, urls)


@contextmanager
def _ours(policy: str, model: str, urls: Sequence[str]) -> Iterator[str]:
    policy, _, limit = policy.partition(", limit ")
    backends = [{"url": url, **({"limit": int(limit)} if limit else {})} for url in urls]
    with Edge({"models": {model: {"backends": backends, "routing": {"policy": policy}}}}) as edge:
        yield edge.url


def _peer(peer: Peer, *first: str) -> Callable[..., AbstractContextManager[str]]:
    @contextmanager
    def start(policy: str, model: str, urls: Sequence[str]) -> Iterator[str]:
        port = free_port()
        command = [str(peer.install()), *first, "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
        command += ["--prometheus-port", str(free_port()), "--worker-urls", *urls]
        with tempfile.TemporaryDirectory(prefix="peer-") as folder:
            log = Path(folder) / "out.log"
            with pinned(peer.name, command, core=None, port=port, path="/health", log=log):
                url = f"http://127.0.0.1:{port}"
                wait_until(f"{peer.name} to know its engines", lambda: _knows(url, model, len(urls)), 30, every=0.1)
                yield url

    return start


def _knows(url: str, model: str, count: int) -> bool:
    """Whether as many requests in a row as there are engines are answered."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    return all(requests.post(f"{url}/v1/chat/completions", json=body, timeout=30).ok for _ in range(count))


_STARTS: dict[str, Callable[[str, str, Sequence[str]], AbstractContextManager[str]]] = {
    OURS: _ours,
    VLLM_ROUTER.name: _peer(VLLM_ROUTER),
    SGLANG_ROUTER.name: _peer(SGLANG_ROUTER, "launch"),
}
