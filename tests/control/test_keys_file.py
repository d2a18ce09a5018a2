"""keys.yaml: what may stand there, and that no message repeats a secret."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.errors import FleetError
from control.fleet.load import LoadedFleet, load
from control.fleet.messages import _arms
from control.fleet.shapes import PATTERN_WORDS
from control.keys.load import load_keys, parse_keys
from control.keys.schema import KeysFile, Moment
from control.keys.secrets import hash_of, new_secret, redact

HASH, OTHER = hash_of("one"), hash_of("other")
#: Every key of the schema once.
FULL: dict[str, Any] = {
    "alice": {
        "hash": HASH,
        "ends": "x7Qk",
        "models": ["big", "small"],
        "priority": "high",
        "weight": 2,
        "limits": {
            "requests_per_minute": 60, "tokens_per_minute": 1, "concurrent": 8, "tokens_per_day": 5_000_000,
            "tokens_per_month": 50_000_000, "models": {"big": {"requests_per_minute": 10, "tokens_per_day": 1}},
        },
        "expires": "2027-01-31",
        "enabled": False,
        "previous": {"hash": OTHER, "until": "2026-12-01T00:00:00Z"},
    },
    "bob": {"hash": hash_of("bob")},
}  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> LoadedFleet:
    """Models big (also called large) and small; keys are asked for."""
    backends = [{"url": "http://127.0.0.1:9"}]
    models = {"big": {"aliases": ["large"], "backends": backends}, "small": {"backends": backends}}
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump({"edge": {"listen": "0.0.0.0:8080", "keys": "keys.yaml"}, "models": models}))
    return load(path)


def told(fleet: LoadedFleet, text: str | dict[str, Any]) -> list[str]:
    """What is wrong with this keys.yaml."""
    text = text if isinstance(text, str) else yaml.safe_dump({"keys": text}, sort_keys=False)
    (fleet.folder / "keys.yaml").write_text(text)
    try:
        load_keys(fleet)
    except FleetError as error:
        assert error.exit_code == 2
        return [str(problem).replace(f"{fleet.folder}/", "") for problem in error.problems]
    return []


def alice(**changes: Any) -> dict[str, Any]:
    return {"alice": {"hash": HASH, **changes}}


def test_a_full_file_and_an_empty_one_are_right(fleet: LoadedFleet) -> None:
    assert told(fleet, FULL) == []
    found = load_keys(fleet)
    assert found is not None and found.keys["alice"].limits.models["big"].requests_per_minute == 10
    assert found.keys["bob"].model_dump(exclude_none=True) | {"hash": ""} == {
        "hash": "", "priority": "normal", "weight": 1, "limits": {"models": {}}, "enabled": True
    }  # fmt: skip
    assert told(fleet, "keys: {}\n") == []


def test_the_full_file_has_every_key_of_the_schema() -> None:
    used: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            used.update(value)
            for one in value.values():
                walk(one)

    walk(FULL)
    for definition in KeysFile.model_json_schema()["$defs"].values():
        assert set(definition["properties"]) <= used
    assert _arms  # the words of every pattern are tested for fleet.yaml; those of keys.yaml here:
    assert PATTERN_WORDS[r"^sha256:[0-9a-f]{64}$"]


def test_without_keys_in_the_fleet_no_file_is_read(fleet: LoadedFleet) -> None:
    for written in ("none", None):
        content = yaml.safe_load(fleet.path.read_text())
        content["edge"] = {"listen": "127.0.0.1:8080"} | ({"keys": written} if written else {})
        fleet.path.write_text(yaml.safe_dump(content))
        assert load_keys(load(fleet.path)) is None


def test_a_missing_file_says_who_makes_it(fleet: LoadedFleet) -> None:
    with pytest.raises(
        FleetError, match=r"fleet.yaml:2: edge.keys: there is no file .*keys.yaml. `signalbox keys create"
    ):
        load_keys(fleet)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "keys.yaml:1: the file is empty. It needs at least 'keys:'"),
        ("- a\n", "must be a mapping"),
        ("keys: [a]\n", "keys.yaml:1: keys: must be a mapping"),
        ("keys:\n", "keys.yaml:1: keys: is empty"),
        ("key: {}\n", "keys.yaml:1: key: unknown key 'key'. Did you mean 'keys'?"),
        ("keys:\n  a: {hash: x\n", "keys.yaml:3"),
        (f"keys:\n  a: {{hash: '{HASH}'}}\n  a: {{hash: '{OTHER}'}}\n", "keys.yaml:3: keys.a: this key is given twice"),
    ],
)
def test_what_is_no_keys_file(fleet: LoadedFleet, text: str, words: str) -> None:
    assert any(words in line for line in told(fleet, text)), told(fleet, text)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"alice": {}}, "keys.yaml:2: keys.alice.hash: the key 'hash' is missing."),
        (alice(limit={}), "keys.yaml:4: keys.alice.limit: unknown key 'limit'. Did you mean 'limits'?"),
        (alice(limits={"request_per_minute": 1}), "Did you mean 'requests_per_minute'?"),
        (alice(limits={"concurrent": 0}), "keys.alice.limits.concurrent: must be at least 1, not 0."),
        (alice(limits={"models": {"bigg": {}}}), "no model 'bigg' in the fleet. Did you mean 'big'?"),
        (alice(models=["small"], limits={"models": {"big": {}}}), "alice may not use 'big'"),
        (alice(models=["bigg"]), "keys.alice.models[0]: there is no model 'bigg' in the fleet. Did you mean 'big'?"),
        (alice(models=["large"]), "Write the model's own name, 'big'."),
        (alice(models=["x"]), "There are: big, small."),
        (alice(models=[]), "must have at least 1 entry"),
        (alice(models="big"), "must be a list"),
        (alice(priority="hgh"), "'normal', 'high' or 'low', not 'hgh'. Did you mean 'high'?"),
        (alice(weight=1001), "must be at most 1000"),
        (alice(enabled="yes"), "must be true or false"),
        (alice(expires="tomorrow"), "must be a date such as 2027-01-31"),
        (alice(expires="2027-02-30"), "must be a date such as 2027-01-31"),
        (alice(expires=2027), "must be a date such as 2027-01-31"),
        (alice(previous={"hash": OTHER}), "keys.alice.previous.until: the key 'until' is missing"),
        ({"a b": {"hash": HASH}}, "this name is not allowed"),
        ({"a": {"hash": HASH}, "b": {"hash": HASH}}, "keys.b.hash: this hash stands at keys.a.hash too."),
        (alice(previous={"hash": HASH, "until": "2027-01-01"}), "keys.alice.previous.hash: this hash stands at"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_place(fleet: LoadedFleet, keys: dict[str, Any], words: str) -> None:
    lines = told(fleet, keys)
    assert len(lines) == 1 and words in lines[0], lines
    assert HASH not in lines[0]


@pytest.mark.parametrize("place", ["hash", "ends", "key", "name", "model", "models", "expires", "limits", "priority"])
def test_a_secret_in_the_wrong_place_is_never_repeated(fleet: LoadedFleet, place: str) -> None:
    secret = new_secret()
    keys: dict[str, Any] = {
        "name": {secret: {"hash": HASH}}, "models": alice(models=[secret]), "model": alice(models=secret),
        "key": {"alice": {secret: HASH, "hash": HASH}}, "limits": alice(limits={"models": {secret: {}}}),
    }.get(place, {"alice": {"hash": HASH, place: secret}})  # fmt: skip
    lines = told(fleet, keys)
    assert lines and secret not in "".join(lines) and secret[3:20] not in "".join(lines)
    assert "has hashes only" in "".join(lines)


@pytest.mark.parametrize("secret", ["password-of-alice", "x" * 64, HASH.upper(), HASH.removeprefix("sha256:")])
def test_a_secret_of_another_form_is_not_repeated_either(fleet: LoadedFleet, secret: str) -> None:
    for key in ("hash", "ends"):
        lines = told(fleet, {"alice": {"hash": HASH, key: secret}})
        assert len(lines) == 1 and secret not in lines[0] and f"keys.alice.{key}" in lines[0]


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-31", datetime(2027, 2, 1, tzinfo=UTC)),
        ("2028-02-29", datetime(2028, 3, 1, tzinfo=UTC)),
        ("2027-01-31T12:30:00Z", datetime(2027, 1, 31, 12, 30, tzinfo=UTC)),
        ("2027-01-31 12:30", datetime(2027, 1, 31, 12, 30, tzinfo=UTC)),
        ("2027-01-31T12:30:00+02:00", datetime(2027, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_a_date_is_the_end_of_its_day_in_utc(written: str, moment: datetime) -> None:
    found = Moment.parse(written)
    assert found == moment.timestamp()
    assert Moment.parse(found.text()) == found


def test_secrets() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100 and all(len(secret) == 46 and secret.startswith("sk-") for secret in made)
    assert hash_of("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert redact(f"a {made.pop()} b") == "a sk-... b"


def test_aliases_cannot_blow_it_up(fleet: LoadedFleet) -> None:
    text = f"x: &a {{hash: '{HASH}'}}\nkeys: {{a: *a}}\n"
    assert any("unknown key 'x'" in line for line in told(fleet, text))
    with pytest.raises(FleetError, match="larger than 16 MiB"):
        (fleet.folder / "keys.yaml").write_bytes(b"#" * (16 * 1024**2 + 1))
        load_keys(fleet)
    with pytest.raises(FleetError):
        parse_keys("a: &a [*a]\n", Path("keys.yaml"), fleet.fleet)
