"""Looks at what the engines use of their machines, every few seconds. A machine that does not answer leaves a gap.

Each machine is asked in a thread of its own: a slow one delays neither the others nor whoever minds the engines.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import requests

from control.engines.docker import DockerHost
from control.engines.gpu_feed import GpuFeed
from control.engines.gpus import QUERY, QUERY_PROCESSES, Gpu, chosen, from_dcgm, from_nvidia_smi, users
from control.engines.samples import INTERVAL, KEPT, Hour, Sample, Spent, Use, use, with_gpus
from control.errors import EngineError

log = logging.getLogger(__name__)

#: Seconds for an exporter or nvidia-smi to answer; bytes that an exporter may send.
ANSWER_SECONDS, ANSWER_LIMIT = 3.0, 4 * 1024**2
#: So many containers of a host are asked for at the same time: Docker 20.10 takes a second for each answer.
AT_ONCE = 4


@dataclass(frozen=True)
class Target:
    """One engine that runs: the process ``pid`` of this machine with its children, or a ``container`` on a ``host``.

    ``gpus``: its GPUs as fleet.yaml names them; ``dcgm``: the exporter that knows them.
    """

    id: str
    pid: int | None = None
    host: DockerHost | None = None
    container: str = ""
    gpus: tuple[int | str, ...] = ()
    dcgm: str | None = None

    @property
    def machine(self) -> str:
        """Who is asked: the host's name, empty for this machine."""
        return self.host.name if self.host is not None else ""


class Machine:
    """One machine and its engines: what was seen at the look before, for what can only be counted."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, Spent]] = {}
        self._feeds: dict[str, GpuFeed] = {}

    def look(self, targets: list[Target], at: float) -> dict[str, Sample]:
        """A sample of each engine that could be looked at; ``at``: Unix seconds."""
        found = self._containers(targets, at) if targets[0].host is not None else self._processes(targets, at)
        lost = self._before.keys() - {target.id for target in targets}
        for identity in lost:
            del self._before[identity]
        return found

    def close(self) -> None:
        """Read no feed any more."""
        for feed in self._feeds.values():
            feed.close()

    def _containers(self, targets: list[Target], at: float) -> dict[str, Sample]:
        exporters = {target.dcgm for target in targets if target.dcgm is not None}
        told = {url: exporter(url) for url in exporters}
        fed = {target.container: target for target in targets if target.dcgm is None}
        for container in self._feeds.keys() - fed.keys():
            self._feeds.pop(container).close()
        for target in targets:
            assert target.host is not None
            if target.dcgm is None and target.container not in self._feeds:
                self._feeds[target.container] = GpuFeed(target.host, target.container)

        def one(target: Target) -> Sample | None:
            assert target.host is not None
            try:
                spent, memory = target.host.spent(target.container)
            except EngineError as error:
                log.debug("%s: not looked at: %s", target.id, error)
                return None
            gpus = chosen(told[target.dcgm], target.gpus) if target.dcgm else self._feeds[target.container].gpus()
            return with_gpus(Sample(at, self._percent(target.id, target.container, spent), memory), gpus)

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="samples") as pool:
            samples = zip(targets, pool.map(one, targets), strict=True)
            return {target.id: sample for target, sample in samples if sample is not None}

    def _processes(self, targets: list[Target], at: float) -> dict[str, Sample]:
        gpus, uses = local_gpus()
        found = {}
        for target in targets:
            assert target.pid is not None
            try:
                pids, seconds, memory = family_use(target.pid)
            except psutil.NoSuchProcess:
                continue
            cpu = self._percent(target.id, str(target.pid), Spent(seconds, time.monotonic()))
            mine = {uuid for pid in pids for uuid in uses.get(pid, ())}
            found[target.id] = with_gpus(Sample(at, cpu, memory), chosen(gpus, mine))
        return found

    def _percent(self, identity: str, life: str, spent: Spent) -> float | None:
        """``life``: which process or container it is; another one has counted from nothing."""
        before = self._before.get(identity)
        self._before[identity] = (life, spent)
        return spent.percent_since(before[1]) if before is not None and before[0] == life else None


class Sampler:
    """The last hour of every engine. May be asked by several threads."""

    def __init__(self, targets: Callable[[], Iterable[Target]], interval: float = INTERVAL) -> None:
        """``targets``: the engines that run now; ``interval`` in seconds."""
        self._targets, self._interval = targets, interval
        self._lock = threading.Lock()
        self._hours: dict[str, Hour] = {}
        self._machines: dict[str, Machine] = {}
        self._jobs: dict[str, threading.Thread] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. Returns at once."""
        self._closing.set()
        for machine in list(self._machines.values()):
            machine.close()

    def uses(self) -> Mapping[str, Use]:
        """What is shown of each engine that was looked at in the last hour, by backend id."""
        at = time.time()
        with self._lock:
            return {identity: use(hour, at) for identity, hour in self._hours.items()}

    def samples(self, identity: str) -> list[Sample]:
        """The last hour of one engine, oldest first; empty for one that was never looked at."""
        with self._lock:
            hour = self._hours.get(identity)
            return hour.since(time.time() - KEPT * self._interval) if hour is not None else []

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval, time.monotonic())
            try:
                self._tick(time.time())
            except Exception:  # a bug: say so and go on
                log.exception("The engines could not be looked at.")

    def _tick(self, at: float) -> None:
        machines: dict[str, list[Target]] = {}
        for target in self._targets():
            machines.setdefault(target.machine, []).append(target)
        with self._lock:
            for identity in [name for name, hour in self._hours.items() if not hour.since(at - KEPT * self._interval)]:
                del self._hours[identity]
        for name in self._machines.keys() - machines.keys():
            self._machines.pop(name).close()
        for name, targets in machines.items():
            job = self._jobs.get(name)
            if job is not None and job.is_alive():  # it has not answered since the last time: a gap
                continue
            machine = self._machines.setdefault(name, Machine())
            self._jobs[name] = threading.Thread(
                target=self._look, args=(machine, targets, at), name=f"samples {name}", daemon=True
            )
            self._jobs[name].start()

    def _look(self, machine: Machine, targets: list[Target], at: float) -> None:
        try:
            found = machine.look(targets, at)
        except Exception:  # a bug: say so, and leave a gap
            log.exception("The engines of %s could not be looked at.", targets[0].machine or "this machine")
            return
        with self._lock:
            for identity, sample in found.items():
                self._hours.setdefault(identity, Hour()).add(sample)


