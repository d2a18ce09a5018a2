"""Dashboard, alerts and docs/metrics.md speak of metrics and labels that a real edge serves, and of all of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.support import exposition
from tests.support.client import CHAT, at_once, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import one_model
from tests.support.net import REPOSITORY, free_port, wait_until
from tests.support.redis import Redis

FOLDER = REPOSITORY / "templates" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DOCUMENT = (REPOSITORY / "docs" / "metrics.md").read_text()
#: What Prometheus adds by itself.
OF_PROMETHEUS = {"job", "instance"}
#: Counted only in a storm of failed connects (tests/lua/retry_budget_spec.lua).
OF_STORMS = {"signalbox_connect_retries_refused_total": ["model"]}
VARIABLES = {"edge", "model", "backend"}


@dataclass(frozen=True)
class Query:
    """An expression, where it stands, and the texts that name labels of its result."""

    where: str
    expression: str
    texts: tuple[str, ...]

    def parse(self) -> promql.Expr:
        return promql.parse(self.expression.replace("$__rate_interval", "1m"))


def targets() -> list[Query]:
    return [
        Query(panel["title"], target["expr"], (target["legendFormat"],))
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    ]


def alerts() -> list[Query]:
    return [Query(rule["alert"], rule["expr"], tuple(rule["annotations"].values())) for rule in RULES]


QUERIES = [*targets(), *alerts()]
each_query = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)


def children(node: Any) -> list[Any]:
    """The expressions inside one."""
    found = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    return [one for one in [*found, *(getattr(node, "args", None) or [])] if one is not None]


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in children(node):
        yield from walk(child)


def selectors(node: Any) -> list[promql.VectorSelector]:
    return [one for one in walk(node) if isinstance(one, promql.VectorSelector)]


def grouped(node: Any) -> set[str]:
    """Labels that aggregations keep."""
    return {label for one in walk(node) if isinstance(one, promql.AggregateExpr) and one.modifier
            for label in one.modifier.labels}  # fmt: skip


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


@pytest.fixture(scope="module")
def families(redis: Redis) -> Iterator[dict[str, exposition.Family]]:
    """What an edge serves after every kind of event that it counts."""
    engines = [ScriptedEngine("alpha") for _ in range(2)]
    try:
        for one in engines:
            one.launch()
        for one in engines:
            one.ready()
        fleet = one_model("alpha", *engines, probe={"interval": "1s"}, state=redis.url)
        fleet["models"]["alpha"]["limits"] = {"requests_per_minute": 10_000}
        for backend in fleet["models"]["alpha"]["backends"]:
            backend["limit"] = 2
        nowhere = {"id": "beta-1", "url": f"http://127.0.0.1:{free_port()}"}
        fleet["models"]["beta"] = {"backends": [nowhere], "fallback": ["alpha"]}
        with Edge(fleet, ready=False) as edge:
            ready = {"alpha-1": "ready", "alpha-2": "ready"}
            wait_until(
                "alpha", lambda: ready.items() <= {key: one["state"] for key, one in edge.backends().items()}.items()
            )
            edge.post(CHAT, chat("beta"))
            edge.post(CHAT, chat("nobody"))
            stream = {**chat("alpha", stream=True, tokens=4, delay_ms=2), "stream_options": {"include_usage": True}}
            at_once(6, lambda _: edge.post(CHAT, stream))
            for salt in ("one", "two"):
                edge.post(CHAT, {**chat("alpha", text="a" * 3000), "cache_salt": salt})
            edge.post(CHAT, chat("alpha", die=True))
            wait_until("the engines' own numbers", lambda: edge.metric("signalbox_engine_prefix_queries_total") > 0, 10)
            engines[0].kill()
            for number in range(6):  # until one meets the engine that is gone
                edge.post(CHAT, chat("alpha", text=str(number)))
            wait_until("what was counted", lambda: edge.metric("signalbox_connect_retries_total", model="alpha") > 0, 5)
            told = json.loads((edge.site.paths.conf / "fleet.json").read_text())
            told |= {"version": told["version"] + 1, "published": 7}  # as in an edge that follows another machine's
            assert edge.admin("PUT", "/fleet", json=told).status_code == 200
            wait_until("the fleet to be taken", lambda: edge.state()["published_version"] == 7)
            content = exposition.read(edge.admin("GET", "/metrics").text)
            for name, labels in OF_STORMS.items():
                assert not content[name].samples[name]
                content[name].samples[name].append((dict.fromkeys(labels, ""), 1))
            yield content
    finally:
        for one in engines:
            one.kill()


@pytest.fixture(scope="module")
def samples(families: dict[str, exposition.Family]) -> dict[str, set[str]]:
    """Names of samples with the labels that they carry."""
    return {
        name: {label for labels, _ in series for label in labels}
        for family in families.values()
        for name, series in family.samples.items()
    }


def test_the_edge_served_every_family(families: dict[str, exposition.Family]) -> None:
    """Else the tests below compare with labels that nobody has seen."""
    empty = [name for name, family in families.items() if not all(family.samples.values())]
    assert not empty


@each_query
def test_every_name_and_label_exists(query: Query, samples: dict[str, set[str]]) -> None:
    tree = query.parse()
    found = selectors(tree)
    assert found
    labels = set(OF_PROMETHEUS)
    for selector in found:
        if selector.name == "up":
            continue
        assert selector.name in samples, f"no edge serves {selector.name}"
        own = samples[selector.name] | OF_PROMETHEUS
        for matcher in selector.matchers.matchers:
            assert matcher.name in own, f"{selector.name} has no label {matcher.name}"
        labels |= own
    assert grouped(tree) <= labels
    # An aggregation keeps only the labels that it names.
    kept = grouped(tree) or labels
    for text in query.texts:
        named = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text))
        assert named <= kept, f"{query.where}: {named - kept} is not in the result"


@each_query
def test_values_that_are_matched_exist(query: Query, families: dict[str, exposition.Family]) -> None:
    """A misspelt state or ending matches nothing, for ever."""
    known = {
        "state": {
            labels["state"] for labels, _ in families["signalbox_backend_state"].samples["signalbox_backend_state"]
        }
        | {"serving"},
        "dict": {
            labels["dict"] for labels, _ in families["signalbox_dict_free_bytes"].samples["signalbox_dict_free_bytes"]
        },
        "end": set(re.findall(r"^\| `(\w+)` \| ", (REPOSITORY / "docs" / "errors.md").read_text(), re.M)),
        "error": set(re.findall(r"`(\w+)`", (REPOSITORY / "docs" / "errors.md").read_text())),
    }
    for selector in selectors(query.parse()):
        for matcher in selector.matchers.matchers:
            if matcher.name in known and matcher.value != "engine_.*":
                assert set(matcher.value.split("|")) <= known[matcher.name], matcher.value


@each_query
def test_quantiles_are_of_buckets_and_counters_have_rates(query: Query, families: dict[str, exposition.Family]) -> None:
    tree = query.parse()
    for node in walk(tree):
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            inner = node.args[1]
            assert {one.name.endswith("_bucket") for one in selectors(inner)} == {True}
            assert "le" in grouped(inner)
        if isinstance(node, promql.VectorSelector) and node.name.endswith("_bucket"):
            assert "histogram_quantile" in query.expression
    counters = {name for family in families.values() if family.kind != "gauge" for name in family.samples}
    inside = {one.name for node in walk(tree) if isinstance(node, promql.MatrixSelector) for one in selectors(node)}
    assert {one.name for one in selectors(tree)} & counters <= inside


def test_the_dashboard_shows_everything_that_the_edge_serves(families: dict[str, exposition.Family]) -> None:
    shown = {selector.name for query in targets() for selector in selectors(query.parse())}
    missing = [name for name, family in families.items() if not shown & set(family.samples)]
    assert not missing


def test_the_document_lists_exactly_what_the_edge_serves(families: dict[str, exposition.Family]) -> None:
    listed = {
        name: (kind, set(filter(None, labels.split(", "))))
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*?) *\| .+ \|$", DOCUMENT, re.M)
    }
    assert listed == {name: (family.kind, family.labels) for name, family in families.items()}


def test_the_dashboard_can_be_imported() -> None:
    """Grafana asks for each input, puts it in place of ${NAME}, and finds every variable."""
    inputs = {one["name"] for one in DASHBOARD["__inputs"]}
    assert inputs == {"DS_PROMETHEUS"} and DASHBOARD["id"] is None
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == VARIABLES
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for one in [
        *panels,
        *DASHBOARD["templating"]["list"],
        *(target for panel in panels for target in panel["targets"]),
    ]:
        assert one["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    used = set(re.findall(r"\$(\w+)", " ".join(query.expression for query in targets()))) - {"__rate_interval"}
    assert used == VARIABLES
    types = {one["id"] for one in DASHBOARD["__requires"] if one["type"] == "panel"}
    assert types == {panel["type"] for panel in panels}


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"])
               for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert place["x"] + place["w"] <= 24 and not own & cells, panel["title"]
        cells |= own


def test_variables_ask_for_what_exists(samples: dict[str, set[str]]) -> None:
    for variable in DASHBOARD["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert match and variable["query"]["query"] == variable["definition"]
        (selector,) = selectors(promql.parse(match[1]))
        own = samples[selector.name] | OF_PROMETHEUS
        assert {match[2], *(one.name for one in selector.matchers.matchers)} <= own


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["alert"].startswith("Signalbox") and len(rule["annotations"]["description"]) > 80


def test_commands_and_files_that_alerts_name_exist() -> None:
    text = " ".join(rule["annotations"]["description"] for rule in RULES)
    for path in re.findall(r"\b(?:docs|templates)/[\w./-]+\w", text):
        assert (REPOSITORY / path).exists(), path
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"`make (\w+)`", text):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_example_for_prometheus_fits_the_alerts() -> None:
    example = re.search(r"```yaml\n(.+?)```", DOCUMENT, re.S)
    assert example
    config = yaml.safe_load(example[1])
    (job,) = config["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in (FOLDER / "alerts.yaml").read_text()
    assert config["rule_files"] == ["/srv/signalbox/templates/grafana/alerts.yaml"]
    assert job["authorization"]["credentials_file"] in DOCUMENT.split("```yaml")[0]


CASES = REPOSITORY / "tests" / "edge" / "alerts_cases.yaml"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert set(re.findall(r'alertname="(\w+)"', CASES.read_text())) == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(not PROMTOOL, reason="no promtool on PATH or in PROMTOOL (Debian's package `prometheus` has it)")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Prometheus's own judgement of the rules, and of what they say about made-up series."""
    assert PROMTOOL
    for arguments in (["check", "rules", str(FOLDER / "alerts.yaml")], ["test", "rules", str(CASES)]):
        done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
