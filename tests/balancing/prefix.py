"""What `prefix` does on real vLLM engines: hits beside other routers, and a beginning that all clients share."""

from __future__ import annotations

from tests.balancing import hits, sharing
from tests.balancing.vllm_engines import two_engines
from tests.support.proof import Row


def proof(repeats: int = 3) -> list[Row]:
    """Both on the same two engines; every arm of every repeat has text that no engine has seen."""
    found, shared = [], []
    with two_engines() as urls:
        for number in range(repeats):
            found.append(hits.repeat(urls, [*hits.ARMS[number:], *hits.ARMS[:number]]))
            shared.append(sharing.repeat(urls))
    return [*hits.rows(found), *sharing.rows(shared)]
