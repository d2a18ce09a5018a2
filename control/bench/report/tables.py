"""The tables of a report, as cells that HTML, Markdown and terminals show each in their way. Pure."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from control.bench.report.compare import Comparison
from control.bench.report.findings import failures, hit_rate
from control.bench.report.quantities import BY_KEY, QUANTITIES, interval, number, percent, scale, shown
from control.bench.results import Figures, Run, Slo, Variant

NOTHING = "–"
#: Parameters of the workload that are told elsewhere.
_SAID = ("title", "requests")
VERDICTS = {"better": "better", "worse": "worse", "same": "no difference to tell", "unknown": "one repeat"}


@dataclass(frozen=True)
class Cell:
    """A value; ``under`` is smaller: its interval, or more about it."""

    text: str
    under: str = ""


@dataclass(frozen=True)
class Row:
    """One line; ``begins``: something new begins here."""

    title: str
    cells: Sequence[Cell]
    begins: bool = False


def plain(text: str) -> str:
    """One line without control characters: engines and files may say anything."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def variants(run: Run, keys: Collection[str] = BY_KEY) -> list[Row]:
    """The figures of all variants, over all requests."""
    whole = [one.figures for one in run.variants]
    return [Row("whole answers", [_whole(one) for one in whole]), *_figures(whole, keys)]


def groups(run: Run, keys: Collection[str] = BY_KEY) -> dict[str, list[Row]]:
    """The same for each group of requests; empty where there is one group alone."""
    if len(run.workload.groups) < 2:
        return {}
    found = {}
    for name in run.workload.groups:
        each = [one.groups.get(name) for one in run.variants]
        found[name] = [Row("whole answers", [_whole(one) for one in each]), *_figures(each, keys)]
    return found


def _whole(figures: Figures | None) -> Cell:
    if figures is None:
        return Cell(NOTHING)
    return Cell(f"{figures.succeeded:,} of {figures.sent:,}", failures(figures))


def _figures(each: Sequence[Figures | None], keys: Collection[str]) -> list[Row]:
    rows: list[Row] = []
    last = ""
    for quantity in QUANTITIES:
        estimates = [None if one is None else quantity.of(one) for one in each]
        if quantity.key not in keys or all(one is None for one in estimates):
            continue
        by = scale(quantity.kind, [one.value for one in estimates if one is not None])
        cells = [Cell(NOTHING) if one is None else Cell(shown(one.value, by), interval(one, by)) for one in estimates]
        kind = quantity.key.partition(".")[0] if quantity.kind == "seconds" else quantity.kind
        rows.append(Row(quantity.title, cells, begins=kind != last))
        last = kind
    return rows


def counters(run: Run) -> list[Row]:
    """What engines and edge counted; rows that none of them told of are left out."""

    def count(variant: Variant, name: str) -> str:
        value = getattr(variant.engine, name, None)
        return NOTHING if value is None else f"{value:,}"

    def hits(variant: Variant) -> str:
        rate = hit_rate(variant)
        return NOTHING if rate is None else percent(rate)

    def step(variant: Variant) -> str:
        engine = variant.engine
        if engine is None or engine.iteration_tokens is None or not engine.iterations:
            return NOTHING
        return number(engine.iteration_tokens / engine.iterations)

    rows = [
        Row("prefix cache hits", [Cell(hits(one)) for one in run.variants]),
        Row("preemptions", [Cell(count(one, "preemptions")) for one in run.variants]),
        Row("tokens of one scheduler step, mean", [Cell(step(one)) for one in run.variants]),
        Row("prompt tokens", [Cell(count(one, "prompt_tokens")) for one in run.variants]),
        Row("generated tokens", [Cell(count(one, "generation_tokens")) for one in run.variants]),
        Row("waited in the edge, P99", [Cell(_waited(run, one.name)) for one in run.variants]),
        Row("size of the KV cache, tokens", [Cell(count(one, "kv_cache_tokens")) for one in run.variants]),
    ]
    return [row for row in rows if any(cell.text != NOTHING for cell in row.cells)]


def _waited(run: Run, variant: str) -> str:
    """The longest of the passes: a queue that was there once was there."""
    waits = [
        one.edge.queue_wait.p99.value
        for one in run.passes
        if one.variant == variant and one.usable and one.edge and one.edge.queue_wait
    ]
    return shown(max(waits), scale("seconds", waits)) if waits else NOTHING


