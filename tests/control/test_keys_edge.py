"""keys.json from keys.yaml, the commands as a person types them, and a running edge that takes what they did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from control.edge import keys
from control.fleet.load import load
from control.keys.entries import entries
from control.keys.load import LoadedKeys, parse_keys
from control.keys.secrets import hash_of
from control.paths import StatePaths
from tests.control.edge_site import Place, place, run

SECRET = re.compile(r"sk-[A-Za-z0-9_-]{43}\n")


@pytest.fixture
def edge() -> Iterator[Place]:
    with place() as here:
        yield here


def status(edge: Place, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret.strip()}"}
    return requests.get(f"http://{edge.listen}/v1/models", headers=headers, timeout=5).status_code


def loaded(folder: Path, text: str) -> LoadedKeys:
    (folder / "fleet.yaml").write_text("models: {m: {backends: [{url: 'http://127.0.0.1:9'}]}}\n")
    return parse_keys(text, folder / "keys.yaml", load(folder / "fleet.yaml").fleet)


def hexed(text: str) -> str:
    return hash_of(text).removeprefix("sha256:")


def test_keys_json(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        f"""
keys:
  alice:
    hash: {hash_of("a")}
    ends: x7Qk
    models: [m]
    limits: {{concurrent: 2, models: {{m: {{tokens_per_day: 5}}}}}}
    expires: 2027-01-01T00:00:00Z
    previous: {{hash: {hash_of("b")}, until: "2028-01-01"}}
  bob: {{hash: {hash_of("c")}, enabled: false, priority: high, weight: 3}}
