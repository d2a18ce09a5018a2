"""The report of a run: what is told of it, what is refused, and that nothing from a file acts as markup."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from markupsafe import Markup

from control.bench import results
from control.bench.records import Request
from control.bench.report import data, files, markdown, page, plots, timelines
from control.bench.report.compare import Side, compare, difference, pairs
from control.bench.report.findings import facts, findings, headline, sentence, troubles
from control.bench.report.quantities import BY_KEY, percent, scale, shown
from control.bench.results import Estimate, Run, Timeline
from control.cli import main
from control.errors import BenchRunError

EXAMPLE = Path(__file__).parent / "data" / "run.json"
EVIL = "<script>alert(1)</script>|`x`\x1b[31m"
TTFT, RATE = BY_KEY["ttft.p99"], BY_KEY["output_tokens_per_second"]


def around(value: float, spread: float) -> Estimate:
    return Estimate(value=value, low=value - spread, high=value + spread)


def example(change: Callable[[dict[str, Any]], object] = lambda run: None) -> Run:
    """The example, changed; what a run.json with that content gives."""
    content = json.loads(EXAMPLE.read_text())
    change(content)
    return Run.model_validate_json(json.dumps(content))


def sides(run: Run, other: Run | None = None) -> tuple[Side, Side]:
    """The first two variants; with ``other``, the same variant of both."""
    return Side(run, run.variants[0]), Side(other, other.variants[0]) if other else Side(run, run.variants[1])


@pytest.mark.parametrize(
    ("quantity", "before", "after", "verdict", "words"),
    [
        (TTFT, around(4.1, 0.3), around(1.6, 0.1), "better", "TTFT P99 fell from 4.10 s to 1.60 s (61 % less)."),
        (TTFT, around(1.6, 0.1), around(4.1, 0.3), "worse", "TTFT P99 rose from 1.60 s to 4.10 s (156 % more)."),
        (RATE, around(133, 1), around(143, 1), "better", "Output tokens/s rose from 133 to 143 (7.5 % more)."),
        (RATE, around(143, 1), around(133, 1), "worse", "Output tokens/s fell from 143 to 133 (7.0 % less)."),
        (RATE, around(100, 0.5), around(100.5, 0.5), "same", "Output tokens/s stayed within 1.5 % (100 and 100)."),
        (TTFT, around(0.2, 0.05), around(0.22, 0.05), "same",
         "TTFT P99: no difference that this run can tell (200 ms and 220 ms; between 32 % less and 80 % more)."),
        (TTFT, Estimate(value=4), Estimate(value=1), "unknown",
         "TTFT P99: 4.00 s and 1.00 s (75 % less), measured once."),
        (RATE, around(0, 0), around(5, 1), "better", "Output tokens/s rose from 0.00 to 5.00."),
    ],
)  # fmt: skip
def test_a_difference_is_told_only_where_intervals_do_not_overlap(
    quantity: Any, before: Estimate, after: Estimate, verdict: str, words: str
) -> None:
    found = difference(quantity, before, after)
    assert (found.verdict, sentence(found)) == (verdict, words)


def test_numbers_are_written_with_their_unit() -> None:
    assert [percent(share) for share in (0, 0.0004, 0.0312, -0.5)] == ["0 %", "less than 0.1 %", "3.1 %", "50 %"]
    assert shown(0.0215, scale("seconds", [0.0215, 0.9])) == "21.5 ms"
    assert shown(0.0215, scale("seconds", [0.0215, 1.2])) == "0.02 s", "one row has one unit"
    assert shown(12345.6, scale("rate", [])) == "12,346" and shown(0.5, scale("share", [])) == "50.0 %"


def test_a_run_in_words() -> None:
    run = example(lambda run: run["variants"][1]["engine"].update(prefix_hits=66030))
    first, _, last = pairs(run)
    assert (last.before.variant.name, last.after.variant.name) == ("tuned", "tuned+edge"), "what the edge costs"
    assert headline(first) == (
        "TTFT P99 fell from 3.24 s to 1.17 s; output tokens/s rose from 133 to 143; "
        "prefix hit rate 0.71 instead of 0.04"
    )
    told = [found.text for found in findings(first)]
    assert told[0] == "TTFT P50 fell from 279 ms to 134 ms (52 % less)."
    assert "TPOT P50 stayed within 2.7 % (21.8 ms and 21.6 ms)." in told
    assert any(text.startswith("long: TTFT P99 fell from 4.05 s to 1.59 s") for text in told)
    assert [found.text for found in facts(run)][:3] == [
        "Prefix hit rate: default 0.04, tuned 0.71, tuned+edge 0.04.",
        "Preemptions (the KV cache was full, and work was done twice): default 6.",
        "tuned+edge: 36 of 288 requests waited in the edge for a slot; P99 of the wait 297 ms.",
    ]


def test_what_stands_in_the_way_of_believing_it_comes_first() -> None:
    def change(run: dict[str, Any]) -> None:
        run.update(state="interrupted", problem="Ctrl-C", scripted=True, warnings=["a warning"])
        run["passes"] = run["passes"][:3]
        run["passes"][1]["client"]["overloaded"] = ["late"]
        run["variants"][2].update(figures=None, groups={}, warnings=["its own"])

    assert troubles(example(change)) == [
        "This run is not complete: it is interrupted (Ctrl-C).",
        "The engines were scripted: these figures say nothing about a model.",
        "default: 3 of 288 requests failed (3 ended in the middle). They count in no other figure.",
        "tuned+edge: nothing usable was measured.",
        "The load generator did not keep up in 1 of 3 passes: their times are too long. "
        "Send fewer requests at a time, or measure from a machine of its own.",
        "a warning",
        "tuned+edge: its own",
        "Each variant was measured once: nothing is known of chance. --repeats 3 gives intervals.",
        "P99 is nearly the slowest request where there are few (36 of long): a longer run says more about the tail.",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: run["workload"].update(name="chat"), "the workloads are mixed and chat"),
        (lambda run: run["workload"].update(scale="full"), "the scales are cpu and full"),
        (lambda run: run["workload"]["parameters"].update(concurrency=4), "changed in between (concurrency)"),
        (lambda run: run.update(scripted=True), "the engines of one were scripted"),
        (lambda run: run["variants"][0].update(figures=None), "nothing was measured of other:default"),
    ],
)
def test_what_cannot_be_compared_is_refused(change: Callable[[dict[str, Any]], object], words: str) -> None:
    def both(run: dict[str, Any]) -> None:
        run["id"] = "other"
        change(run)

    with pytest.raises(BenchRunError) as refused:
        compare(*sides(example(), example(both)))
    assert words in refused.value.message


def test_what_else_was_different_is_told() -> None:
    def change(run: dict[str, Any]) -> None:
        run.update(id="other", seed=7, repeats=1, state="failed", slo={"ttft": 1.0})
        run["machine"]["cores"] = 64
        run["variants"][0].update(model="another", engines=2, engine_version="0.33.0")
        run["variants"][0]["figures"]["succeeded"] = 200
        run["passes"][0]["client"]["overloaded"] = ["late"]

    found = compare(*sides(example(), example(change)))
    told = "\n".join(found.warnings)
    for words in ("other is not complete", "did not keep up in 1 of 9", "1.0% and 30.6%", "smollm2 and another",
                  "1 and 2", "Two runs", "100 and 7", "3 and 1", "machines are different", "0.32.0 and 0.33.0",
                  "SLOs differ"):  # fmt: skip
        assert words in told, words
    assert not {one.quantity.key for one in found.differences} & {"goodput", "slo_share"}
    assert compare(*sides(example())).warnings == [
        "1.0% and 0.0% of the requests failed: the figures are of whole answers, so the side that failed more had less "
        "to do."
    ]


def test_the_rate_of_tokens_swings_and_its_ends_do_not_count() -> None:
    tokens = [0.0, 0.0, 100, 200, 400, 500, 700, 800, 1000, 1100, 1300, 1400, 1401]
    columns: dict[str, list[Any]] = {name: [None] * 13 for name in Timeline.model_fields}
    columns |= {"t": list(range(13)), "generation_tokens": tokens, "running": [0, *[4.0] * 11, 1]}
    seen = Timeline.model_validate(columns)
    assert timelines.token_rate(seen)[:5] == [None, 0, 100, 100, 200]
    # From the first full second on: 100, 100, 200, 100, 200, 100, 200, 100, 200, 100: mean 140, deviation 48.99.
    assert timelines.swing(seen) == pytest.approx(48.99 / 140, abs=1e-4)
    unknown = seen.model_copy(update={"generation_tokens": [None] * 13})
    assert timelines.token_rate(unknown) == [None] * 13 and timelines.swing(unknown) is None
    assert timelines.swing(Timeline()) is None


def request(started: float, ttft: float, itl: list[float]) -> Request:
    return Request(id="r", group="short", conversation="short:1", turn=0, due=started, started=started, ttft=ttft,
                   e2e=ttft + sum(itl), itl=itl)  # fmt: skip


def test_the_longest_gaps_show_who_was_held_up() -> None:
    ones = [request(100.0, 0.5, [0.1, 0.1, 2.0]), request(101.0, 0.2, [0.3, 0.1])]
    assert timelines.longest_gaps(ones, 100.0, 4.0, 4) == [0.1, 0.3, 2.0, None]
    assert timelines.longest_gaps(ones, 100.0, 0.0, 2) == [None, None]


def test_axes_and_lines() -> None:
    assert plots.steps(0.03, 1.5) == [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
    assert plots.steps(1.0, 1.0) == [1, 2]
    assert [plots.even_step(most, 2) for most in (16, 150, 0.7, 100)] == [10, 100, 0.5, 50]
    assert plots.known([0, 1, 2, 3], [1, None, 2, 3]) == [[(0, 1)], [(2, 2), (3, 3)]]
    many = [(float(at), 1.0) for at in range(5000)]
    many[1234] = (1234.0, 9.0)
    thin = plots.thinned(many)
    assert len(thin) <= plots.MOST_POINTS + 2 and (1234.0, 9.0) in thin and thin == sorted(thin)
    assert plots.percentiles("TTFT", [("a", [])]) == Markup("")
    zero = plots.percentiles("ITL", [("a", [(share / 100, 0.0) for share in range(101)])])
    assert "NaN" not in zero and "inf" not in zero, "gaps of nothing have no logarithm"


def evil_run() -> Run:
    """Every text that a file may bring is markup."""

    def change(run: dict[str, Any]) -> None:
        run.update(
            name=EVIL, problem=EVIL, state="failed", warnings=[EVIL], command=[EVIL], tools={EVIL: EVIL}, commit=EVIL
        )
        run["workload"].update(title=EVIL, name=EVIL, scale=EVIL, groups=[EVIL, "long"], parameters={EVIL: EVIL})
        run["machine"].update(cpu=EVIL, gpus=[EVIL])
        for variant in run["variants"]:
            variant.update(
                name=EVIL, model=EVIL, arguments=[EVIL], settings={EVIL: EVIL}, engine_version=EVIL, warnings=[EVIL]
            )
            variant["groups"][EVIL] = variant["groups"].pop("short")
        for one in run["passes"]:
            one.update(variant=EVIL, usable=False, problem=EVIL)
            one["marks"][0]["group"] = EVIL

    return example(change)


def test_nothing_from_a_file_acts_as_markup() -> None:
    run = evil_run()
    html = page.report(run, {})
    assert "&lt;script&gt;" in html and "<script" not in html and "http" not in html.replace("http-equiv", "")
    text = markdown.report(run)
    assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text
    assert all(line.replace("\\|", "").count("|") == 5 for line in text.splitlines() if line.startswith("| "))
    assert json.loads(data.write(data.report(run)))["variants"][0]["name"] == EVIL


def test_a_run_that_has_next_to_nothing_has_a_report() -> None:
    for change in (
        lambda run: run.update(variants=[], passes=[], state="failed", problem="no engine"),
        lambda run: run.update(variants=run["variants"][:1], passes=[]),
        lambda run: [one.update(timeline={}, marks=[], client=None) for one in run["passes"]],
        lambda run: [variant.update(figures=None, groups={}, engine=None) for variant in run["variants"]],
    ):  # fmt: skip
        run = example(change)
        for text in (page.report(run, {}), markdown.report(run), data.write(data.report(run))):
            assert "mixed" in text


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of one workload, and one of another; a fleet that nothing asks for."""
    for name, seed, workload in (("a", 100, "mixed"), ("b", 200, "mixed"), ("c", 100, "chat")):
        content = json.loads(EXAMPLE.read_text())
        content.update(id=name, seed=seed)
        content["workload"]["name"] = workload
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps(content))
    return tmp_path