def family_use(pid: int) -> tuple[list[int], float, int]:
    """A process with its descendants: their pids, CPU seconds, and main memory in bytes (what they share counts once
    for each). Raises psutil.NoSuchProcess when it has ended."""
    leader = psutil.Process(pid)
    pids, seconds, memory = [], 0.0, 0
    for process in (leader, *leader.children(recursive=True)):
        try:
            with process.oneshot():
                times, resident = process.cpu_times(), process.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            if process is leader:
                raise psutil.NoSuchProcess(pid) from None
            continue
        pids.append(process.pid)
        seconds += times.user + times.system
        memory += resident
    return pids, seconds, memory


def local_gpus() -> tuple[list[Gpu], dict[int, set[str]]]:
    """The GPUs of this machine, and who uses which (pid → UUIDs); nothing where there is no nvidia-smi."""
    if shutil.which(QUERY[0]) is None:
        return [], {}
    answers = []
    for command in (QUERY, QUERY_PROCESSES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.debug("nvidia-smi: %s", error)
            return [], {}
        answers.append(done.stdout)
    return [gpu for line in answers[0].splitlines() if (gpu := from_nvidia_smi(line))], users(answers[1])


def exporter(url: str) -> list[Gpu]:
    """What a DCGM exporter says; empty when it says nothing that can be used."""
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy is for other machines
            with session.get(url, timeout=ANSWER_SECONDS, stream=True) as answer:
                answer.raise_for_status()
                return from_dcgm(answer.raw.read(ANSWER_LIMIT, decode_content=True).decode(errors="replace"))
    except (requests.RequestException, ValueError, OSError) as error:
        log.debug("The DCGM exporter at %s: %s", url, error)
        return []
