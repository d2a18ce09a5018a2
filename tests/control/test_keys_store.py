"""Changing keys.yaml: every byte that is not meant stays, nothing is lost, nothing is half written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.errors import FleetError, KeysError, SignalboxError
from control.fleet.load import LoadedFleet, load
from control.fleet.source import compose, compose_large
from control.keys import store
from control.keys.listing import lines
from control.keys.secrets import hash_of
from control.keys.store import Wishes

A, B, C = (hash_of(text) for text in "abc")
FILE = f"""\
# who may use us

keys:   # names
    # the first one
    alice:
        hash: sha256:{A.removeprefix("sha256:")}   # from the old server
        models:
          - m        # only this

        # weight comes last
        weight: 3

    # Bob's team
    bob: {{ hash: '{B}', ends: "1e10",   enabled: true }}
    carol:
        hash: {C}
        previous:
            hash: {hash_of("d")}   # until the move
            until: 2026-12-01
        # a last word
# the end
"""


@pytest.fixture
def fleet(tmp_path: Path) -> LoadedFleet:
    path = tmp_path / "fleet.yaml"
    path.write_text("edge: {keys: keys.yaml}\nmodels: {m: {backends: [{url: 'http://127.0.0.1:9'}]}}\n")
    return load(path)


def write(fleet: LoadedFleet, text: str) -> Path:
    path = fleet.folder / "keys.yaml"
    path.write_bytes(text.encode())
    return path


def differs(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that went and lines that came."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_disabling_touches_one_place(fleet: LoadedFleet) -> None:
    path = write(fleet, FILE)
    store.set_enabled(fleet, "bob", False)
    assert path.read_text() == FILE.replace("enabled: true", "enabled: false")
    store.set_enabled(fleet, "bob", True)
    assert path.read_text() == FILE
    store.set_enabled(fleet, "alice", False)
    assert differs(FILE, path.read_text()) == ([], ["        enabled: false"])


def test_what_is_so_already_writes_nothing(fleet: LoadedFleet) -> None:
    path = write(fleet, FILE)
    before = path.stat()
    assert store.set_enabled(fleet, "alice", True).text == FILE
    assert path.stat() == before


def test_creating_adds_lines_in_the_manner_of_the_file(fleet: LoadedFleet) -> None:
    path = write(fleet, FILE)
    wishes = Wishes(models=("m",), priority="low", weight=2, expires="2027-01-31", limits={"concurrent": 4})
    secret, found = store.create(fleet, "dora", wishes)
    gone, came = differs(FILE, path.read_text())
    assert gone == []
    assert came == [
        "    dora:",
        f"        hash: {hash_of(secret)}",
        f'        ends: "{secret[-4:]}"',
        '        models: ["m"]',
        "        priority: low",
        "        weight: 2",
        "        limits: {concurrent: 4}",
        '        expires: "2027-01-31"',
    ]
    assert found.keys["dora"].limits.concurrent == 4
    assert found.keys["dora"].weight == 2


def test_revoking_takes_its_lines_only(fleet: LoadedFleet) -> None:
    path = write(fleet, FILE)
    store.revoke(fleet, "bob")
    gone, came = differs(FILE, path.read_text())
    assert (len(gone), came) == (1, []) and gone[0].strip().startswith("bob:")
    store.revoke(fleet, "alice")
    assert "# the first one" in path.read_text() and "# Bob's team" in path.read_text()
    store.revoke(fleet, "carol")
    assert yaml.safe_load(path.read_text()) == {"keys": {}}
    assert "# the end" in path.read_text() and "# names" in path.read_text()


def test_rotating_changes_hash_and_ends_and_keeps_the_rest(fleet: LoadedFleet) -> None:
    path = write(fleet, FILE)
    secret, found = store.rotate(fleet, "alice", 3600)
    assert found.keys["alice"].hash == hash_of(secret)
    assert found.keys["alice"].previous is not None and found.keys["alice"].previous.hash == A
    assert f"{hash_of(secret)}   # from the old server" in path.read_text()
    secret, found = store.rotate(fleet, "bob", 60)
    assert found.keys["bob"].ends == secret[-4:] and found.keys["bob"].enabled
    assert f'bob: {{ hash: {hash_of(secret)}, ends: "{secret[-4:]}",   enabled: true, previous: {{' in path.read_text()
    store.rotate(fleet, "bob", 60)
    secret, found = store.rotate(fleet, "bob")
    assert found.keys["bob"].previous is None
    secret, found = store.rotate(fleet, "carol", 5)
    assert found.keys["carol"].previous is not None and found.keys["carol"].previous.hash == C
    assert "# a last word\n# the end\n" in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "keys: {}\n", "keys: {}", "keys: { }   # none yet\n", "# a\nkeys:\n  {}\n", "{keys: {}}", "keys: {}\n\n# end\n",
        "keys: {}\r\n# end\r\n", "---\nkeys: {}\n...\n", "\ufeffkeys: {}\n",
    ],
)  # fmt: skip
def test_the_first_key_of_an_empty_file(fleet: LoadedFleet, text: str) -> None:
    path = write(fleet, text)
    try:
        secret, _ = store.create(fleet, "alice", Wishes())
    except KeysError as error:
        assert "by hand" in error.hint
        assert path.read_bytes() == text.encode()
        assert text in ("# a\nkeys:\n  {}\n",)
        return
    assert path.read_bytes().decode("utf-8-sig").count("\r\n") in (0, path.read_text().count("\n"))
    assert yaml.safe_load(path.read_bytes().decode("utf-8-sig"))["keys"]["alice"]["hash"] == hash_of(secret)
    store.revoke(fleet, "alice")
    assert yaml.safe_load(path.read_bytes().decode("utf-8-sig")) == {"keys": {}}


def test_without_a_file_one_is_made_for_its_owner_only(fleet: LoadedFleet) -> None:
    secret, found = store.create(fleet, "alice", Wishes())
    assert found.path.stat().st_mode & 0o777 == 0o600
    assert secret not in found.path.read_text()
    found.path.chmod(0o644)
    store.create(fleet, "bob", Wishes())
    assert found.path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(fleet.folder)) == [".keys.yaml.lock", "fleet.yaml", "keys.yaml"]


def test_a_link_stays_one(fleet: LoadedFleet) -> None:
    target = fleet.folder / "elsewhere.yaml"
    target.write_text("keys: {}\n")
    (fleet.folder / "keys.yaml").symlink_to(target)
    store.create(fleet, "alice", Wishes())
    assert (fleet.folder / "keys.yaml").is_symlink() and "alice" in target.read_text()


@pytest.mark.parametrize(
    "text",
    [
        f"keys:\n  alice: &a\n    hash: {A}\n    weight: &w 2\n  bob:\n    <<: *a\n    hash: {B}\n",
        f"keys:\n  ? alice\n  : hash: {A}\n",
        f"keys:\n  alice: !!map {{hash: '{A}'}}\n",
        f"keys:\n  alice:\n    hash: &h {A}\n  bob:\n    hash: {B}\n    limits: {{}}\n",
    ],
)
def test_a_file_that_is_beyond_it_is_left_alone_or_changed_rightly(fleet: LoadedFleet, text: str) -> None:
    """Each change ends in a file that says exactly what was meant, or in no change."""
    works: list[Callable[[], object]] = [
        lambda: store.revoke(fleet, "alice"),
        lambda: store.set_enabled(fleet, "alice", False),
        lambda: store.rotate(fleet, "alice", 60),
        lambda: store.create(fleet, "dora", Wishes()),
    ]
    for work in works:
        path = write(fleet, text)
        try:
            work()
        except SignalboxError as error:
            assert path.read_text() == text
            assert isinstance(error, KeysError) and "by hand" in error.hint, error


def test_unknown_names_get_a_suggestion(fleet: LoadedFleet) -> None:
    write(fleet, FILE)
    for work in (store.revoke, store.rotate):
        with pytest.raises(KeysError) as caught:
            work(fleet, "alcie")
        assert str(caught.value) == "there is no key 'alcie'\nDid you mean 'alice'?"
    with pytest.raises(KeysError, match="there is a key 'alice' already"):
        store.create(fleet, "alice", Wishes())


@pytest.mark.parametrize(
    ("name", "wishes", "words"),
    [
        ("dora", Wishes(models=("mm",)), "no model 'mm' in the fleet. Did you mean 'm'?"),
        ("dora", Wishes(expires="soon"), "must be a date such as 2027-01-31"),
        ("a b", Wishes(), "cannot be the name of a key"),
        ("sk-0123456789abcdef", Wishes(), "looks like a key itself"),
        ("", Wishes(), "cannot be the name of a key"),
        ("a: b", Wishes(), "It must be a word of at most 64 letters"),
        ("a\n", Wishes(), "cannot be the name of a key"),
    ],
)
def test_what_cannot_be_is_not_written(fleet: LoadedFleet, name: str, wishes: Wishes, words: str) -> None:
    path = write(fleet, FILE)
    with pytest.raises(SignalboxError) as caught:
        store.create(fleet, name, wishes)
    assert words in str(caught.value)
    assert path.read_text() == FILE


def test_a_broken_file_is_told_and_left(fleet: LoadedFleet) -> None:
    path = write(fleet, "keys:\n  a: {hash: 1}\n")
    with pytest.raises(SignalboxError, match=r"keys.yaml:2: keys.a.hash"):
        store.create(fleet, "alice", Wishes())
    assert path.read_text() == "keys:\n  a: {hash: 1}\n"


def test_ten_at_once_all_remain(fleet: LoadedFleet) -> None:
    threads = [threading.Thread(target=store.create, args=(fleet, f"key-{n}", Wishes())) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(store.read_keys(fleet).keys) == {f"key-{n}" for n in range(10)}


def test_what_an_editor_saves_meanwhile_is_kept(fleet: LoadedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our reading and our writing somebody adds a key: both keys are there afterwards."""
    path = write(fleet, FILE)
    real, saves = store._write, [FILE + "# saved\n", ""]

    def saved_first(place: Path, text: str, before: str | None) -> bool:
        save = saves.pop(0)
        if save:
            path.write_text(save)
        return real(place, text, before)

    monkeypatch.setattr(store, "_write", saved_first)
    store.create(fleet, "dora", Wishes())
    assert path.read_text().endswith("# saved\n") and "dora:" in path.read_text()


