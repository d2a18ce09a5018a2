"""What pydantic cannot see: rules across the fields of a fleet, and files that must be there."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from control.fleet.address import ip, is_host, is_host_pattern, is_loopback, overlap, split_listen, split_url
from control.fleet.arguments import check_arguments
from control.fleet.edge_schema import Certificate, RedisState
from control.fleet.headers import is_edges_own, passes_anyway
from control.fleet.host_checks import check_hosts
from control.fleet.messages import Finding, did_you_mean, shown
from control.fleet.rules import check_rules
from control.fleet.schema import PLACEHOLDERS, Backend, Engine, Fleet, Model
from control.fleet.shared_state import settings_of, split_redis
from control.fleet.source import KeyPath, dotted

_OTHER_END = " Or give its host another loopback address for this end of the tunnel: 'address: 127.0.0.2'."
LISTENERS: tuple[KeyPath, ...] = (("edge", "listen"), ("edge", "admin"), ("control", "listen"))


def check(fleet: Fleet, folder: Path) -> list[Finding]:
    """Everything wrong with a fleet whose types are right. ``folder``: where relative paths start."""
    findings: list[Finding] = []
    own = (_edge_only, _listeners, _ports, _state, _tls_names, _edge_lists, _names, _ids, _models)
    for rule in (*own, check_hosts, check_rules, check_arguments):
        findings += rule(fleet)
    findings += _files(fleet, folder)
    return findings


def _edge_only(fleet: Fleet) -> Iterator[Finding]:
    """Without models the file is that of one more edge: all that is the whole fleet's comes with the fleet."""
    if fleet.models:
        return
    if settings_of(fleet.edge.state) is None:
        hint = "Add it. (An edge that takes the fleet from others needs edge.state: redis://..., see docs/redis.md.)"
        yield Finding(("models",), "the key 'models' is missing.", hint)
        return
    whole = [(name,) for name in ("hosts", "default_model", "rules") if name in fleet.model_fields_set]
    whole += [("edge", name) for name in ("probe", "count_usage") if name in fleet.edge.model_fields_set]  # type: ignore[misc]
    for path in whole:
        yield Finding(path, "without models this is the file of an edge only; this comes with the fleet.", "Remove it.")
    if fleet.edge.keys not in (None, "none"):
        hint = "Remove the line; 'keys: none' says that the network is trusted if the fleet asks for none."
        yield Finding(
            ("edge", "keys"), "without models this is the file of an edge only: keys come with the fleet.", hint
        )


def _backends(fleet: Fleet) -> Iterator[tuple[KeyPath, Backend]]:
    for name, model in fleet.models.items():
        for index, backend in enumerate(model.backends):
            yield ("models", name, "backends", index), backend


def _written(fleet: Fleet, path: KeyPath) -> str:
    return str(getattr(getattr(fleet, str(path[0])), str(path[1])))


def _bad_port(path: KeyPath, port: int) -> Iterator[Finding]:
    if not 1 <= port <= 65535:
        yield Finding(path, f"the port must be from 1 to 65535, not {port}.")


def _listeners(fleet: Fleet) -> Iterator[Finding]:
    for path in LISTENERS:
        text = _written(fleet, path)
        host, port = split_listen(text)
        yield from _bad_port(path, port)
        if ip(host) is None and host.lower() != "localhost":
            yield Finding(path, f"{host!r} is not an IP address of this machine.", "Write one, such as 127.0.0.1.")
        elif not is_loopback(host):
            yield from _exposed(fleet, path, text)
    if fleet.control.url is not None and fleet.control.login is None:
        message = f"{fleet.control.url} offers the control page to others, but it would ask nobody for a password."
        hint = "Add 'login:' under control: `signalbox page-login NAME` makes the file; or remove 'url:'."
        yield Finding(("control", "url"), message, hint, about=(("control", "login"),))
    if fleet.edge.dns is not None:
        host, port = split_listen(fleet.edge.dns)
        yield from _bad_port(("edge", "dns"), port)
        if ip(host) is None:
            yield Finding(("edge", "dns"), f"{host!r} is not an IP address.", "A name server needs one: 10.0.0.2:53.")


def _exposed(fleet: Fleet, path: KeyPath, text: str) -> Iterator[Finding]:
    if path == ("edge", "admin"):
        message = f"{text} can be reached from other machines, but the edge's admin listener must stay on this one."
        yield Finding(path, message, "Use 127.0.0.1, and an SSH tunnel to look at it from elsewhere.")
    elif path == ("control", "listen"):
        yield from _exposed_page(fleet, path, text)
    elif fleet.edge.keys is None and fleet.models:  # else keys come with the fleet, and follow.py looks at both
        message = f"{text} can be reached from other machines, and no API key would be asked for."
        hint = (
            "Ask for keys with 'keys: keys.yaml' under edge (`signalbox keys create NAME` makes the first), or say "
            "'keys: none' if the network is trusted; else listen on 127.0.0.1."
        )
        yield Finding(path, message, hint, about=(("edge", "keys"),))


