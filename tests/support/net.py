"""Ports, waiting, and the places of things."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).resolve().parent.parent.parent
T = TypeVar("T")
_random = random.Random(os.getpid() ^ time.time_ns())
#: Which of the processes that run tests side by side this is, and how many there are (pytest-xdist).
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
#: Ports given to this process: two parts of one test never get the same before either listens.
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, below the range from which outgoing connections take theirs.

    Processes side by side draw from numbers of their own: what one was given, and does not use yet, no other one gets.
    """
    for _ in range(200):
        port = _random.randrange(12_000 + _worker, 32_000, _workers)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise AssertionError("no free port found in 200 tries")


def wait_until(what: str, check: Callable[[], T], seconds: float = 5.0, every: float = 0.01) -> T:
    """Call ``check`` until its answer is true and give it back; AssertionError naming ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            last = answer = check()
            if answer:
                return answer
        except (OSError, LookupError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}; last seen: {last!r}")
        time.sleep(every)