def bench(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["--fleet", str(folder / "fleet.yaml"), "bench", *words])


def test_report_writes_three_files(runs: Path) -> None:
    folder = runs / "runs" / "a"
    lines = [request(1796055000.0 + at, 0.1, [0.02] * 20).to_json() for at in range(30)]
    (folder / "default-0.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "default-1.jsonl").write_text('{"id": "cut', "utf-8")
    done = bench(runs, "report", "a")
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(folder / name) for name in ("report.html", "report.md", "report.json")]
    html = (folder / "report.html").read_text()
    assert html.count("longest gap between two tokens") == 1, "of the one pass whose requests can be read"
    content = json.loads((folder / "report.json").read_text())
    assert content["comparisons"][0]["differences"][0]["figure"] == "ttft.p50"
    assert "| TTFT P99 | 3.24 s (2.51 to 4.40) |" in (folder / "report.md").read_text()
    assert bench(runs, "report", "b", "--out", str(runs / "out")).exit_code == 0
    assert (runs / "out" / "report.html").is_file() and not (runs / "runs" / "b" / "report.html").exists()
    (runs / "fleet.yaml").touch()
    blocked = bench(runs, "report", "b", "--out", str(runs / "fleet.yaml" / "out"))
    assert blocked.exit_code == 1 and "cannot be written" in blocked.output


