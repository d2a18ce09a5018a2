"""Rendering: golden files of both profiles, determinism, hostile values, broken templates."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.edge.binary import Profile, find_engine
from control.edge.process import EdgeProcess
from control.edge.render import Rendered, Scratch, Sources, render
from control.edge.snapshot import encode, tls_location, tls_name
from control.edge.surroundings import Surroundings, User
from control.errors import RenderError
from control.fleet.load import load
from control.fleet.resolve import resolve_backends
from control.paths import REPOSITORY, StatePaths
from tests.control.certificates import make_certificate

GOLDEN = Path(__file__).parent / "golden"
DEBIAN = Profile(
    name="debian",
    load_modules=("/usr/lib/nginx/modules/ndk_http_module.so", "/usr/lib/nginx/modules/ngx_http_lua_module.so"),
    http2="listen",
    ca_bundle="/etc/ssl/certs/ca-certificates.crt",
)
OPENRESTY = Profile(name="openresty", load_modules=(), http2="directive", ca_bundle="/etc/ssl/cert.pem")
SURROUNDINGS = Surroundings(user=User("nobody", "nogroup"), open_files=20_000, nameservers=("192.0.2.53:53",))

SMALL: dict[str, Any] = {"models": {"m": {"backends": [{"url": "http://127.0.0.1:8101"}]}}}
FULL: dict[str, Any] = {
    "edge": {
        "listen": "[::]:8443",
        "admin": "127.0.0.1:9089",
        "keys": "none",
        "tls": {
            "certificate": "certs/edge.pem",
            "key": "certs/edge.key",
            "others": [
                {
                    "names": ["Chat.example.com", "*.example.org"],
                    "certificate": "certs/chat.pem",
                    "key": "certs/chat.key",
                }
            ],
        },
        "workers": 4,
        "worker_connections": 1024,
        "max_body": "10m",
        "timeouts": {"header": "5s", "body": "10s", "send": "20s", "keepalive": "30s", "drain": "2m"},
        "address_limits": {"connections": 10, "requests_per_second": 50, "burst": 20},
        "cors": {"origins": ["https://chat.example.com", "http://localhost:3000"]},
        "pass_headers": ["X-Team-Id"],
        "trusted_proxies": ["10.0.0.5", "2001:db8::/32"],
        "count_usage": True,
        "log": {"level": "info"},
        "dns": "10.0.0.2:53",
    },
    "default_model": "org/big",
    "rules": [
        {"path": "/spare", "model": "big-lora", "pool": "spare"},
        {"host": "*.Example.com", "header": {"name": "X-Team", "value": "a"}, "policy": "least_loaded"},
    ],
    "models": {
        "org/big": {
            "aliases": ["big"],
            "loras": ["big-lora"],
            "routing": {"policy": "round_robin"},
            "timeouts": {"connect": "1s", "read": "300s"},
            "backends": [
                {"id": "plain", "url": "http://127.0.0.1:8101", "key_env": "PLAIN_KEY"},
                {
                    "id": "rented",
                    "url": "https://rented.invalid",
                    "key_file": "secrets/gpu.key",
                    "model_name": "real/big",
                },
                {"id": "own-ca", "url": "https://own.invalid:9443", "ca": "certs/edge.pem"},
                {"id": "own-ca-again", "url": "https://own.invalid:9443", "ca": "certs/edge.pem", "pool": "spare"},
            ],
        },
        "small": {"backends": [{"url": "http://127.0.0.1:8102"}]},
    },
}


def write_fleet(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fleet's folder with the files that FULL names."""
    for name in ("edge", "chat"):
        make_certificate(tmp_path / "certs" / f"{name}.pem", tmp_path / "certs" / f"{name}.key")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "gpu.key").write_text("top-secret-key\n")
    return tmp_path


def rendered(folder: Path, content: dict[str, Any], profile: Profile = DEBIAN, **options: Any) -> Rendered:
    loaded = load(write_fleet(folder, content))
    return render(loaded, StatePaths(folder / "state"), profile, surroundings=SURROUNDINGS, **options)


