"""Engines and edges that the plain tests share; violent tests start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, alphabet_fleet, one_model


@pytest.fixture(scope="session")
def _engines() -> Iterator[list[ScriptedEngine]]:
    names = (("alpha",), ("alpha",), ("org/beta:v1",))
    engines = [ScriptedEngine(*served, **({"lora": "alpha-lora"} if "alpha" in served else {})) for served in names]
    try:
        for engine in engines:
            engine.launch()
        yield [engine.ready() for engine in engines]
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture(scope="session")
def _alphabet(_engines: list[ScriptedEngine]) -> Iterator[Alphabet]:
    with Edge(alphabet_fleet(_engines[:2], _engines[2])) as edge:
        yield Alphabet(edge, _engines[:2], _engines[2], 8 * 1024**2)


@pytest.fixture
def alphabet(_alphabet: Alphabet) -> Iterator[Alphabet]:
    """Two models on three engines behind one edge, all idle and with counters at zero."""
    for engine in _alphabet.engines:
        engine.reset()
    yield _alphabet
    _alphabet.edge.idle()
    _alphabet.edge.check_log()


@pytest.fixture(scope="session")
def solo(_engines: list[ScriptedEngine]) -> Iterator[Edge]:
    """An edge with one model on one engine."""
    with Edge(one_model("alpha", _engines[0])) as edge:
        yield edge


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine of this test alone, serving "alpha"."""
    with ScriptedEngine("alpha") as one:
        yield one


@pytest.fixture
def engine_2() -> Iterator[ScriptedEngine]:
    """A second one."""
    with ScriptedEngine("alpha") as one:
        yield one


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with key and chain for localhost; its CA lies beside it."""
    folder = tmp_path_factory.mktemp("tls")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "edge.pem")
    )
    authority.issue_cert("elsewhere.test").private_key_and_cert_chain_pem.write_to_path(str(folder / "elsewhere.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    return folder / "edge.pem"
