"""Find the engine (OpenResty, or nginx with the Lua module) and say what it is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from control.errors import EdgeError

PACKAGES = "nginx-light libnginx-mod-http-lua lua-resty-core lua-cjson luajit2"
INSTALL_HINT = (
    f"On Debian or Ubuntu: apt-get install --no-install-recommends {PACKAGES}\n"
    "Elsewhere install OpenResty and put `openresty` on PATH, or name it in edge.binary or in $EDGE_NGINX."
)
#: Where engines lie that an unprivileged user's PATH often lacks.
FOLDERS = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/openresty/bin",
    "/usr/local/openresty/nginx/sbin",
    "/usr/local/nginx/sbin",
)
#: The NDK first: the Lua module needs its symbols.
MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True)
class Profile:
    """What the template must know of the engine that will read its output."""

    name: Literal["debian", "openresty"]
    load_modules: tuple[str, ...]
    http2: Literal["listen", "directive", "none"]
    ca_bundle: str


@dataclass(frozen=True)
class Engine:
    """The nginx binary: absolute path, what it calls itself ("nginx/1.22.1"), version and profile."""

    path: Path
    title: str
    version: tuple[int, ...]
    profile: Profile


def find_engine(configured: Path | None = None) -> Engine:
    """Take ``configured`` (edge.binary), else $EDGE_NGINX, else ``openresty`` or ``nginx`` on PATH and in FOLDERS.

    Raises EdgeError when there is none, when it does not run, or when it has no Lua.
    """
    path = _locate(configured)
    return inspect(path)


def inspect(path: Path) -> Engine:
    """Ask the binary at ``path`` (``-V``) what it is. Raises EdgeError when it does not run or has no Lua."""
    try:
        done = subprocess.run([str(path), "-V"], capture_output=True, text=True, timeout=10, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EdgeError(f"{path} could not be run: {error}", INSTALL_HINT) from error
    text = done.stdout + done.stderr
    found = re.search(r"^nginx version: ((?:nginx|openresty)/([0-9]+(?:\.[0-9]+)*)\S*)", text, re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise EdgeError(f"{path} is not nginx: `{path} -V` answered {text.strip()[:200]!r}", INSTALL_HINT)
    version = tuple(int(part) for part in found[2].split("."))
    return Engine(path, found[1], version, _profile(path, text, version))


def _locate(configured: Path | None) -> Path:
    for source, wanted in (("edge.binary", str(configured or "")), ("$EDGE_NGINX", os.environ.get("EDGE_NGINX", ""))):
        if wanted:
            found = shutil.which(wanted)
            if found is None:
                raise EdgeError(f"{source} names {wanted}, and there is no such program", INSTALL_HINT)
            return Path(found).absolute()
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    for name in ("openresty", "nginx"):
        found = shutil.which(name, path=search)
        if found is not None:
            return Path(found).absolute()
    raise EdgeError("neither openresty nor nginx is installed", INSTALL_HINT)


def _profile(path: Path, text: str, version: tuple[int, ...]) -> Profile:
    arguments = _configure_arguments(text)
    http2: Literal["listen", "directive", "none"] = "none"
    if "--with-http_v2_module" in arguments:
        http2 = "directive" if version >= (1, 25, 1) else "listen"
    if any(re.search(r"^--add-module=.*(ngx_lua|lua-nginx-module)", argument) for argument in arguments):
        return Profile("openresty", (), http2, ca_bundle())
    folder = next((a.partition("=")[2] for a in arguments if a.startswith("--modules-path=")), "/usr/lib/nginx/modules")
    modules = tuple(str(Path(folder, name)) for name in MODULES)
    missing = [name for name in modules if not Path(name).is_file()]
    if missing:
        raise EdgeError(f"{path} has no Lua: neither built in nor as {', '.join(missing)}", INSTALL_HINT)
    return Profile("debian", modules, http2, ca_bundle())


def _configure_arguments(text: str) -> list[str]:
    found = re.search(r"^configure arguments:(.*)$", text, re.MULTILINE)
    return shlex.split(found[1]) if found else []


def ca_bundle() -> str:
    """The system's bundle of certificate authorities; without one, that of the ``requests`` library."""
    for candidate in CA_BUNDLES:
        if Path(candidate).is_file():
            return candidate
    import certifi

    return certifi.where()