@pytest.mark.parametrize("profile", [DEBIAN, OPENRESTY], ids=lambda profile: str(profile.name))
@pytest.mark.parametrize("fleet", ["small", "full"])
def test_golden(folder: Path, fleet: str, profile: Profile) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest, then read the diff of golden/."""
    found = rendered(folder, {"small": SMALL, "full": FULL}[fleet], profile)
    names = {f"{fleet}.{profile.name}.nginx.conf": found.nginx_conf, f"{fleet}.fleet.json": encode(found.snapshot)}
    loaded = load(folder / "fleet.yaml")
    places = (
        {str(REPOSITORY): "/opt/signalbox", str(folder): "/srv/fleet"}
        | {
            # The name of an https origin depends on the CA's path, so on this test's folder.
            tls_name(backend): f"engine_tls_{backend.host}_{backend.port}"
            for backend in resolve_backends(loaded)
        }
        | {
            tls_location(backend): f"engine_tls_ca_{'own' if backend.ca else 'system'}"
            for backend in resolve_backends(loaded)
        }
    )
    for name, text in names.items():
        for place, replacement in places.items():
            text = text.replace(place, replacement)
        if os.environ.get("UPDATE_GOLDEN"):
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), f"{name} differs"


def test_same_input_same_bytes(folder: Path) -> None:
    first, second = rendered(folder, FULL), rendered(folder, FULL)
    assert first == second
    assert encode(first.snapshot) == encode(second.snapshot)


@pytest.mark.parametrize("content", [SMALL, FULL], ids=["small", "full"])
def test_the_engine_of_this_machine_accepts_it(folder: Path, content: dict[str, Any]) -> None:
    engine = find_engine()
    scratch = Scratch("127.0.0.1:18443", "127.0.0.1:18444")
    process = EdgeProcess(StatePaths(folder / "state"), engine)
    process.prepare()
    for options in ({}, {"scratch": scratch}):
        found = rendered(folder, content, engine.profile, **options)
        (process.paths.conf / "nginx.conf").write_text(found.nginx_conf)
        assert process.test() == []


def test_every_certificate_is_a_file_that_a_reload_watches(folder: Path) -> None:
    found = rendered(folder, FULL)
    names = {str(path.relative_to(folder)) for path in found.read_files}
    assert names == {f"certs/{name}" for name in ("edge.pem", "edge.key", "chat.pem", "chat.key")}


def test_https_origins_of_one_authority_share_a_location(folder: Path) -> None:
    """Each location reads all of the authority's file, which takes long, and there is one for every certificate."""
    urls = [f"https://engine-{number}.invalid" for number in range(5)]
    found = rendered(folder, {"models": {"m": {"backends": [{"url": url} for url in urls]}}})
    assert found.nginx_conf.count("upstream engine_tls_") == 5
    assert found.nginx_conf.count("proxy_ssl_trusted_certificate") == 1


def test_no_secret_is_rendered(folder: Path) -> None:
    found = rendered(folder, FULL)
    assert "top-secret-key" not in found.nginx_conf + encode(found.snapshot)
    assert "env PLAIN_KEY;" in found.nginx_conf


def test_scratch_has_other_addresses_and_no_timers(folder: Path) -> None:
    found = rendered(folder, SMALL, scratch=Scratch("127.0.0.1:1234", "127.0.0.1:1235"))
    assert found.snapshot["timers"] is False
    assert "listen 127.0.0.1:1234" in found.nginx_conf
    assert "8080" not in found.nginx_conf
    assert (found.listen, found.admin) == (("127.0.0.1:1234",), "127.0.0.1:1235")


def test_a_file_limit_below_the_wish_is_kept(folder: Path) -> None:
    assert "worker_rlimit_nofile 20000;" in rendered(folder, SMALL).nginx_conf
    assert "worker_rlimit_nofile 2560;" in rendered(folder, FULL).nginx_conf


def broken_sources(folder: Path, text: str) -> Sources:
    templates = folder / "templates"
    shutil.copytree(REPOSITORY / "templates", templates)
    (templates / "nginx.conf.j2").write_text(text)
    return Sources(templates=templates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% if %}", r"nginx\.conf\.j2:1: "),
        ("a\n{{ nosuch }}", "'nosuch' is undefined"),
        ("{{ listen | nosuch }}", "nosuch"),
        ("{{ max_body | nginx_quote }}", "only text can be quoted"),
    ],
)
def test_a_broken_template_is_told(folder: Path, text: str, message: str) -> None:
    with pytest.raises(RenderError, match=message):
        rendered(folder, SMALL, sources=broken_sources(folder, text))


def test_a_missing_template_is_told(folder: Path) -> None:
    with pytest.raises(RenderError, match="missing"):
        rendered(folder, SMALL, sources=Sources(templates=folder / "nowhere"))


def test_a_checkout_in_a_folder_that_lua_cannot_search(folder: Path) -> None:
    with pytest.raises(RenderError, match="Lua's search path"):
        rendered(folder, SMALL, sources=Sources(lua=folder / "a;b"))


@pytest.mark.parametrize("name", ["it's here", "with space", 'quote"d', "umläut", "{{ 7*7 }}", "#hash", "semi;colon }"])
def test_a_folder_with_a_hostile_name_is_quoted(folder: Path, name: str) -> None:
    """fleet.yaml's own folder is no value that the schema sees, yet its path reaches nginx.conf."""
    place = folder / name
    place.mkdir()
    shutil.copytree(folder / "certs", place / "certs")
    shutil.copytree(folder / "secrets", place / "secrets")
    engine = find_engine()
    found = rendered(place, FULL, engine.profile)
    process = EdgeProcess(StatePaths(folder / "state"), engine)
    process.prepare()
    (process.paths.conf / "nginx.conf").write_text(found.nginx_conf)
    process.test()  # nginx loads the certificate from that path, so it read the path back as it is
