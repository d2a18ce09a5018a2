"""Each source of torch with the others switched off: real pip, dry runs."""

from __future__ import annotations

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from control.engines.pip import Pip, masked
from control.engines.progress import silent
from control.engines.torch_source import FIND_LINKS, INDEX_VARIABLE, PLAIN, TORCH_VERSION, choose, named_index
from control.errors import InstallError
from tests.engines.wheels import write_wheel

pytestmark = pytest.mark.slow


class News:
    """Collects what is told while something runs."""

    def __init__(self) -> None:
        self.details: list[str] = []

    def __call__(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        self.details.append(detail)


@pytest.fixture
def nothing(tmp_path: Path) -> dict[str, str]:
    """pip's environment with no find-links folder and no extra index, whatever this machine's configuration says."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PIP_FIND_LINKS": str(empty), "PIP_EXTRA_INDEX_URL": empty.as_uri(), "PIP_CONSTRAINT": ""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A find-links folder with a tiny CPU build of torch."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "torch", f"{TORCH_VERSION}+cpu")
    return folder


@pytest.fixture
def index(tmp_path: Path, folder: Path) -> Iterator[str]:
    """The address of a package index on loopback that carries the same wheel."""
    project = tmp_path / "site" / "simple" / "torch"
    project.mkdir(parents=True)
    for wheel in folder.iterdir():
        (project / wheel.name).write_bytes(wheel.read_bytes())
    handler = functools.partial(Quiet, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


SECRET = "pass-3f9a"


class Guarded(Quiet):
    """Lets nobody in without the password, and looks who says it where everybody can read it."""

    seen: ClassVar[list[str]] = []
    refused: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        for process in psutil.process_iter(["cmdline"]):
            self.seen.extend(word for word in process.info["cmdline"] or [] if SECRET in word)
        expected = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
        if self.headers["Authorization"] == expected:
            super().do_GET()
        else:
            self.refused.append(self.path)
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="wheels"')
            self.end_headers()


def pip(venv: Path, tmp_path: Path, environment: dict[str, str]) -> Pip:
    return Pip(venv, tmp_path / "pip.log", environment)


def test_a_find_links_folder_alone(pip_venv: Path, tmp_path: Path, folder: Path, nothing: dict[str, str]) -> None:
    offline = {**nothing, "PIP_NO_INDEX": "1"}
    with_folder = pip(pip_venv, tmp_path, {**offline, "PIP_FIND_LINKS": str(folder)})
    assert choose(with_folder, News(), {}) is FIND_LINKS
    assert "Would install torch-2.13.0+cpu" in (tmp_path / "pip.log").read_text()
    assert not pip(pip_venv, tmp_path, offline).resolves(FIND_LINKS.arguments)


def test_a_named_index_alone(pip_venv: Path, tmp_path: Path, index: str, nothing: dict[str, str]) -> None:
    source = choose(pip(pip_venv, tmp_path, nothing), News(), {INDEX_VARIABLE: index})
    assert source == named_index(index)
    assert "Would install torch-2.13.0+cpu" in (tmp_path / "pip.log").read_text()


def test_the_password_of_a_named_index_is_told_to_nobody(
    pip_venv: Path, tmp_path: Path, index: str, nothing: dict[str, str]
) -> None:
    handler = functools.partial(Guarded, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://me:{SECRET}@127.0.0.1:{server.server_port}/simple"
        news, ours = News(), pip(pip_venv, tmp_path, nothing)
        source = choose(ours, news, {INDEX_VARIABLE: address})
        assert source == named_index(address)
        folder = ["--target", str(tmp_path / "installed")]
        ours.using(source.environment).install([*source.arguments, *folder], "Installing", news)
        server.shutdown()
    log = (tmp_path / "pip.log").read_text()
    assert "Successfully installed torch" in log
    assert Guarded.seen == []
    assert SECRET not in f"{log} {source} {news.details}"


def test_a_failure_does_not_tell_a_password_either(pip_venv: Path, tmp_path: Path, nothing: dict[str, str]) -> None:
    """Here the address comes from somewhere else, and pip is made to say it."""
    address = f"http://me:{SECRET}@127.0.0.1:9/torch-1.0-py3-none-any.whl"
    with pytest.raises(InstallError) as caught:
        pip(pip_venv, tmp_path, {**nothing, "PIP_RETRIES": "0"}).install([f"torch @ {address}?"], "Installing", silent)
    assert SECRET not in str(caught.value)
    log = (tmp_path / "pip.log").read_text()
    assert SECRET not in log
    assert "http://****@127.0.0.1:9/" in log


def test_masked() -> None:
    assert masked("a https://me:p@ss@host/x, http://token@h b@c") == "a https://****@host/x, http://****@h b@c"
    assert masked("http://127.0.0.1:9/simple me@example.com") == "http://127.0.0.1:9/simple me@example.com"


def test_a_named_index_is_the_only_index(
    pip_venv: Path, tmp_path: Path, folder: Path, nothing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extra indexes of pip's configuration, in its variable or in a file, add nothing to it."""
    project = tmp_path / "extra" / "torch"
    project.mkdir(parents=True)
    for wheel in folder.iterdir():
        (project / wheel.name).write_bytes(wheel.read_bytes())
        (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    extra = (tmp_path / "extra").as_uri()
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nextra-index-url = {extra}\n")
    empty = (tmp_path / "empty").as_uri()
    in_file = {**nothing, "PIP_CONFIG_FILE": str(configuration), "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": empty}
    for environment in (in_file, {**nothing, "PIP_EXTRA_INDEX_URL": extra, "PIP_INDEX_URL": empty}):
        ours = pip(pip_venv, tmp_path, environment)
        assert ours.resolves(named_index(empty).arguments)  # they are there
        assert not ours.using(named_index(empty).environment).resolves(named_index(empty).arguments)


def test_an_index_that_does_not_answer_is_passed_over(
    pip_venv: Path, tmp_path: Path, folder: Path, nothing: dict[str, str]
) -> None:
    dead = named_index("http://127.0.0.1:9/simple")
    assert not pip(pip_venv, tmp_path, nothing).using(dead.environment).resolves(dead.arguments)


def test_the_folder_comes_before_the_named_index(
    pip_venv: Path, tmp_path: Path, folder: Path, index: str, nothing: dict[str, str]
) -> None:
    both = pip(pip_venv, tmp_path, {**nothing, "PIP_FIND_LINKS": str(folder)})
    assert choose(both, News(), {INDEX_VARIABLE: index}) is FIND_LINKS


def test_the_default_index_alone(pip_venv: Path, tmp_path: Path, nothing: dict[str, str]) -> None:
    """The last resort: said with its size, and the index really has it."""
    alone, news = pip(pip_venv, tmp_path, nothing), News()
    assert choose(alone, news, {}) is PLAIN
    assert "2.7 GB to download" in news.details[-1] and INDEX_VARIABLE in news.details[-1]
    assert alone.resolves(PLAIN.arguments)
    assert f"Would install torch-{TORCH_VERSION}" in (tmp_path / "pip.log").read_text()
