"""What is done to an edge and its engines while a crowd asks: reloads, kills, freezes; each deed with its moment."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until


@dataclass(frozen=True)
class Deed:
    """``kind``: reload, worker killed, engine killed, engine frozen. Times are ``time.time()``.

    ``ports``: the client ports of the connections that a killed worker held.
    """

    kind: str
    at: float
    until: float
    target: str
    ports: frozenset[int] = frozenset()

    def __str__(self) -> str:
        held = f", held {len(self.ports)} connections" if self.ports else ""
        return f"{self.at:.3f} to {self.until:.3f}: {self.kind} {self.target}{held}"


@dataclass
class Violence:
    """Does ``reloads``, ``workers`` kills and ``engines`` kills and freezes while ``done()`` goes from 0 to ``total``.

    One engine at a time: there is always one left that can take requests.
    """

    edge: Edge
    engines: dict[str, ScriptedEngine]
    total: int
    done: Callable[[], int]
    seed: int
    deeds: list[Deed] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    over: bool = False

    def threads(self, reloads: int, workers: int, engines: int) -> list[threading.Thread]:
        """Start; join them after the crowd has ended."""
        works = [(self._reload, reloads), (self._kill_worker, workers), (self._hurt_engine, engines)]
        threads = []
        for number, (deed, count) in enumerate(works):
            chance = random.Random(self.seed + number)
            arguments = (deed, sorted(chance.uniform(0.02, 0.95) for _ in range(count)), chance)
            threads.append(threading.Thread(target=self._repeat, args=arguments))
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, deed: Callable[[random.Random], None], shares: list[float], chance: random.Random) -> None:
        """One deed each time that so large a share of the requests is done."""
        try:
            for share in shares:
                while self.done() < share * self.total and not self.over:
                    time.sleep(0.002)
                deed(chance)
        except BaseException as error:
            self.errors.append(error)

    def _note(self, kind: str, at: float, target: object, ports: frozenset[int] = frozenset()) -> None:
        self.deeds.append(Deed(kind, at, time.time(), str(target), ports))

    def _reload(self, chance: random.Random) -> None:
        began = time.time()
        self.edge.reload(force=True)
        self._note("reload", began, (self.edge.paths.conf / "generation").read_text().strip())

    def _kill_worker(self, chance: random.Random) -> None:
        """Stopped first: what it holds at its death is then known, and no story can be explained by chance."""
        workers = self.edge.workers()
        if not workers:
            return
        pid = chance.choice(workers)
        try:
            os.kill(pid, signal.SIGSTOP)
            process = psutil.Process(pid)
            wait_until("it to stop", lambda: process.status() == psutil.STATUS_STOPPED, 2, every=0.001)
            held = process.net_connections(kind="tcp")
            began = time.time()
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, psutil.Error):
            return  # a draining worker that has ended by itself
        ports = frozenset(one.raddr.port for one in held if one.raddr and one.laddr.port == self.edge.port)
        self._note("worker killed", began, pid, ports)

    def _hurt_engine(self, chance: random.Random) -> None:
        name = chance.choice(list(self.engines))
        engine = self.engines[name]
        began = time.time()
        if chance.random() < 0.5:
            engine.kill()
            self._note("engine killed", began, name)
            time.sleep(chance.uniform(0, 2))
            engine.start()
        else:
            engine.freeze()
            time.sleep(chance.uniform(0.5, 7))
            engine.thaw()
            self._note("engine frozen", began, name)
        wait_until(
            f"{name} to be back", lambda: self.edge.backends()[name]["state"] in ("ready", "busy"), 30, every=0.1
        )
