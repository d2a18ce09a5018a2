"""Render nginx.conf and fleet.json from a loaded fleet. The same input gives the same bytes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from control import __version__
from control.edge.binary import Profile
from control.edge.quoting import nginx_quote
from control.edge.snapshot import Snapshot, retold, snapshot, tls_location, tls_name
from control.edge.surroundings import Surroundings, here
from control.errors import RenderError
from control.fleet.edge_schema import Certificate, Edge, Tls
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, addresses, resolve_backends
from control.fleet.shared_state import SharedState, shared_state
from control.paths import REPOSITORY, StatePaths

TEMPLATE = "nginx.conf.j2"


@dataclass(frozen=True)
class Sources:
    """Where the edge's own code and template lie."""

    lua: Path = REPOSITORY / "lua"
    templates: Path = REPOSITORY / "templates"


@dataclass(frozen=True)
class Scratch:
    """Addresses of a short start beside the running edge; its timers are off, so that it probes nobody."""

    listen: str
    admin: str


@dataclass(frozen=True)
class Taken:
    """A fleet that another machine has rendered: its fleet.json, and its backends as this machine resolves them."""

    snapshot: Snapshot
    backends: tuple[ResolvedBackend, ...]


@dataclass(frozen=True)
class Rendered:
    """The two files, and what applying them must know. ``snapshot`` has version 0, which promoting makes a real one, or
    that of the fleet that was taken."""

    nginx_conf: str
    snapshot: Snapshot
    admin: str
    listen: tuple[str, ...]
    read_files: tuple[Path, ...]  # what nginx reads when it loads the configuration, apart from Lua
    key_envs: tuple[str, ...]  # variables that hold engine keys; nginx sees them as they were when it started


def render(
    loaded: LoadedFleet,
    paths: StatePaths,
    profile: Profile,
    *,
    scratch: Scratch | None = None,
    sources: Sources | None = None,
    surroundings: Surroundings | None = None,
    taken: Taken | None = None,
) -> Rendered:
    """Render both files for ``profile``. Looks up the backends' addresses; a name without any is no error.

    ``taken``: models and backends are those of another machine's fleet, for an edge alone.

    Raises RenderError when the template is broken or a value cannot stand in nginx.conf.
    """
    sources = sources or Sources()
    backends = resolve_backends(loaded) if taken is None else list(taken.backends)
    surroundings = surroundings or here(loaded.path, _worker_files(paths, backends, sources))
    context = build_context(loaded, profile, backends, surroundings, sources, scratch)
    found = _look_up(backends) if scratch is None else {}
    edge = loaded.fleet.edge
    if taken is None:
        content = snapshot(loaded.fleet, backends, found, version=0, timers=scratch is None, dns=context["dns"])
    else:
        content = retold(taken.snapshot, backends, found, context["dns"])
    return Rendered(
        nginx_conf=fill(sources.templates, context),
        snapshot=content,
        admin=scratch.admin if scratch else edge.admin,
        listen=(scratch.listen if scratch else edge.listen,),
        read_files=_read_files(loaded, backends),
        key_envs=tuple(context["key_envs"]),
    )


def build_context(
    loaded: LoadedFleet,
    profile: Profile,
    backends: Sequence[ResolvedBackend],
    surroundings: Surroundings,
    sources: Sources,
    scratch: Scratch | None,
) -> dict[str, Any]:
    """Everything that the template may use: strings that it quotes, and ints, bools, lists and None built here."""
    edge = loaded.fleet.edge
    tls = edge.tls
    return {
        "profile": {
            "name": profile.name,
            "load_modules": list(profile.load_modules),
            "http2": profile.http2,
            "ca_bundle": profile.ca_bundle,
        },
        "version": __version__,
        "lua_dir": _lua_path(sources.lua),
        "user": surroundings.user,
        "workers": edge.workers if edge.workers == "auto" else int(edge.workers),
        "worker_connections": int(edge.worker_connections),
        "worker_rlimit_nofile": _open_files(edge, surroundings.open_files),
        "listen": [{"address": scratch.listen if scratch else edge.listen}],
        "admin": scratch.admin if scratch else edge.admin,
        "certificates": _certificates(loaded, tls) if tls else [],
        "max_body": int(edge.max_body),
        "timeouts": {
            name: int(getattr(edge.timeouts, name)) for name in ("header", "body", "send", "keepalive", "drain")
        },
        "address_limits": {
            "connections": int(edge.address_limits.connections),
            "requests_per_second": int(edge.address_limits.requests_per_second),
            "burst": int(edge.address_limits.burst),
        },
        "cors_origins": list(edge.cors.origins) if edge.cors else None,
        "log_level": edge.log.level,
        "pass_headers": list(edge.pass_headers),
        "trusted_proxies": [_network(text) for text in edge.trusted_proxies],
        "state": _state(shared_state(loaded.fleet, loaded.folder)),
        "dns": [edge.dns] if edge.dns else list(surroundings.nameservers),
        "tls_upstreams": _tls_upstreams(backends),
        "tls_locations": _tls_locations(backends),
        "key_envs": sorted({backend.key_env for backend in backends if backend.key_env}),
    }