def test_the_terminal_says_what_matters_last_and_runs_can_be_copied(runs: Path) -> None:
    shown = bench(runs, "show", "a")
    assert shown.exit_code == 0, shown.output
    last = shown.output.splitlines()[-6:]
    assert last[0].startswith("tuned beside default: TTFT P99 fell from 3.24 s to 1.17 s;")
    assert (
        last[3] == "warning: default: 3 of 288 requests failed (3 ended in the middle). They count in no other figure."
    )
    long = "20261130-160000-our-own-workload"
    (runs / "runs" / "a").rename(runs / "runs" / long)
    (runs / "runs" / "b" / "run.json").write_text("{")
    listed = bench(runs, "list").output
    assert long in listed and "complete" in listed and "run.json is no run" in listed


def test_requests_are_read_from_the_run_alone(runs: Path) -> None:
    outside = runs / "outside.jsonl"
    outside.write_text(request(1796055000.0, 0.1, [0.02]).to_json() + "\n")
    run = example()
    lost = run.model_copy(update={"passes": [run.passes[0].model_copy(update={"requests": f"../../{outside.name}"})]})
    assert files.requests(runs / "runs" / "a", lost) == {}


def test_compare_in_each_form(runs: Path) -> None:
    shown = bench(runs, "compare", "a:default", "a:tuned")
    assert shown.exit_code == 0, shown.output
    assert "TTFT P99 fell from 3.24 s to 1.17 s (64 % less)." in shown.output and "no difference" in shown.output
    both = json.loads(bench(runs, "compare", "a", "b", "--as", "json").output)
    assert [one["before"]["variant"] for one in both] == ["default", "tuned", "tuned+edge"]
    assert any("seeds are 100 and 200" in text for text in both[0]["warnings"])
    assert {each["verdict"] for each in both[0]["differences"]} == {"same"}, "a run is no different from itself"
    text = bench(runs, "compare", "a:tuned", "b", "--as", "markdown").output
    assert text.startswith("# b:tuned beside a:tuned\n")
    wrong = {("a", "c"): "the workloads are mixed and chat", ("a", "a"): "same run", ("a:no", "b"): "no variant 'no'",
             ("a", "nothing"): "no run 'nothing'"}  # fmt: skip
    for words, message in wrong.items():
        refused = bench(runs, "compare", *words)
        assert refused.exit_code == 1 and message in refused.output, refused.output


@pytest.mark.parametrize(
    ("old", "new"),
    [('"seed":100', '"seed":100,"ended":Infinity'), ('"memory":[', '"memory":[1.0,'), ('"count":285', '"count":"x"')],
)
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "run.json").write_text(EXAMPLE.read_text().replace(old, new, 1))
    with pytest.raises(BenchRunError, match="is no run that this version can read"):
        results.load(tmp_path)
