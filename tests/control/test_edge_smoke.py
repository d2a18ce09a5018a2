"""`signalbox check`: a start on scratch ports that touches nothing and leaves nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from control.edge import apply, files
from control.edge.smoke import smoke
from control.errors import EdgeError, RenderError
from tests.control.certificates import make_certificate
from tests.control.edge_site import Place, place


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with place() as here:
        scratch = here.folder / "scratch"
        scratch.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        yield here
        assert list(scratch.iterdir()) == []
        left = [process for process in psutil.process_iter() if str(scratch) in " ".join(_command(process))]
        assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def tree(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_good_fleet_starts_and_leaves_nothing(edge: Place) -> None:
    found = smoke(edge.site)
    assert found.warnings == ()
    assert 0 < found.milliseconds < 20_000
    assert not (edge.folder / ".signalbox").exists()


def test_with_tls(edge: Place) -> None:
    make_certificate(edge.folder / "edge.pem", edge.folder / "edge.key")
    edge.write(tls={"certificate": "edge.pem", "key": "edge.key"})
    smoke(edge.site)


def test_the_running_edge_is_untouched(edge: Place) -> None:
    apply.start(edge.site)
    before = tree(edge.site.paths.conf), tree(edge.site.paths.edge / "run"), files.backup(edge.site.paths)
    smoke(edge.site)
    assert (tree(edge.site.paths.conf), tree(edge.site.paths.edge / "run"), files.backup(edge.site.paths)) == before
    assert edge.site.process.pid() is not None


def test_lua_that_does_not_load(edge: Place) -> None:
    edge.append_to_lua("policy.lua", "\nthis is no Lua\n")
    with pytest.raises(EdgeError, match=r"policy\.lua"):
        smoke(edge.site)


def test_a_template_that_nginx_refuses(edge: Place) -> None:
    template = edge.sources.templates / "nginx.conf.j2"
    template.write_text(template.read_text() + "}")
    with pytest.raises(EdgeError, match='unexpected "}"'):
        smoke(edge.site)


def test_a_template_that_jinja_refuses(edge: Place) -> None:
    (edge.sources.templates / "nginx.conf.j2").write_text("{{")
    with pytest.raises(RenderError):
        smoke(edge.site)


def test_a_certificate_that_is_none(edge: Place) -> None:
    (edge.folder / "edge.pem").write_text("no certificate")
    (edge.folder / "edge.key").write_text("no key")
    edge.write(tls={"certificate": "edge.pem", "key": "edge.key"})
    with pytest.raises(EdgeError, match=r"edge\.pem"):
        smoke(edge.site)
