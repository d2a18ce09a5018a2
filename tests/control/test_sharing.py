"""What edges elsewhere are given (control.sharing), and the files of machines with an edge only: without any Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.errors import FleetError, SharingError
from control.fleet.load import load
from control.fleet.resolve import resolve_backends
from control.sharing import document
from control.sharing.document import Document

REDIS = "redis://127.0.0.1:6379"


def fleet(folder: Path, *backends: dict[str, Any]) -> Document:
    """The document of a fleet.yaml in ``folder``."""
    for name in ("secrets/a.key", "ca.pem"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x\n")
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"models": {"m": {"backends": list(backends)}}}))
    found = resolve_backends(load(folder / "fleet.yaml"))
    rendered = {
        "version": 3, "dns": ["10.9.9.9:53"], "names": {"m": "m"}, "models": {"m": {"backends": []}},
        "backends": {
            one.id: {"model": "m", "host": one.host, "port": one.port, "scheme": one.scheme, "addresses": ["10.1.1.1"],
                     "name": "m", "served": ["m"], "key_file": str(one.key_file), "own_ca": True,
                     "tls_location": "@here", "tls_upstream": "here", "unknown": "to this release"}
            for one in found
        },
    }  # fmt: skip
    return document.written(7, "0.1.0", "here", rendered, found, None, folder)


def test_paths_are_those_of_the_machine_that_takes_it(tmp_path: Path) -> None:
    backend = {"id": "m-1", "url": "https://gpu.test:8000", "key_file": "secrets/a.key", "ca": "ca.pem"}
    made = fleet(tmp_path, backend)
    text = made.encode()
    assert str(tmp_path) not in text and "10.9.9.9" not in text and "10.1.1.1" not in text and "@here" not in text
    again = document.read(text)
    assert again == made and again.digest() == made.digest()
    (one,) = document.taken(again, Path("/elsewhere")).backends
    assert (one.key_file, one.ca) == (Path("/elsewhere/secrets/a.key"), Path("/elsewhere/ca.pem"))
    assert again.fleet["backends"]["m-1"]["unknown"] == "to this release"


def test_the_version_is_no_content(tmp_path: Path) -> None:
    made = fleet(tmp_path, {"url": "http://gpu.test:8000"})
    later = Document(8, made.release, made.source, {**made.fleet, "version": 8}, made.keys)
    assert later.digest() == made.digest()
    assert Document(8, made.release, made.source, made.fleet, {}).digest() != made.digest()


@pytest.mark.parametrize("outside", ["../up.key", "/etc/hostname"])
def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, outside: str) -> None:
    (folder := tmp_path / "in").mkdir()
    (tmp_path / "up.key").write_text("x\n")
    made = fleet(folder, {"id": "m-1", "url": "http://gpu.test:8000", "key_file": outside})
    with pytest.raises(SharingError, match=r"the key_file of m-1.* is not below the fleet's folder"):
        document.taken(document.read(made.encode()), folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "has the form 2"),
        ({"version": "7"}, "damaged at version"),
        ({"keys": {"nohash": {}}}, "damaged at keys.nohash"),
        ({"fleet": None}, "damaged at fleet"),
        ({"backend": {"host": "a b; }"}}, "damaged at fleet.backends.m-1.host"),
        ({"backend": {"scheme": "ftp"}}, "damaged at fleet.backends.m-1.scheme"),
        ({"backend": {"key_env": "A;B"}}, "damaged at fleet.backends.m-1.key_env"),
        ({"backend": {"port": 0}}, "damaged at fleet.backends.m-1.port"),
    ],
)
def test_a_damaged_document_is_told_with_its_place(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    content = json.loads(fleet(tmp_path, {"id": "m-1", "url": "http://gpu.test:8000"}).encode())
    if "backend" in change:
        content["fleet"]["backends"]["m-1"] |= change["backend"]
    else:
        content |= change
    with pytest.raises(SharingError, match=why):
        document.read(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "7", '{"format": 1}', '"text"'])
def test_what_is_no_document(text: str) -> None:
    with pytest.raises(SharingError):
        document.read(text)


def problems(folder: Path, content: dict[str, Any], edge_only: bool = True) -> str:
    path = folder / "edge.yaml"
    path.write_text(yaml.safe_dump(content))
    try:
        load(path, edge_only=edge_only)
    except FleetError as error:
        return str(error)
    return ""


def test_the_file_of_an_edge_only(tmp_path: Path) -> None:
    # Keys come with the fleet, so that it may listen everywhere.
    assert problems(tmp_path, {"edge": {"listen": "0.0.0.0:8080", "state": REDIS}}) == ""
    assert "'models' is missing" in problems(tmp_path, {"edge": {}})
    assert "signalbox edge" in problems(tmp_path, {"edge": {"state": REDIS}}, edge_only=False)


@pytest.mark.parametrize(
    ("edge", "rest", "key"),
    [
        ({"probe": {"idle": "1h"}}, {}, "edge.probe"),
        ({"count_usage": True}, {}, "edge.count_usage"),
        ({"keys": "keys.yaml"}, {}, "edge.keys"),
        ({}, {"hosts": {"here": {"local": True}}}, "hosts"),
        ({}, {"rules": [{"path": "/a"}]}, "rules"),
    ],
)
def test_what_is_the_whole_fleets_has_no_place_there(
    tmp_path: Path, edge: dict[str, Any], rest: dict[str, Any], key: str
) -> None:
    said = problems(tmp_path, {"edge": {"state": REDIS, **edge}, **rest})
    assert f" {key}: without models this is the file of an edge only" in said
