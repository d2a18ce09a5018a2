"""Which engine is found, and what it is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from control.edge.binary import find_engine, inspect
from control.errors import EdgeError

OPENRESTY = """nginx version: openresty/1.27.1.2
built with OpenSSL 3.0.15
configure arguments: --prefix=/usr/local/openresty/nginx --add-module=../ngx_lua-0.10.28 --with-http_v2_module
"""
PLAIN = """nginx version: nginx/1.26.3 (Some Distribution)
configure arguments: --with-cc-opt='-g -O2' --modules-path={folder}/modules --with-http_v2_module
"""


def fake(folder: Path, text: str, name: str = "nginx", code: int = 0) -> Path:
    """A program that answers any call with ``text`` on stderr, as nginx -V does."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}END\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_the_engine_of_this_machine_has_lua() -> None:
    engine = find_engine()
    assert engine.path.is_absolute()
    assert engine.version >= (1, 18)
    assert all(Path(module).is_file() for module in engine.profile.load_modules)
    assert Path(engine.profile.ca_bundle).is_file()


def test_openresty_has_lua_built_in_and_the_new_http2_directive(tmp_path: Path) -> None:
    engine = inspect(fake(tmp_path, OPENRESTY))
    assert (engine.profile.name, engine.profile.load_modules, engine.profile.http2) == ("openresty", (), "directive")
    assert (engine.title, engine.version) == ("openresty/1.27.1.2", (1, 27, 1, 2))


@pytest.mark.parametrize(("version", "http2"), [("1.25.0", "listen"), ("1.25.1", "directive"), ("1.22.1", "listen")])
def test_dynamic_modules_make_the_debian_profile(tmp_path: Path, version: str, http2: str) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    for name in ("ndk_http_module.so", "ngx_http_lua_module.so"):
        (modules / name).touch()
    profile = inspect(fake(tmp_path, PLAIN.format(folder=tmp_path).replace("1.26.3", version))).profile
    assert profile.name == "debian"
    assert profile.http2 == http2
    assert profile.load_modules == (f"{modules}/ndk_http_module.so", f"{modules}/ngx_http_lua_module.so")


def test_without_http2_in_the_build_there_is_none(tmp_path: Path) -> None:
    text = OPENRESTY.replace(" --with-http_v2_module", "")
    assert inspect(fake(tmp_path, text)).profile.http2 == "none"


def test_nginx_without_lua_names_the_packages(tmp_path: Path) -> None:
    with pytest.raises(EdgeError, match="has no Lua") as caught:
        inspect(fake(tmp_path, PLAIN.format(folder=tmp_path)))
    assert "libnginx-mod-http-lua" in caught.value.hint


def test_another_program_is_not_taken_for_nginx(tmp_path: Path) -> None:
    with pytest.raises(EdgeError, match="is not nginx"):
        inspect(fake(tmp_path, "Apache/2.4\n"))


def test_a_program_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "nginx").write_bytes(b"\x7fELF garbage")
    (tmp_path / "nginx").chmod(0o755)
    with pytest.raises(EdgeError, match="could not be run"):
        inspect(tmp_path / "nginx")


def test_order_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = fake(tmp_path, OPENRESTY.replace("1.27.1.2", "1.27.1.3"), "mine")
    named = fake(tmp_path, OPENRESTY.replace("1.27.1.2", "1.27.1.4"), "env")
    on_path = fake(tmp_path, OPENRESTY, "openresty")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("EDGE_NGINX", str(named))
    assert find_engine(configured).path == configured
    assert find_engine().path == named
    monkeypatch.delenv("EDGE_NGINX")
    assert find_engine().path == on_path


@pytest.mark.parametrize("variable", [True, False])
def test_a_named_binary_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: bool) -> None:
    missing = tmp_path / "nowhere" / "nginx"
    if variable:
        monkeypatch.setenv("EDGE_NGINX", str(missing))
    with pytest.raises(EdgeError, match="there is no such program") as caught:
        find_engine(None if variable else missing)
    assert ("$EDGE_NGINX" if variable else "edge.binary") in caught.value.message


def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EDGE_NGINX", raising=False)
    monkeypatch.setattr("control.edge.binary.FOLDERS", ())
    with pytest.raises(EdgeError, match="neither openresty nor nginx") as caught:
        find_engine()
    assert "apt-get install" in caught.value.hint
