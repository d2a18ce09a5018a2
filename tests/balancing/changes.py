"""A fleet that is changed while streams run: none is broken, and the next request obeys."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.balancing.crowd import Crowd, Story
from tests.support.client import CHAT, chat, percentile
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row

POLICIES = ("prefix", "least_loaded", "session", "random_two", "round_robin")
ENGINES, TOKENS, DELAY_MS = 4, 40, 200
#: So much heavier than the others that everything new goes there.
HEAVY = 1000


@dataclass
class Changes:
    """One edge, its engines, and what fleet.yaml says of them at the moment."""

    edge: Edge
    records: dict[str, Path]
    backends: dict[str, dict[str, Any]]
    chance: random.Random
    names: list[str] = field(default_factory=list)
    policy: str = "prefix"
    away: dict[str, dict[str, Any]] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    begun: int = 0  # size of the removed backend's record
    left_behind: int = 0  # streams that ran on a backend when it was removed

    def fleet(self) -> dict[str, Any]:
        model = {"aliases": self.names, "routing": {"policy": self.policy}, "backends": list(self.backends.values()),
                 "queue": {"max_waiting": 10_000}}  # fmt: skip
        return {"models": {"alpha": model}}

    def apply(self, kind: str) -> None:
        """What ``signalbox reload`` does; AssertionError when it took more than telling the workers."""
        self.kinds[kind] += 1
        self.edge.write(self.fleet())
        began = time.monotonic()
        result = self.edge.reload()
        self.took.append(time.monotonic() - began)
        assert result.action == "pushed", result.lines()

    def ask(self, count: int = 4, model: str = "alpha") -> list[tuple[int, str]]:
        """New requests; the status and the backend of each ("" when none began it)."""
        answers = []
        for _ in range(count):
            self.asked += 1
            id_ = f"probe-{self.asked}"
            answer = self.edge.post(CHAT, chat(model, text=id_, tokens=1), headers={"X-Request-Id": id_})
            begun = [name for name, path in self.records.items() if id_ in path.read_text().split()]
            answers.append((answer.status_code, " ".join(begun)))
        return answers

    def expect(self, kept: bool, what: str, seen: object) -> None:
        if not kept:
            self.wrong.append(f"{what}: {seen}")

    def some(self) -> str:
        return self.chance.choice(list(self.backends))

    def without(self, name: str, what: str) -> None:
        """The next requests are answered, and not by this backend."""
        seen = self.ask()
        self.expect(all(status == 200 and by != name for status, by in seen), f"{what} {name}", seen)

    # The changes.

    def remove(self) -> None:
        name = self.some()
        self.left_behind += int(self.edge.backends()[name]["in_flight"])
        self.away[name] = self.backends.pop(name)
        self.apply("removed")
        self.without(name, "removed")
        self.begun = self.records[name].stat().st_size

    def add(self) -> None:
        name, backend = self.away.popitem()
        grown = self.records[name].stat().st_size - self.begun
        self.expect(grown == 0, f"removed {name}, yet requests began there", f"{grown} bytes of ids")
        self.backends[name] = backend
        self.apply("added")
        wait_until(f"{name} to be ready", lambda: self.edge.backends()[name]["state"] == "ready", 10)
        self.apply_weight(name)

    def weight(self) -> None:
        self.apply_weight(self.some())

    def apply_weight(self, name: str) -> None:
        backend = self.backends[name]
        backend["weight"] = HEAVY
        self.apply("weight")
        seen = self.ask(10)
        mostly = sum(by == name for _, by in seen) >= 9 and {status for status, _ in seen} == {200}
        self.expect(mostly, f"weight {HEAVY} of {name}", seen)
        del backend["weight"]
        self.apply("weight")

    def limit(self) -> None:
        """No more than run there already: nothing new comes until they have ended."""
        name, running = max(
            ((one["id"], one["in_flight"]) for one in self.edge.state()["backends"]), key=lambda x: x[1]
        )
        self.backends[name]["limit"] = max(1, running // 2)
        self.apply("limit")
        self.without(name, "limit of")
        del self.backends[name]["limit"]
        self.apply("limit")

    def tier(self) -> None:
        name = self.some()
        self.backends[name]["tier"] = 2
        self.apply("tier")
        self.without(name, "tier 2 of")
        del self.backends[name]["tier"]
        self.apply("tier")

    def alias(self) -> None:
        if self.names:
            name = self.names.pop()
            self.apply("alias")
            seen = self.ask(2, name)
            self.expect({status for status, _ in seen} == {404}, f"{name} taken away", seen)
            return
        name = f"alpha-name-{self.asked}"
        self.names.append(name)
        self.apply("alias")
        seen = self.ask(2, name)
        self.expect({status for status, _ in seen} == {200}, f"{name} added", seen)

    def change_policy(self) -> None:
        self.policy = self.chance.choice([policy for policy in POLICIES if policy != self.policy])
        self.apply("policy")
        seen = self.ask(12)
        self.expect({status for status, _ in seen} == {200}, f"policy {self.policy}", seen)
        if self.policy == "round_robin":
            self.expect({by for _, by in seen} == set(self.backends), "round_robin reaches all", seen)
        (model,) = self.edge.state()["models"]
        self.expect(model["policy"] == self.policy, f"policy {self.policy} in /state", model["policy"])

    def one(self) -> None:
        """Some change that can be made now."""
        works = [
            self.weight,
            self.limit,
            self.tier,
            self.alias,
            self.change_policy,
            self.add if self.away else self.remove,
        ]
        self.chance.choice(works)()


def _streams(over: threading.Event) -> Iterator[Story]:
    number = 0
    while not over.is_set():
        number += 1
        yield Story(f"stream-{number}", True, TOKENS)


def proof(changes: int = 100, streams: int = 200, seed: int = 1) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        records = {f"alpha-{number}": Path(folder) / f"starts-{number}" for number in range(1, ENGINES + 1)}
        engines = {name: ScriptedEngine("alpha", starts_file=path) for name, path in records.items()}
        try:
            for engine in engines.values():
                engine.launch()
            for engine in engines.values():
                engine.ready()
            backends = {name: {"id": name, "url": engine.url} for name, engine in engines.items()}
            work = Changes(Edge({}), records, backends, random.Random(seed))
            work.edge.write(work.fleet())
            with work.edge:
                return _under_streams(work, changes, streams)
        finally:
            for engine in engines.values():
                engine.kill()


def _under_streams(work: Changes, changes: int, streams: int) -> list[Row]:
    edge, over = work.edge, threading.Event()
    workers = set(edge.workers())
    crowd = Crowd(edge.port, _streams(over), streams, DELAY_MS)
    thread = threading.Thread(target=crowd.run)
    thread.start()
    fewest = streams
    try:
        wait_until("all streams to run", lambda: edge.in_flight() >= streams, 20)
        while len(work.took) < changes:
            work.one()
            fewest = min(fewest, crowd.running)
    finally:
        over.set()
        thread.join()
    assert set(edge.workers()) == workers, "a change replaced workers"
    edge.idle()
    for wrong in work.wrong[:20]:
        print(f"Not obeyed: {wrong}", flush=True)
    broken = [story for story in crowd.done if story.failed]
    for story in broken[:20]:
        print(f"Broken: {story}", flush=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(work.kinds.items()))
    events = sum(story.events for story in crowd.done)
    return [
        row("Changes of the fleet break no stream", len(broken), 0, "streams broken",
            f"{len(work.took)} changes ({kinds}) with at least {fewest} streams running; {len(crowd.done):,} streams, "
            f"{events:,} events, every one counted; {work.left_behind} ended on a backend that was removed"),
        row("The next requests obey a change", len(work.wrong), 0, "changes not obeyed",
            f"{work.asked:,} requests, each sent when the change was confirmed"),
        row("A change of the fleet takes effect quickly", max(work.took), 2, "s",
            f"the slowest; median {1000 * percentile(work.took, 0.5):.0f} ms, from reading fleet.yaml to the edge's "
            "answer"),
    ]  # fmt: skip