PASS_FIGURES = ("ttft.p50", "ttft.p99", "tpot.p50", "tpot.p99", "output_tokens_per_second")
PASS_HEADS = ("whole answers", *(BY_KEY[key].title for key in PASS_FIGURES), "counted")


def passes(run: Run) -> list[Row]:
    """Every pass alone, in the order in which they were measured: what drifts shows here. Columns: ``PASS_HEADS``."""
    columns = []
    for key in PASS_FIGURES:
        quantity = BY_KEY[key]
        values = [None if (found := quantity.of(one.figures)) is None else found.value for one in run.passes]
        by = scale(quantity.kind, [value for value in values if value is not None])
        columns.append([Cell(NOTHING if value is None else shown(value, by)) for value in values])
    return [
        Row(f"{one.order + 1}. {one.variant}, repeat {one.repeat + 1}",
            [_whole(one.figures), *(column[place] for column in columns),
             Cell("yes") if one.usable else Cell("no", one.problem)])
        for place, one in enumerate(run.passes)
    ]  # fmt: skip


def settings(run: Run) -> list[Row]:
    """What was compared."""
    each = run.variants
    rows = [
        Row("requests go", [Cell("through the edge" if one.path == "edge" else "to the engines") for one in each]),
        Row("settings", [Cell(_settings(one)) for one in each]),
        Row("engines", [Cell(f"{one.engines} × {one.model}" if one.model else str(one.engines)) for one in each]),
        Row("version", [Cell(one.engine_version or NOTHING) for one in each]),
        Row("arguments", [Cell(" ".join(one.arguments) or NOTHING) for one in each]),
        Row("fleet", [Cell(one.fleet or NOTHING) for one in each]),
    ]
    return rows


def _settings(variant: Variant) -> str:
    return ", ".join(f"{name}: {_plain(value)}" for name, value in variant.settings.items()) or "vLLM's own choice"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def conditions(run: Run) -> list[tuple[str, str]]:
    """How it was measured."""
    machine, work = run.machine, run.workload
    hardware = f"{machine.cpu}, {machine.cores} cores, {machine.memory / 2**30:.0f} GiB, {machine.system}"
    load = f"load {machine.load_before:.2f} before"
    found = [
        ("workload", f"{work.title} ({work.name}, scale {work.scale}), {work.requests:,} requests a pass"),
        ("parameters", ", ".join(f"{key}: {_plain(value)}" for key, value in work.parameters.items()
                                 if not isinstance(value, dict) and key not in _SAID)),
        ("capacity", f"{number(work.capacity)} requests/s" if work.capacity else ""),
        ("SLO", slo(run.slo)),
        ("repeats", str(run.repeats)),
        ("seed", f"{run.seed} ({'pinned' if run.seed_pinned else 'drawn for this run'})"),
        ("measured", f"{moment(run.started)}, in {(run.ended - run.started) / 60:.1f} minutes"),
        ("machine", ", ".join((hardware, *machine.gpus, load))),
        ("versions", ", ".join([f"Signalbox {run.signalbox}{f' ({run.commit})' if run.commit else ''}",
                                *(f"{name} {version}" for name, version in run.tools.items())])),
        ("command", " ".join(run.command)),
    ]  # fmt: skip
    return [(name, text) for name, text in found if text]


def slo(limits: Slo) -> str:
    """``TTFT 1.50 s, TPOT 60.0 ms``; empty without limits."""
    told = [(name, value) for name, value in limits.model_dump().items() if value is not None]
    return ", ".join(f"{name.upper()} {shown(value, scale('seconds', [value]))}" for name, value in told)


def moment(at: float) -> str:
    """A point in time, in UTC: reports are read elsewhere too."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def differences(comparison: Comparison) -> list[Row]:
    """Both values, the change and what to make of it."""
    rows = []
    group = ""
    for one in comparison.differences:
        before, after = one.values()
        by = scale(one.quantity.kind, (one.before.value, one.after.value))
        change = NOTHING if one.change is None else f"{one.change:+.1%}"
        between = f"{one.least:+.1%} to {one.most:+.1%}" if one.least is not None and one.most is not None else ""
        cells = [Cell(before, interval(one.before, by)), Cell(after, interval(one.after, by)), Cell(change, between),
                 Cell(VERDICTS[one.verdict])]  # fmt: skip
        rows.append(Row(one.title, cells, begins=one.group != group))
        group = one.group
    return rows