""",
    )
    alice = {"name": "alice", "enabled": True, "priority": "normal", "weight": 1, "models": ["m"],
             "expires": 1798761600, "limits": {"concurrent": 2, "models": {"m": {"tokens_per_day": 5}}}}  # fmt: skip
    assert entries(found) == {
        hexed("a"): alice,
        hexed("b"): alice,  # no longer than the key itself
        hexed("c"): {"name": "bob", "enabled": False, "priority": "high", "weight": 3},
    }
    text = keys.encode(entries(found), 7)
    assert json.loads(text) == {"version": 7, "keys": entries(found)}
    assert len(text.splitlines()) == 5


def test_differences_are_told_by_name() -> None:
    old = {"1": {"name": "a"}, "2": {"name": "b"}, "3": {"name": "c"}}
    new = {"1": {"name": "a"}, "4": {"name": "b"}, "5": {"name": "d"}}
    assert keys.differences(old, new) == ("key c: removed", "key d: added", "key b: changed")
    assert keys.differences(new, new) == ()
    many = {str(number): {"name": f"k{number}"} for number in range(25)}
    assert keys.differences({}, many)[-1] == "... and 5 more keys"


def test_writing_keeps_the_version_when_nothing_changed(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"keys: {{a: {{hash: '{hash_of('a')}'}}}}")
    paths = StatePaths(tmp_path / "state")
    paths.conf.mkdir(parents=True)
    assert keys.write(paths, None).version == 1
    assert keys.write(paths, entries(found)) == keys.Told(2, ("key a: added",))
    assert keys.write(paths, entries(found)) == keys.Told(2, ())
    assert keys.write(paths, None) == keys.Told(2, ())
    assert paths.keys_json.stat().st_mode & 0o777 == 0o600
    paths.keys_json.write_text("{broken")
    assert keys.write(paths, entries(found)).changes == ("key a: added",)


def test_the_first_key_says_what_fleet_yaml_lacks(edge: Place) -> None:
    done = run(edge, "keys", "create", "alice")
    assert SECRET.fullmatch(done.stdout)
    assert "Add the line 'keys: keys.yaml' below 'edge:'" in done.stderr and "signalbox reload" in done.stderr
    assert done.stdout.strip() not in done.stderr
    edge.write(keys="none")
    done = run(edge, "keys", "create", "bob")
    line = edge.fleet_file.read_text().splitlines().index("  keys: none") + 1
    assert f"in place of 'keys: none' ({edge.fleet_file}:{line})" in done.stderr
    edge.write(keys="keys.yaml")
    assert "No edge runs: it counts from the next start on." in run(edge, "keys", "disable", "bob").stderr
    listed = run(edge, "keys", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["name", "alice", "bob"] and "disabled" in listed[2]


def test_wrong_words(edge: Place) -> None:
    edge.write(keys="keys.yaml")
    assert "there are no keys" in run(edge, "keys", "list", code=1).stderr
    run(edge, "keys", "create", "alice", "--models", "m", "--priority", "low", "--requests-per-minute", "5")
    assert "Did you mean 'alice'?" in run(edge, "keys", "revoke", "alic", code=1).stderr
    for words in (("--models", "mm"), ("--expires", "soon"), ("--expires", "2027-13-01")):
        done = run(edge, "keys", "create", "bob", *words, code=1)
        assert done.stdout == "" and "Nothing was written" in done.stderr
    for words in (("--weight", "0"), ("--concurrent", "0"), ("--priority", "urgent")):
        assert run(edge, "keys", "create", "bob", *words, code=2).stdout == ""
    for grace in ("24", "h", "-1h", "1w", "400d", "99999999999d", "1.5h"):
        assert "is no time such as 30m" in run(edge, "keys", "rotate", "alice", "--grace", grace, code=2).stderr
    assert list(yaml.safe_load((edge.folder / "keys.yaml").read_text())["keys"]) == ["alice"]


def test_check_and_render_look_at_the_keys(edge: Place) -> None:
    edge.write(keys="keys.yaml")
    for command in ("check", "render", "start"):
        assert "`signalbox keys create NAME` makes it" in run(edge, command, code=2).stderr
    (edge.folder / "keys.yaml").write_text("keys:\n  alice:\n    hash: sk-0123456789abcdef\n")
    done = run(edge, "check", code=2)
    assert "keys.yaml:3: keys.alice.hash: must be" in done.stderr and "0123456789abcdef" not in done.stderr
    (edge.folder / "keys.yaml").write_text(f"keys:\n  alice:\n    hash: {hash_of('a')}\n")
    assert "is right" in run(edge, "check").stdout
    assert "key alice: added" in run(edge, "render").stdout


@pytest.mark.slow
def test_a_day_of_keys(edge: Place) -> None:
    """Each change counts at the running edge, at once and without a reload."""
    edge.write(keys="keys.yaml")
    alice = run(edge, "keys", "create", "alice").stdout
    run(edge, "start")
    assert (status(edge, alice), status(edge, "sk-x")) == (200, 401)
    bob = run(edge, "keys", "create", "bob", "--models", "m", "--expires", "2099-12-31", "--concurrent", "3")
    assert "at once (keys 2), without a reload" in bob.stderr
    assert status(edge, bob.stdout) == 200
    new = run(edge, "keys", "rotate", "bob", "--grace", "1h")
    assert "lets in until 20" in new.stderr and SECRET.fullmatch(new.stdout)
    assert [status(edge, secret) for secret in (new.stdout, bob.stdout)] == [200, 200]
    newer = run(edge, "keys", "rotate", "bob")
    assert "does not let in any more" in newer.stderr
    assert [status(edge, secret) for secret in (newer.stdout, new.stdout, bob.stdout)] == [200, 401, 401]
    run(edge, "keys", "disable", "bob")
    assert status(edge, newer.stdout) == 401
    run(edge, "keys", "enable", "bob")
    assert status(edge, newer.stdout) == 200
    run(edge, "keys", "revoke", "alice")
    assert status(edge, alice) == 401
    text = (edge.folder / "keys.yaml").read_text().replace("enabled: true", "enabled: false")
    (edge.folder / "keys.yaml").write_text(text)
    assert "key bob: changed" in run(edge, "reload").stdout
    assert status(edge, newer.stdout) == 401
    assert "Nothing changed" in run(edge, "reload").stdout
    state = json.loads(run(edge, "status", "--json").stdout)["state"]
    assert state["generation"] == "1"


@pytest.mark.slow
def test_an_edge_that_was_told_otherwise_is_told_again(edge: Place) -> None:
    """Cut short between file and edge, or told by somebody else: the next reload makes both equal."""
    edge.write(keys="keys.yaml")
    alice = run(edge, "keys", "create", "alice").stdout
    run(edge, "start")
    token = edge.site.paths.admin_token.read_text().strip()
    url, headers = f"http://{edge.admin}/keys", {"Authorization": f"Bearer {token}"}
    assert requests.put(url, json={"version": 9, "keys": {}}, headers=headers, timeout=5).status_code == 200
    assert status(edge, alice) == 401
    assert "The edge took keys 10 without a reload." in run(edge, "reload").stdout
    assert status(edge, alice) == 200
    edge.site.paths.keys_json.unlink()
    assert "keys 11" in run(edge, "reload").stdout
    assert status(edge, alice) == 200
