"""Checks of ``rules``: what can never match, what would hide the API, what is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from control.fleet.load import load
from control.fleet.rules import SERVED
from control.paths import REPOSITORY
from tests.support.fleet_yaml import fleet_of, problems_of, write

#: What some engine must be in.
MODELS: dict[str, Any] = {
    "alpha": {
        "aliases": ["alpha-chat"],
        "loras": ["alpha-lora"],
        "backends": [
            {"url": "http://192.0.2.1:8000", "pool": "fast"},
            {"url": "http://192.0.2.2:8000", "pool": "slow"},
        ],
    },
    "beta": {"backends": [{"url": "http://192.0.2.3:8000", "pool": "spare"}]},
}
HEADER = {"name": "X-Team", "value": "a"}


def found(folder: Path, *rules: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in problems_of(folder, {"models": MODELS, "rules": list(rules)})]


def one(folder: Path, *rules: dict[str, Any]) -> str:
    problems = found(folder, *rules)
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    "rule",
    [
        {"path": "/team-a"},
        {"path": "/a/b.c/d~e/_f/-g"},
        {"path": "/v1x"},
        {"path": "/models"},
        {"host": "chat.example.com", "model": "alpha-chat"},
        {"host": "*.example.com", "model": "alpha-lora"},
        {"host": "192.0.2.1", "pool": "spare"},
        {"header": HEADER, "policy": "round_robin"},
        {"header": {"name": "User-Agent", "value": "curl/8.0 x"}, "model": "alpha", "pool": "slow"},
    ],
)
def test_what_is_right(tmp_path: Path, rule: dict[str, Any]) -> None:
    assert found(tmp_path, rule) == []


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"model": "alpha"}, "rules[0]: a rule needs a condition: path, host or header."),
        ({}, "rules[0]: a rule needs a condition"),
        ({"host": "a.test"}, "rules[0]: a rule without path needs an effect: model, pool, policy or priority."),
        ({"path": "/team-a", "priority": 1}, "rules[0].priority: must be 'high', 'normal' or 'low', not 1."),
        ({"path": "team-a"}, "rules[0].path: must be a path such as /team-a"),
        ({"path": "/team-a/"}, "rules[0].path: must be a path"),
        ({"path": "/"}, "rules[0].path: must be a path"),
        ({"path": "/a//b"}, "rules[0].path: must be a path"),
        ({"path": "/a/../b"}, "rules[0].path: must be a path"),
        ({"path": "/./b"}, "rules[0].path: must be a path"),
        ({"path": "/a%20b"}, "rules[0].path: must be a path"),
        ({"path": "/" + "x/" * 8 + "x"}, "rules[0].path: must be a path"),
        ({"path": "/v1"}, "rules[0].path: '/v1' would hide the API's own paths, which begin with /v1."),
        ({"path": "/v1/team-a"}, "rules[0].path: '/v1/team-a' would hide"),
        ({"path": "/rerank"}, "rules[0].path: '/rerank' would hide"),
        ({"host": "a.test:8080", "pool": "fast"}, "rules[0].host: must be a host name such as chat.example.com"),
        ({"host": "a..test", "pool": "fast"}, "rules[0].host: 'a..test' is no host name."),
        ({"host": "*.192.0.2.1", "pool": "fast"}, "rules[0].host: '*.192.0.2.1' is no host name."),
        ({"host": "a.*.test", "pool": "fast"}, "rules[0].host: must be a host name"),
        ({"path": "/a", "model": "alhpa"}, "rules[0].model: there is no model, alias or LoRA adapter 'alhpa'. Did you"),
        ({"path": "/a", "pool": "fasd"}, "rules[0].pool: no backend is in pool 'fasd'. Did you mean 'fast'?"),
        (
            {"path": "/a", "model": "alpha-lora", "pool": "spare"},
            "rules[0].pool: no backend of model 'alpha' is in pool 'spare'. Write 'pool: spare' at the backends that",
        ),
        ({"path": "/a", "policy": "fastest"}, "rules[0].policy: must be 'prefix', 'least_loaded', 'session'"),
        ({"header": {"name": "X-Team"}, "pool": "fast"}, "rules[0].header.value: the key 'value' is missing."),
        ({"header": {"name": "X_Team", "value": "a"}, "pool": "fast"}, "rules[0].header.name: must be a header name"),
        ({"header": {"name": "X-T", "value": " a"}, "pool": "fast"}, "rules[0].header.value: must be a text of at"),
        (
            {"header": {"name": "HOST", "value": "a"}, "pool": "fast"},
            "is the edge's own business; no rule sees it. Use",
        ),
        ({"header": {"name": "Authorization", "value": "a"}, "pool": "fast"}, "rules[0].header.name: the header"),
        ({"header": {"name": "X-Signalbox-X", "value": "a"}, "pool": "fast"}, "rules[0].header.name: the header"),
    ],
)
def test_what_is_wrong(tmp_path: Path, rule: dict[str, Any], told: str) -> None:
    problem = one(tmp_path, rule)
    assert told in problem
    assert re.search(r"fleet\.yaml:\d+: ", problem)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"path": "/a"}, {"path": "/a"}),
        ({"path": "/a"}, {"path": "/a/b"}),
        ({"path": "/a"}, {"path": "/a", "host": "h.test", "header": HEADER}),
        ({"host": "H.test", "pool": "fast"}, {"host": "h.TEST", "pool": "slow"}),
        ({"host": "*.test", "pool": "fast"}, {"host": "a.test", "pool": "slow"}),
        ({"host": "*.test", "pool": "fast"}, {"host": "*.a.test", "pool": "slow"}),
        ({"header": HEADER, "pool": "fast"}, {"header": {**HEADER, "name": "x-team"}, "pool": "slow"}),
        ({"header": HEADER, "pool": "fast"}, {"header": HEADER, "path": "/a"}),
    ],
)
def test_what_an_earlier_rule_takes(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    between = {"path": "/between"}
    problem = one(tmp_path, first, between, second)
    assert "rules[2]: this rule never matches: rules[0] takes every request that it would." in problem


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"path": "/a"}, {"path": "/ab"}),
        ({"path": "/a/b"}, {"path": "/a"}),
        ({"path": "/a", "header": HEADER}, {"path": "/a"}),
        ({"path": "/a", "header": HEADER}, {"path": "/a", "header": {**HEADER, "value": "A"}}),
        ({"path": "/a"}, {"host": "a.test", "pool": "fast"}),
        ({"host": "a.test", "pool": "fast"}, {"host": "*.test", "pool": "fast"}),
        ({"host": "*.test", "pool": "fast"}, {"host": "test", "pool": "fast"}),
        ({"host": "*.a.test", "pool": "fast"}, {"host": "*.ba.test", "pool": "fast"}),
    ],
)
def test_what_an_earlier_rule_leaves(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert found(tmp_path, first, second) == []


def test_a_mistake_elsewhere_makes_no_second_one_here(tmp_path: Path) -> None:
    """A model that does not load takes its names and pools with it: that says nothing of the rules."""
    models = {**MODELS, "beta": {"backends": [{"url": "nowhere", "pool": "spare"}]}}
    content = {"models": models, "rules": [{"path": "/a", "model": "beta", "pool": "spare"}]}
    (problem,) = problems_of(tmp_path, content)
    assert "url" in problem.key


def test_the_line_is_the_rules_own(tmp_path: Path) -> None:
    text = """\
models: {m: {backends: [{url: "http://192.0.2.1:8000"}]}}
rules:
  - path: /a
  - path: /a/b
    model: m
  - path: /v2
    model: x
"""
    assert [(problem.line, problem.key) for problem in problems_of(tmp_path, text)] == [
        (4, "rules[1]"),
        (6, "rules[2].path"),
        (7, "rules[2].model"),
    ]


def test_a_rule_may_stand_256_times(tmp_path: Path) -> None:
    rules = [{"path": f"/team-{number}"} for number in range(257)]
    assert found(tmp_path, *rules[:256]) == []
    assert "rules: is too long: at most 256 entries are allowed." in one(tmp_path, *rules)


def test_the_served_roots_are_those_of_the_edge() -> None:
    paths = re.findall(r'"\^?/([a-z0-9]+)', (REPOSITORY / "lua/edge/routes.lua").read_text(encoding="utf-8"))
    assert len(paths) > 15
    assert set(paths) == set(SERVED)


def test_pools_reach_what_the_edge_is_told(tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, {"models": MODELS, "rules": [{"path": "/a", "pool": "fast"}]})
    assert loaded.fleet.rules[0].pool == "fast"
    assert load(write(tmp_path, {"models": MODELS})).fleet.rules == []