def test_a_full_disk_leaves_the_old_file(fleet: LoadedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(fleet, FILE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeysError, match="could not be written: No space left"):
        store.create(fleet, "dora", Wishes())
    assert path.read_text() == FILE
    assert sorted(os.listdir(fleet.folder)) == [".keys.yaml.lock", "fleet.yaml", "keys.yaml"]


def test_the_list(fleet: LoadedFleet) -> None:
    write(fleet, FILE)
    shown = lines(store.read_keys(fleet).keys, now=1_700_000_000)
    assert [line.split()[0] for line in shown] == ["name", "alice", "bob", "carol"]
    assert "...1e10" in shown[2] and "active (old one until 2026-12-02T00:00:00Z)" in shown[3]
    assert A.removeprefix("sha256:")[:8] not in "".join(shown)


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        FILE.replace("who may", "w\u00e4r \u00fc\U0001f600"),
        FILE.replace("\n", "\r\n"),
        "\ufeffkeys: {a: {hash: x, b: }}\n",
        "keys:\n  a:\n  b: 'x\n    y'\n  c: |\n    text\n  d: >-\n   x\n  e: [yes, 010, 1e5, ~, 12:30]\n",
    ],
)
def test_the_quick_reader_finds_the_same_in_the_same_places(text: str) -> None:
    """Changes are made at the places that libyaml names."""

    def whole(node: Any) -> Any:
        if isinstance(node, tuple):
            return tuple(whole(one) for one in node)
        value = [whole(one) for one in node.value] if isinstance(node.value, list) else node.value
        return node.tag, node.start_mark.index, node.end_mark.index, node.start_mark.line, node.start_mark.column, value

    path = Path("keys.yaml")
    assert whole(compose(text, path)) == whole(compose_large(text, path))


