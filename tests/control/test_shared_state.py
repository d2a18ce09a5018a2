"""``edge.state``: memory, a URL, or written out; a password never stands in fleet.yaml, nor in what is rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.fleet.shared_state import SharedState, shared_state
from tests.support.fleet_yaml import SMALL, changed, fleet_of, problems_of


def found(folder: Path, state: Any) -> SharedState | None:
    fleet = fleet_of(folder, {**SMALL, "edge": {"state": state}})
    return shared_state(fleet.fleet, fleet.folder)


def test_memory_needs_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "memory") is None
    assert shared_state(fleet_of(tmp_path, SMALL).fleet, tmp_path) is None


def test_a_url_is_enough(tmp_path: Path) -> None:
    short = found(tmp_path, "redis://10.0.0.5")
    assert short is not None and short == found(tmp_path, {"redis": "redis://10.0.0.5:6379/0"})
    assert (short.host, short.port, short.database, short.tls) == ("10.0.0.5", 6379, 0, False)
    assert (short.on_error, short.prefix, short.timeout) == ("local", "signalbox", 250)
    other = found(tmp_path, "redis://[2001:db8::5]:6380/12")
    assert other is not None and (other.host, other.port, other.database) == ("2001:db8::5", 6380, 12)
    secret = found(tmp_path, "rediss://redis.lan")
    assert secret is not None and (secret.host, secret.port, secret.tls) == ("redis.lan", 6379, True)
    local = found(tmp_path, "redis://localhost/2")
    assert local is not None and (local.host, local.database) == ("127.0.0.1", 2)


def test_sentinels_and_files(tmp_path: Path) -> None:
    (tmp_path / "redis.pw").write_text("x\n")
    state = {"redis": "redis://10.0.0.5/1", "sentinels": ["10.0.0.6:26379", "[::1]:26379"], "master": "one",
             "password_file": "redis.pw", "timeout": "100ms", "on_error": "refuse"}  # fmt: skip
    settings = found(tmp_path, state)
    assert settings is not None
    assert settings.sentinels == (("10.0.0.6", 26379), ("::1", 26379))
    assert settings.password_file == tmp_path / "redis.pw" and settings.timeout == 100


@pytest.mark.parametrize("place", [("edge", "state"), ("edge", "state", "redis")])
@pytest.mark.parametrize("url", ["redis://:canary@10.0.0.5", "rediss://me:canary@redis.lan:6380/1"])
def test_a_password_in_the_url_is_refused_and_not_repeated(tmp_path: Path, place: tuple[str, ...], url: str) -> None:
    base = {**SMALL, "edge": {"state": {"redis": "redis://10.0.0.5"}}}
    (problem,) = problems_of(tmp_path, changed(base, place, url))
    said = str(problem)
    assert "password_file" in said and "canary" not in said


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("redis", "a URL such as redis://"),
        ("http://10.0.0.5", "a URL such as redis://"),
        ("redis://10.0.0.5:70000", "port"),
        ("redis://999.1.1.1", "neither a host name nor an IP address"),
        ("rediss://10.0.0.5", "rediss needs a host name"),
        ({"redis": "redis://10.0.0.5", "master": "one"}, "sentinels and master belong together"),
        ({"redis": "redis://10.0.0.5", "user": "me"}, "password_file"),
        ({"redis": "redis://10.0.0.5", "password_file": "nowhere"}, "there is no file"),
        ({"redis": "redis://10.0.0.5", "on_error": "ignore"}, "'local' or 'refuse'"),
        ({"url": "redis://10.0.0.5"}, "unknown key"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, state: Any, words: str) -> None:
    problems = problems_of(tmp_path, {**SMALL, "edge": {"state": state}})
    assert any(words in str(problem) for problem in problems), problems
