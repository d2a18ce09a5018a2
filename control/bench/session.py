"""One run of ``signalbox bench``: every variant, as often as asked, in an order that shows drift as spread."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from control import __version__
from control.bench import aiperf, counters, prompts, stand, store, watch
from control.bench.facts import commit, machine
from control.bench.figures import Measured, figures, span, without_curves
from control.bench.records import Request, as_scheduled
from control.bench.results import EdgeCounters, Figures, Machine, Mark, Pass, Run, Slo, Variant
from control.bench.results import Workload as Sent
from control.bench.stand import Stand
from control.bench.variants import Choice
from control.bench.warmup import warm_up
from control.bench.workload import Workload
from control.edge.site import state_paths
from control.engines.progress import Progress
from control.errors import BenchRunError
from control.fleet.load import LoadedFleet

#: A pass with fewer whole answers than this share is no measurement of speed.
_USABLE = 0.5


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    loaded: LoadedFleet
    model: str
    workload: Workload
    workload_file: Path
    scale: str
    choices: Sequence[Choice]
    repeats: int
    slo: Slo
    seed: int | None
    name: str = ""
    running: bool = False
    command: Sequence[str] = ()


@dataclass
class Measurement:
    """All that was measured of one variant so far."""

    choice: Choice
    variant: Variant
    passes: list[tuple[Pass, Measured]] = field(default_factory=list)

    def shown(self, slo: Slo, seed: int) -> Variant:
        """The variant with its figures over all usable passes."""
        good = [(one, measured) for one, measured in self.passes if one.usable]
        if not good:
            return self.variant
        measured = [one for _, one in good]
        names = sorted({request.group for one in measured for request in one.requests})
        return self.variant.model_copy(update={
            "figures": figures(measured, slo, seed),
            "groups": {name: figures([_of_group(one, name) for one in measured], slo, seed) for name in names},
            "engine": counters.added(one.engine for one, _ in good),
        })  # fmt: skip


def _of_group(whole: Measured, name: str) -> Measured:
    return Measured([one for one in whole.requests if one.group == name], whole.seconds)


class Session:
    """Measures a plan and keeps it in ``folder``; run.json is right after every pass."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress, log: Console) -> None:
        self._plan, self.folder, self._progress, self._log = plan, folder, progress, log
        self._seed = plan.seed if plan.seed is not None else secrets.randbelow(2**31)
        self._began, self._machine = time.time(), machine()
        self._measured: dict[str, Measurement] = {}
        self._order = 0
        self._rate: float | None = None
        self._server: stand.Server | None = None
        self._warnings = _about(self._machine)
        self._runtime = aiperf.install(state_paths(plan.loaded), progress)
        shutil.copyfile(plan.workload_file, folder / "workload.yaml")

    def measure(self) -> Run:
        """Measure everything. What was measured is kept, however it ends; raises what stopped it."""
        try:
            for repeat in range(self._plan.repeats):
                for choices in self._in_turn(repeat):
                    with self._serving(choices[0]) as serving:
                        for choice in choices:
                            self._one(serving, choice, repeat)
        except BaseException as error:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.keep(state, "Ctrl-C" if state == "interrupted" else str(error))
            raise
        return self.keep("complete")

    def keep(self, state: str, problem: str = "") -> Run:
        """Write run.json as it stands now."""
        plan = self._plan
        passes = sorted((one for each in self._measured.values() for one, _ in each.passes), key=lambda one: one.order)
        tools = {"aiperf": aiperf.version()}
        if self._server is not None and self._server.version:
            tools["vllm"] = self._server.version
        sent = Sent(
            name=plan.workload_file.stem, title=plan.workload.title, scale=plan.scale, file="workload.yaml",
            parameters=plan.workload.model_dump(mode="json", exclude={"scales"}, exclude_defaults=True),
            requests=plan.workload.requests, groups=list(plan.workload.groups), capacity=self._rate,
        )  # fmt: skip
        run = Run(
            id=self.folder.name, name=plan.name, state=state, problem=problem, started=self._began, ended=time.time(),  # type: ignore[arg-type]
            signalbox=__version__, commit=commit(), tools=tools, command=list(plan.command), machine=self._machine,
            workload=sent, slo=plan.slo, seed=self._seed, seed_pinned=plan.seed is not None, repeats=plan.repeats,
            scripted=self._server is not None and self._server.scripted,
            variants=[each.shown(plan.slo, self._seed) for each in self._measured.values()], passes=passes,
            warnings=[*self._warnings, *_warnings(passes)],
        )  # fmt: skip
        store.save(self.folder, run)
        return run

    def _in_turn(self, repeat: int) -> Iterator[list[Choice]]:
        """Variants that share a start, together; every other repeat backwards, so that a drift is no variant's gain."""
        starts: dict[str, list[Choice]] = {}
        for choice in self._plan.choices:
            starts.setdefault(choice.start, []).append(choice)
        blocks = list(starts.values())
        if repeat % 2:
            blocks = [block[::-1] for block in blocks[::-1]]
        yield from blocks

    @contextlib.contextmanager
    def _serving(self, choice: Choice) -> Iterator[Stand]:
        plan = self._plan
        if plan.running:
            yield stand.running(plan.loaded, plan.model)
            return
        file = f"fleet-{_file_name(choice.name.removesuffix('+edge'))}.yaml"
        fleet = stand.write_fleet(plan.loaded, plan.model, choice, self.folder, file)
        self._progress(f"Starting engines: {choice.start}", f"the log is {self.folder / 'bench.log'}")
        try:
            yield stand.start(fleet, plan.model, self._log)
        finally:
            with _uninterrupted():
                self._progress("Ending engines")
                stand.end(fleet, self._log)

    def _one(self, serving: Stand, choice: Choice, repeat: int) -> None:
        plan = self._plan
        self._server = stand.ask_server(serving, prompts.WORDS)
        self._check_length(self._server)
        if plan.workload.times_capacity is not None and self._rate is None:
            self._rate = plan.workload.capacity or self._capacity(serving, choice)
        if choice.name not in self._measured:
            self._measured[choice.name] = Measurement(choice, self._variant(serving, choice))
        one, measured = self._pass(serving, choice, repeat)
        self._measured[choice.name].passes.append((one, measured))
        self._order += 1
        self.keep("running")

    def _check_length(self, server: stand.Server) -> None:
        longest = self._plan.workload.longest
        if server.max_model_len is not None and longest > server.max_model_len:
            raise BenchRunError(
                f"The workload has requests of up to {longest:,} tokens; the engine takes {server.max_model_len:,}.",
                "Take a smaller --scale, raise max_model_len, or shorten the groups in a workload file of your own.",
            )

    def _variant(self, serving: Stand, choice: Choice) -> Variant:
        server = self._server
        name = "" if self._plan.running else f"fleet-{_file_name(choice.name.removesuffix('+edge'))}.yaml"
        return Variant(
            name=choice.name, path=choice.way, settings=serving.settings, fleet=name, engines=len(serving.backends),
            engine_version=server.version if server else "", arguments=serving.arguments(), model=serving.model,
        )  # fmt: skip

    def _capacity(self, serving: Stand, choice: Choice) -> float:
        """Requests a second that the engines can serve, from a short pass that keeps them full."""
        full = self._plan.workload.model_copy(update={
            "times_capacity": None, "concurrency": 32, "requests": max(32, self._plan.workload.requests // 2),
        })  # fmt: skip
        data = self._dataset(serving, choice, full, repeat=-1, rate=None)
        requests = self._send(serving, choice, data, full.concurrency, "capacity", f"Capacity of {choice.name}")
        good = sum(one.failure is None for one in requests)
        if not good:
            raise BenchRunError("The capacity could not be measured: no request was answered.", "Look at the engine.")
        return good / span(requests)

    def _dataset(
        self, serving: Stand, choice: Choice, workload: Workload, repeat: int, rate: float | None
    ) -> prompts.Dataset:
        ratio = self._server.tokens_per_word if self._server else 1.3
        text = self._seed * 1_000_003 + self._order if repeat >= 0 else self._seed - 1
        return prompts.dataset(workload, serving.name(choice.way), self._seed + repeat, text, ratio, rate)

    def _pass(self, serving: Stand, choice: Choice, repeat: int) -> tuple[Pass, Measured]:
        plan, stem = self._plan, f"{self._order:02}-{_file_name(choice.name)}-{repeat + 1}"
        rate = None if self._rate is None else self._rate * (plan.workload.times_capacity or 1)
        data = self._dataset(serving, choice, plan.workload, repeat, rate)
        title = f"{choice.name}, repeat {repeat + 1} of {plan.repeats}"
        log_start = _size(serving.access_log)
        self._progress(title, "warming up")
        warm_up(serving, choice.way, plan.workload, self._server, self._seed * 7 + self._order)
        before = watch.look(serving.backends)
        requests, seen = self._send_watched(serving, choice, data, plan.workload.concurrency, stem, title)
        after = watch.look(serving.backends)
        self._write(stem, requests)
        measured = Measured(requests, span(requests))
        began = min(one.started for one in requests)
        found = without_curves(figures([measured], plan.slo, self._seed))
        problem = _problem(found, data.requests)
        seed = self._seed * 1_000_003 + self._order
        return Pass(
            variant=choice.name, repeat=repeat, order=self._order, seed=seed,
            started=began, ended=began + measured.seconds, requests=f"{stem}.jsonl",
            usable=not problem, problem=problem,
            figures=found, engine=counters.engine_counters(before, after),
            edge=_edge(serving.access_log, log_start, requests) if choice.way == "edge" else None,
            client=seen.client(requests), timeline=seen.timeline(began), marks=_marks(plan.workload, requests, began),
        ), measured  # fmt: skip

    def _write(self, stem: str, requests: Sequence[Request]) -> None:
        (self.folder / f"{stem}.jsonl").write_text("".join(one.to_json() + "\n" for one in requests))

    def _send(
        self, serving: Stand, choice: Choice, data: prompts.Dataset, in_flight: int | None, stem: str, title: str
    ) -> list[Request]:
        return self._send_watched(serving, choice, data, in_flight, stem, title)[0]

    def _send_watched(
        self, serving: Stand, choice: Choice, data: prompts.Dataset, in_flight: int | None, stem: str, title: str
    ) -> tuple[list[Request], watch.Watch]:
        out = self.folder / f"{stem}.aiperf"
        load = aiperf.Load(
            serving.urls(choice.way), serving.name(choice.way), in_flight, self._plan.workload.timeout / 1000,
            serving.key(choice.way), serving.verify(choice.way),
        )  # fmt: skip
        sender = aiperf.Running(self._runtime, load, data, out)
        edge = serving.edge_metrics if choice.way == "edge" else None
        try:
            with watch.Watch(serving.backends, serving.processes, sender.tree, edge) as seen:
                while sender.alive:
                    time.sleep(0.5)
                    sender.poll()
                    self._progress(title, live(sender.requests, data.requests), len(sender.requests) / data.requests)
        except BaseException:
            sender.stop()
            with contextlib.suppress(BenchRunError, OSError):  # what this pass has until now; it is counted nowhere
                self._write(f"{stem}.unfinished", sender.finish())
                shutil.rmtree(out, ignore_errors=True)
            raise
        requests = sorted(as_scheduled(sender.finish(), data.schedule), key=lambda one: one.started)
        shutil.rmtree(out, ignore_errors=True)
        return requests, seen


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end of the block: engines that are half ended would be left behind."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt


def live(requests: Sequence[Request], most: int) -> str:
    """The line below a pass while it runs."""
    good = sorted(one.ttft for one in requests if one.failure is None and one.ttft is not None)
    if not good:
        return "waiting for the first answers"
    failed = sum(one.failure is not None for one in requests)
    middle, late = good[len(good) // 2], good[min(len(good) - 1, int(len(good) * 0.99))]
    return f"{len(requests)} of {most}: TTFT P50 {middle:.3f} s, P99 {late:.3f} s" + (
        f", {failed} failed" if failed else ""
    )


def _marks(workload: Workload, requests: Sequence[Request], began: float) -> list[Mark]:
    shown = {name for name, group in workload.groups.items() if group.mark}
    return [
        Mark(group=one.group, start=round(one.started - began, 3), end=round(one.started - began + one.e2e, 3),
             first_token=None if one.ttft is None else round(one.started - began + one.ttft, 3),
             prompt_tokens=one.prompt_tokens)
        for one in requests if one.group in shown
    ]  # fmt: skip


def _edge(log: Path, start: int, requests: Sequence[Request]) -> EdgeCounters:
    """What the access log has of these requests. It is written once a second."""
    deadline, found = time.monotonic() + 5, dict[str, dict[str, object]]()
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(start)
            found = counters.log_lines(file.read().decode(errors="replace"))
        if all(one.id in found for one in requests):
            break
        time.sleep(0.2)
    return counters.edge_counters(requests, found)


def _problem(found: Figures, wanted: int) -> str:
    """Why a pass must not be counted; empty when it may."""
    if found.sent < wanted:
        return f"the load generator ended after {found.sent} of {wanted} requests"
    if found.succeeded < _USABLE * found.sent:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.failures.items()))
        return f"only {found.succeeded} of {found.sent} requests got a whole answer ({kinds})"
    return ""


def _about(one: Machine) -> list[str]:
    if one.load_before <= 0.5 * one.cores:
        return []
    return [f"The machine did other work when the run began (load average {one.load_before:g} on {one.cores} cores): "
            "latencies are too high, and the smallest differences mean nothing."]  # fmt: skip


def _warnings(passes: Sequence[Pass]) -> list[str]:
    told = [f"{one.variant}, repeat {one.repeat + 1}: {reason}." for one in passes if one.client
            for reason in one.client.overloaded]  # fmt: skip
    return told + [f"{one.variant}, repeat {one.repeat + 1} is not counted: {one.problem}." for one in passes
                   if not one.usable]  # fmt: skip


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)
