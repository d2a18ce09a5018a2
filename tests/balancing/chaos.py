"""A crowd, engines that are killed and frozen, an edge that is reloaded and killed: what the crowd notices."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.balancing.crowd import Crowd, Story, stories
from tests.balancing.explain import Evidence, causes, twice
from tests.balancing.memory import MB, Memory, growth
from tests.balancing.violence import Deed, Violence
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until
from tests.support.proof import Row, row
from tests.support.queueing import queue_length

#: A clock fast enough that an engine's fate is known before the next one is hurt.
PROBE = {"interval": "500ms", "metrics": "1s", "window": "2s", "idle": "10s", "suspect": "1s", "answer": "2s"}
READ = "4s"
ENGINES, LIMIT, USERS = 4, 6, 48


@dataclass(frozen=True)
class Scale:
    requests: int
    reloads: int
    workers: int
    engines: int
    seed: int = 1


FULL = Scale(requests=20_000, reloads=50, workers=40, engines=30)
CALM = Scale(requests=15_000, reloads=0, workers=0, engines=0)
SMALL = Scale(requests=1_000, reloads=4, workers=4, engines=3)


@dataclass
class Outcome:
    """Everything that a run left behind."""

    seed: int
    stories: list[Story]
    evidence: Evidence
    seconds: float
    settled: float
    memory: Memory


def fleet(engines: dict[str, ScriptedEngine]) -> dict[str, Any]:
    backends = [{"id": name, "url": engine.url, "limit": LIMIT} for name, engine in engines.items()]
    model = {"backends": backends, "timeouts": {"read": READ}, "queue": {"max_waiting": 10_000}}
    return {"edge": {"probe": PROBE}, "models": {"alpha": model}}


def settled(edge: Edge, engines: dict[str, ScriptedEngine]) -> float:
    """Seconds until no slot is held, nobody waits, and no engine works for anybody."""
    began = time.monotonic()

    def quiet() -> bool:
        listed = edge.admin("GET", "/requests").json()
        at_work = sum(one.counters()["running"] for one in engines.values())
        return edge.in_flight() == 0 and queue_length(edge) == 0 and listed["total"] == 0 and at_work == 0

    wait_until("everything to be quiet", quiet, 15)
    return time.monotonic() - began


def run(scale: Scale) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        records = {f"alpha-{number}": Path(folder) / f"starts-{number}" for number in range(1, ENGINES + 1)}
        engines = {name: ScriptedEngine("alpha", starts_file=path) for name, path in records.items()}
        try:
            for engine in engines.values():
                engine.launch()
            for engine in engines.values():
                engine.ready()
            with Edge(fleet(engines), may_kill=True) as edge:
                return _run(scale, edge, engines, records)
        finally:
            for engine in engines.values():
                engine.kill()


def _run(scale: Scale, edge: Edge, engines: dict[str, ScriptedEngine], records: dict[str, Path]) -> Outcome:
    crowd = Crowd(edge.port, list(stories(scale.requests, scale.seed)), USERS)
    violence = Violence(edge, engines, scale.requests, lambda: len(crowd.done), scale.seed)
    began = time.monotonic()
    with Memory(edge) as memory:
        threads = violence.threads(scale.reloads, scale.workers, scale.engines)
        try:
            crowd.run()
        finally:
            violence.over = True
            for thread in threads:
                thread.join()
    seconds = time.monotonic() - began
    calm = settled(edge, engines)
    assert not violence.errors, violence.errors
    deeds = sorted(violence.deeds, key=lambda deed: deed.at)
    lines = wait_until("the whole log", lambda: _log(edge, crowd.done, deeds), 10, every=0.3)
    evidence = Evidence(deeds, lines, _starts(records))
    return Outcome(scale.seed, crowd.done, evidence, seconds, calm, memory)


def _log(edge: Edge, every: list[Story], deeds: list[Deed]) -> dict[str, dict[str, Any]]:
    """The log lines by id; none before all are there that no killed worker can have taken with it."""
    lines: dict[str, dict[str, Any]] = {}
    for line in edge.log_lines():
        assert line["id"] not in lines, f"two log lines of {line['id']}"
        lines[line["id"]] = line
    last = max((deed.at for deed in deeds if deed.kind == "worker killed"), default=0.0)
    missing = [story.id for story in every if story.began > last and story.status and story.id not in lines]
    return {} if missing else lines


def _starts(records: dict[str, Path]) -> dict[str, list[str]]:
    starts: dict[str, list[str]] = defaultdict(list)
    for name, path in records.items():
        for id_ in path.read_text().splitlines():
            if id_.startswith("chaos-"):
                starts[id_].append(name)
    return starts


def rows_of(outcome: Outcome) -> list[Row]:
    every, evidence = outcome.stories, outcome.evidence
    counted, unexplained = causes(every, evidence)
    for story in unexplained[:20]:
        print(f"Nothing explains this one:\n{evidence.story(story)}\n", flush=True)
    repeated = twice(evidence.starts)
    for id_ in repeated[:20]:
        print(f"{id_} began at {evidence.starts[id_]}; log: {evidence.lines.get(id_)}", flush=True)
    did = {kind: sum(deed.kind == kind for deed in evidence.deeds)
           for kind in ("reload", "worker killed", "engine killed", "engine frozen")}  # fmt: skip
    left = sum(story.outcome == "left" for story in every)
    waited = sum(1 for line in evidence.lines.values() if (line["queue_ms"] or 0) > 0)
    share = 100 * left / len(every)
    story = (
        f"{len(every):,} requests in {outcome.seconds:.0f} s, {share:.0f} % left by their clients, {waited:,} waited; "
        f"{did['reload']} reloads, {did['worker killed']} workers and {did['engine killed']} engines killed with -9, "
        f"{did['engine frozen']} frozen"
    )
    lost = ", ".join(f"{count} {cause}" for cause, count in sorted(counted.items())) or "none"
    return [
        row("Chaos: no request fails but by what was done to it", len(unexplained), 0, "unexplained",
            f"{story}; lost: {lost}", lost=dict(counted), deeds=did, seed=outcome.seed),
        row("Chaos: no request runs twice", len(repeated), 0, "ran twice",
            f"{sum(map(len, evidence.starts.values())):,} starts as the engines wrote them down"),
        row("Chaos: afterwards no slot is held and nobody waits", outcome.settled, 2, "s", "all clients gone"),
        *memory_rows("Chaos", outcome.memory),
    ]  # fmt: skip


def memory_rows(title: str, memory: Memory) -> list[Row]:
    rows = []
    parts = {"the largest worker": memory.workers, "the master": memory.master,
             "what is used of the shared dictionaries": memory.dictionaries}  # fmt: skip
    for part, samples in parts.items():
        bound = 0.25 if samples is memory.dictionaries else 2
        assert max(samples) > 0, f"nobody tells the size of {part}"
        second, grown = growth(samples)
        rows.append(row(f"{title}: memory stays flat ({part})", grown / MB, bound, "MB more",
                        f"median of the last third of the run; of the second {second / MB:.1f} MB"))  # fmt: skip
    return rows


def proof(scale: Scale = FULL) -> list[Row]:
    return rows_of(run(scale))


def calm(scale: Scale = CALM) -> list[Row]:
    """The same crowd with nothing done to anybody: workers that live long, and nothing at all may fail."""
    outcome = run(scale)
    failed = [story for story in outcome.stories if story.failed]
    for story in failed[:20]:
        print(f"Failed without a reason:\n{outcome.evidence.story(story)}\n", flush=True)
    return [row("A crowd that nobody disturbs: no request fails", len(failed), 0, "failed",
                f"{len(outcome.stories):,} requests in {outcome.seconds:.0f} s, clients that leave among them"),
            *memory_rows("A crowd that nobody disturbs", outcome.memory)]  # fmt: skip