def _exposed_page(fleet: Fleet, path: KeyPath, text: str) -> Iterator[Finding]:
    if fleet.control.login is None:
        message = f"{text} can be reached from other machines, but the control page would ask nobody for a password."
        hint = (
            "Use 127.0.0.1, and an SSH tunnel to look at it from elsewhere; or let it ask: `signalbox page-login NAME` "
            "makes a file of logins, which 'login:' under control names."
        )
        yield Finding(path, message, hint)
    elif not (fleet.control.url or "").startswith("https://"):
        message = f"{text} can be reached from other machines without TLS: passwords cross the network readable."
        hint = "Listen on 127.0.0.1 behind a proxy with TLS, and name its address in 'url:' (docs/page.md)."
        yield Finding(path, message, hint, warning=True)


def _ports(fleet: Fleet) -> Iterator[Finding]:
    """Two listeners on one address; and a url that leads back to the edge, where requests would run in circles."""
    claims: list[tuple[KeyPath, str, int]] = [(path, *split_listen(_written(fleet, path))) for path in LISTENERS]
    own = list(claims)
    for path, backend in _backends(fleet):
        if backend.url is not None:
            _, host, port = split_url(backend.url)
            here = [at for at, mine, its in own if its == port and overlap(host, mine)] if is_loopback(host) else []
            for circle in here:
                yield Finding((*path, "url"), f"this is {dotted(circle)}, not an engine.", about=(circle,))
        elif backend.host in fleet.hosts and backend.port is not None:
            claims.append(((*path, "port"), fleet.hosts[backend.host].address, backend.port))
    seen: dict[int, list[tuple[KeyPath, str]]] = {}
    for path, host, port in claims:
        clash = next((at for at, other in seen.get(port, []) if overlap(host, other)), None)
        seen.setdefault(port, []).append((path, host))
        if clash is not None:
            hint = "Give it another." + (_OTHER_END if _tunnelled(fleet, path) else "")
            yield Finding(path, f"port {port} is already taken by {dotted(clash)}.", hint, (clash,))


def _tunnelled(fleet: Fleet, path: KeyPath) -> bool:
    """Whether the listener at ``path`` is this machine's end of a tunnel."""
    place = next((backend for at, backend in _backends(fleet) if at == path[:-1]), None)
    host = fleet.hosts.get(place.host) if place is not None and place.host is not None else None
    return host is not None and host.tunnel is not None


def _tls_names(fleet: Fleet) -> Iterator[Finding]:
    """Names that a client can ask for, each with one certificate."""
    seen: dict[str, KeyPath] = {}
    for number, other in enumerate(fleet.edge.tls.others if fleet.edge.tls else []):
        for index, name in enumerate(other.names):
            path: KeyPath = ("edge", "tls", "others", number, "names", index)
            if not is_host_pattern(name) or ip(name) is not None:
                yield Finding(path, f"{name!r} is no host name.", "Write chat.example.com, or *.example.com.")
            elif name.lower() in seen:
                first = seen[name.lower()]
                yield Finding(path, f"the name {name!r} has a certificate already: {dotted(first)}.", "", (first,))
            seen.setdefault(name.lower(), path)


def _state(fleet: Fleet) -> Iterator[Finding]:
    state = fleet.edge.state
    settings = settings_of(state)
    if settings is None:
        return
    path: KeyPath = ("edge", "state")
    at = path if isinstance(state, str) else (*path, "redis")
    scheme, host, port, _ = split_redis(settings.redis)
    yield from _bad_port(at, port)
    if scheme == "rediss" and ip(host) is not None:
        message = "rediss needs a host name: certificates are compared with names only, never with IP addresses."
        yield Finding(at, message, "Give the certificate's name, which the name server must know.")
    if not is_host(host):
        yield Finding(at, f"{host!r} is neither a host name nor an IP address.")
    for number, address in enumerate(settings.sentinels or ()):
        yield from _bad_port((*path, "sentinels", number), split_listen(address)[1])