def _certificates(loaded: LoadedFleet, tls: Tls) -> list[dict[str, Any]]:
    """The certificate for all names of which nothing else is said, then those for some."""
    default = {"names": [], "certificate": str(loaded.file(tls.certificate)), "key": str(loaded.file(tls.key))}
    others = [
        {
            "names": [name.lower() for name in other.names],
            "certificate": str(loaded.file(other.certificate)),
            "key": str(loaded.file(other.key)),
        }
        for other in tls.others
    ]
    return [default, *others]


def _state(state: SharedState | None) -> dict[str, Any] | None:
    """What the edge's Lua is told of Redis: the password stays in its file."""
    if state is None:
        return None
    texts = {
        "host": state.host,
        "prefix": state.prefix,
        "on_error": state.on_error,
        "user": state.user,
        "password_file": str(state.password_file) if state.password_file else None,
        "master": state.master,
    }
    return {
        "texts": {name: text for name, text in texts.items() if text is not None},
        "numbers": {"port": state.port, "database": state.database, "timeout": state.timeout},
        "tls": state.tls,
        "sentinels": [{"host": host, "port": port} for host, port in state.sentinels],
    }


def fill(templates: Path, context: Mapping[str, Any]) -> str:
    """nginx.conf from a ``build_context``. Raises RenderError for a broken template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # nginx.conf is no HTML; nginx_quote is its escaping
    )
    environment.filters["nginx_quote"] = nginx_quote
    try:
        return environment.get_template(TEMPLATE).render(context)
    except jinja2.TemplateNotFound as error:
        raise RenderError(f"the template {templates / str(error.name)} is missing", "Restore it from git.") from error
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or templates / TEMPLATE}:{error.lineno}"
        raise RenderError(f"{where}: {error.message}", "Correct the template, then render again.") from error
    except jinja2.TemplateError as error:
        raise RenderError(f"{templates / TEMPLATE}: {error}", "Correct the template, then render again.") from error


def _open_files(edge: Edge, hard_limit: int | None) -> int:
    """Two sockets per connection (client and engine) and some files; never over the hard limit, which would fail."""
    wanted = 2 * edge.worker_connections + 512
    return wanted if hard_limit is None else min(wanted, hard_limit)


def _tls_upstreams(backends: Sequence[ResolvedBackend]) -> list[str]:
    """One for each https origin, sorted by host, port and CA."""
    https = [backend for backend in backends if backend.scheme == "https"]
    https.sort(key=lambda backend: (backend.host, backend.port, str(backend.ca or "")))
    return list(dict.fromkeys(tls_name(backend) for backend in https))


def _tls_locations(backends: Sequence[ResolvedBackend]) -> list[dict[str, str | None]]:
    """One for each authority that signs certificates of https origins; ``ca`` is None for the system's."""
    found = {str(backend.ca or ""): tls_location(backend) for backend in backends if backend.scheme == "https"}
    return [{"name": found[ca], "ca": ca or None} for ca in sorted(found)]


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise RenderError(
            f"edge.trusted_proxies: {text!r} is no address range", "Write it as 10.0.0.0/8 or 2001:db8::/32."
        ) from error


def _lua_path(folder: Path) -> str:
    text = str(folder.absolute())
    if ";" in text or "?" in text:
        raise RenderError(
            f"the folder {text} cannot be in Lua's search path, which gives ';' and '?' a meaning",
            "Move the checkout to a folder without these characters.",
        )
    return text


def _look_up(backends: Sequence[ResolvedBackend]) -> dict[str, list[str]]:
    """Addresses of each distinct host, asked side by side: one slow name server must not delay all the others."""
    hosts = sorted({backend.host for backend in backends})
    with ThreadPoolExecutor(max_workers=min(16, len(hosts) or 1)) as pool:
        return dict(zip(hosts, pool.map(addresses, hosts), strict=True))


def _worker_files(paths: StatePaths, backends: Sequence[ResolvedBackend], sources: Sources) -> list[Path]:
    keys = {backend.key_file for backend in backends if backend.key_file}
    return [paths.edge.absolute(), sources.lua.absolute(), *sorted(keys)]


def _read_files(loaded: LoadedFleet, backends: Sequence[ResolvedBackend]) -> tuple[Path, ...]:
    tls = loaded.fleet.edge.tls
    pairs: list[Certificate] = [tls, *tls.others] if tls else []
    files = dict.fromkeys(loaded.file(name) for pair in pairs for name in (pair.certificate, pair.key))
    state = shared_state(loaded.fleet, loaded.folder)
    secrets = [state.password_file] if state and state.password_file else []
    return (*files, *secrets, *sorted({backend.ca for backend in backends if backend.ca}))