@pytest.mark.parametrize("text", ["a: [", "[" * 100_000, "a: &x 1\nb: &x 2\n", "\x00", "a: *b\n", "\u2028"])
def test_what_it_refuses_is_told_as_ever(text: str) -> None:
    path = Path("keys.yaml")
    told = []
    for read in (compose, compose_large):
        with pytest.raises(FleetError) as caught:
            read(text, path)
        told.append(str(caught.value))
    assert told[0] == told[1]


NAMES = ("alice", "bob", "carol", "dora")
STEPS = ("create", "revoke", "rotate", "grace", "on", "off")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES)), max_size=12))
def test_any_row_of_changes_ends_where_it_should(fleet: LoadedFleet, steps: list[tuple[str, str]]) -> None:
    """Against a model of what each key should be; comments of others stay through all of it."""
    path = write(fleet, FILE)
    found = store.read_keys(fleet)
    wanted = {name: (key.hash, key.enabled, bool(key.previous)) for name, key in found.keys.items()}
    for step, name in steps:
        if (name in wanted) == (step == "create"):
            continue
        if step == "create":
            secret, found = store.create(fleet, name, Wishes())
            wanted[name] = (hash_of(secret), True, False)
        elif step == "revoke":
            found = store.revoke(fleet, name)
            del wanted[name]
        elif step in ("rotate", "grace"):
            secret, found = store.rotate(fleet, name, 60 if step == "grace" else 0)
            wanted[name] = (hash_of(secret), wanted[name][1], step == "grace")
        else:
            found = store.set_enabled(fleet, name, step == "on")
            wanted[name] = (wanted[name][0], step == "on", wanted[name][2])
        state = {name: (key.hash, key.enabled, bool(key.previous)) for name, key in found.keys.items()}
        assert state == wanted
        assert store.read_keys(fleet).keys == found.keys
    for comment in ("# who may use us", "# names", "# the first one", "# Bob's team", "# the end"):
        assert comment in path.read_text()