def _edge_lists(fleet: Fleet) -> Iterator[Finding]:
    keys = fleet.edge.keys
    if keys is not None and keys != "none" and keys.lower() == "none":  # else a file of this name would be looked for
        yield Finding(("edge", "keys"), f"must be 'none' in small letters, or a file, not {shown(keys)}.")
    elif keys not in (None, "none") and fleet.edge.log.level == "debug":
        message = "with 'debug' nginx writes every request's headers into error.log, clients' API keys among them."
        yield Finding(("edge", "log", "level"), message, "Use 'info'.", about=(("edge", "keys"),))
    seen: set[str] = set()
    for index, header in enumerate(fleet.edge.pass_headers):
        path = ("edge", "pass_headers", index)
        name = header.lower()
        if is_edges_own(header):
            yield Finding(path, f"the header {header!r} is the edge's own business and never passes.", "Remove it.")
        elif passes_anyway(header) or name in seen:
            yield Finding(path, f"the header {header!r} passes already.", "Remove it.")
        seen.add(name)
    for index, text in enumerate(fleet.edge.trusted_proxies):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            hint = "Write for example 10.0.0.5 or 10.0.0.0/8."
            yield Finding(("edge", "trusted_proxies", index), f"{text!r} is not an IP address or network.", hint)
    for index, origin in enumerate(fleet.edge.cors.origins if fleet.edge.cors else []):
        if origin != "*":
            yield from _bad_url(("edge", "cors", "origins", index), origin)


def _bad_url(path: KeyPath, url: str) -> Iterator[Finding]:
    _, host, port = split_url(url)
    yield from _bad_port(path, port)
    if not is_host(host):
        yield Finding(path, f"{host!r} is neither a host name nor an IP address.")


def _names(fleet: Fleet) -> Iterator[Finding]:
    """Every name that a client may send means one thing."""
    seen: dict[str, KeyPath] = {name: ("models", name) for name in fleet.models}
    for model, settings in fleet.models.items():
        for kind, names in (("aliases", settings.aliases), ("loras", settings.loras)):
            for index, name in enumerate(names):
                path: KeyPath = ("models", model, kind, index)
                if name in seen:
                    message = f"the name {name!r} is already taken by {dotted(seen[name])}."
                    yield Finding(path, message, "A name may stand for one model only.", (seen[name],))
                else:
                    seen[name] = path
    default = fleet.default_model
    if default is not None and default not in fleet.models:
        owner = seen.get(default, ("", ""))[1]
        hint = f"Write the model's own name, {owner!r}." if owner else did_you_mean(default, fleet.models)
        yield Finding(("default_model",), f"there is no model {default!r}.", hint, (("models",),))


def _ids(fleet: Fleet) -> Iterator[Finding]:
    seen: dict[str, KeyPath] = {}
    for place, backend in _backends(fleet):
        path = (*place, "id")
        if backend.id is not None and backend.id in seen:
            first = seen[backend.id]
            yield Finding(path, f"the id {backend.id!r} is already taken by {dotted(first)}.", "", (first,))
        elif backend.id is not None:
            seen[backend.id] = path
    for name, host in fleet.hosts.items():
        if not is_host(host.address):
            message = f"{host.address!r} is neither a host name nor an IP address."
            yield Finding(("hosts", name, "address"), message)


def _models(fleet: Fleet) -> Iterator[Finding]:
    for name, model in fleet.models.items():
        path: KeyPath = ("models", name)
        for index, backend in enumerate(model.backends):
            yield from _backend((*path, "backends", index), backend, fleet)
        yield from _fallback((*path, "fallback"), name, model, fleet)
        ours = next((index for index, backend in enumerate(model.backends) if _ours(fleet, backend)), None)
        if ours is not None and model.engine is None:
            message = "this backend is started here, but the model says nothing about how."
            hint = "Add 'engine:' to the model (runtime and version, command, or image)."
            yield Finding((*path, "backends", ours), message, hint, ((*path, "engine"),))
        if model.engine is not None:
            yield from _engine((*path, "engine"), model.engine, model, started=ours is not None)


def _fallback(path: KeyPath, name: str, model: Model, fleet: Fleet) -> Iterator[Finding]:
    for index, other in enumerate(model.fallback):
        if other == name:
            yield Finding((*path, index), "a model cannot fall back to itself.", "Remove it.")
        elif other in model.fallback[:index]:
            yield Finding((*path, index), f"{other!r} stands here twice.", "Remove it.")
        elif other not in fleet.models:
            owner = next((own for own, its in fleet.models.items() if other in (*its.aliases, *its.loras)), None)
            hint = f"Write the model's own name, {owner!r}." if owner else did_you_mean(other, fleet.models)
            yield Finding((*path, index), f"there is no model {other!r}.", hint, (("models",),))


def _backend(path: KeyPath, backend: Backend, fleet: Fleet) -> Iterator[Finding]:
    if backend.url is not None:
        yield from _bad_url((*path, "url"), backend.url)
        if backend.url.startswith("https://") and ip(split_url(backend.url)[1]) is not None:
            message = "https needs a host name: nginx compares certificates with names only, never with IP addresses."
            yield Finding((*path, "url"), message, "Give the certificate's name (an entry in /etc/hosts will do).")
        return
    if backend.host is not None and backend.host not in fleet.hosts:
        hint = did_you_mean(backend.host, fleet.hosts, f"Add it: 'hosts: {{{backend.host}: {{local: true}}}}'.")
        yield Finding((*path, "host"), f"there is no host {backend.host!r} under hosts.", hint, (("hosts",),))
    if backend.model_name is not None and _ours(fleet, backend):
        message = "model_name is for engines that already run (url); those started here get the model's own name."
        yield Finding((*path, "model_name"), message, "Remove it.")


def _engine(path: KeyPath, engine: Engine, model: Model, *, started: bool) -> Iterator[Finding]:
    source = (*path[:-1], "source")
    if started and engine.runtime is not None and model.source is None:
        message = f"the runtime {engine.runtime} needs a model to serve."
        yield Finding((*path, "runtime"), message, "Add 'source:' to the model.", (source,))
    for index, argument in enumerate(engine.command or []):
        yield from _argument((*path, "command", index), argument)


def _argument(path: KeyPath, argument: str) -> Iterator[Finding]:
    """The braces of one word of a command: bare placeholders only (no ``{port:>9}``), others doubled."""
    hint = "A brace that is meant as one is doubled: {{ and }}."
    try:
        fields = [field for field in Formatter().parse(argument) if field[1] is not None]
    except ValueError:
        yield Finding(path, "a brace is not closed, or is closed without being open.", hint)
        return
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    for _, name, layout, conversion in fields:
        if name not in PLACEHOLDERS or layout or conversion:
            message = f"unknown placeholder {shown(argument)}; there are {known}."
            yield Finding(path, message, did_you_mean(name or "", PLACEHOLDERS, hint))


def _files(fleet: Fleet, folder: Path) -> Iterator[Finding]:
    tls = fleet.edge.tls
    if tls is not None:
        pairs: list[tuple[KeyPath, Certificate]] = [(("edge", "tls"), tls)]
        pairs += [(("edge", "tls", "others", number), other) for number, other in enumerate(tls.others)]
        for path, pair in pairs:
            yield from _file((*path, "certificate"), folder, pair.certificate)
            yield from _file((*path, "key"), folder, pair.key)
    yield from _file(("control", "login"), folder, fleet.control.login)
    if isinstance(fleet.edge.state, RedisState):
        yield from _file(("edge", "state", "password_file"), folder, fleet.edge.state.password_file)
    for name, host in fleet.hosts.items():
        if host.tls is not None:
            for key in ("ca", "certificate", "key"):
                yield from _file(("hosts", name, "tls", key), folder, getattr(host.tls, key))
    for path, backend in _backends(fleet):
        yield from _file((*path, "key_file"), folder, backend.key_file)
        yield from _file((*path, "ca"), folder, backend.ca)
    for name, model in fleet.models.items():
        if model.engine is not None:
            for variable, written in model.engine.secrets.items():
                yield from _file(("models", name, "engine", "secrets", variable), folder, written)
        if _starts_here(fleet, model) and isinstance(model.source, str) and not _is_folder(folder / model.source):
            message = f"there is no folder {_shown(folder / model.source)}."
            hint = "Give a folder in Hugging Face format (config.json and weights), relative to fleet.yaml or absolute."
            yield Finding(("models", name, "source"), message, hint, (("models", name, "backends"), ("hosts",)))


def _starts_here(fleet: Fleet, model: Model) -> bool:
    """Whether engines of this model are processes of this machine."""
    if model.engine is not None and model.engine.image is not None:
        return False
    hosts = [fleet.hosts.get(str(backend.host)) for backend in model.backends if _ours(fleet, backend)]
    return any(host is None or host.docker is None for host in hosts)


def _ours(fleet: Fleet, backend: Backend) -> bool:
    """Whether Signalbox starts this engine."""
    host = fleet.hosts.get(backend.host) if backend.host is not None else None
    return backend.host is not None and (host is None or not host.theirs)


def _shown(path: Path) -> str:
    """A path as a message names it: invisible characters become visible."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _file(path: KeyPath, folder: Path, written: str | None) -> Iterator[Finding]:
    if written is None:
        return
    file = folder / written
    try:
        if not file.is_file():
            yield Finding(path, f"there is no file {_shown(file)}.", "Create it, or correct the path.")
            return
        with file.open("rb"):
            pass
    except OSError as error:
        yield Finding(
            path, f"the file {_shown(file)} cannot be read: {error.strerror}.", "Correct its path or permissions."
        )
