"""fleet.json: what the edge is told of models, backends and names. Pure functions of what the fleet resolved to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from control.fleet.resolve import ResolvedBackend
from control.fleet.schema import Fleet, Rule

Snapshot = dict[str, Any]
#: What of a backend other machines have otherwise: where its host and its files are.
OWN_TO_A_MACHINE = ("addresses", "key_file", "own_ca", "tls_location", "tls_upstream")


def tls_name(backend: ResolvedBackend) -> str:
    """The nginx name of an https origin (host, port, CA).

    It depends on nothing else, so that a worker of an older generation that meets a newer fleet.json never takes one
    origin for another: the name that it does not know is an error, not a misrouted key.
    """
    origin = f"{backend.host}\n{backend.port}\n{backend.ca or ''}"
    return "engine_tls_" + hashlib.sha256(origin.encode()).hexdigest()[:12]


def tls_location(backend: ResolvedBackend) -> str:
    """The nginx name of the location for https origins with this backend's CA."""
    return "engine_tls_ca_" + hashlib.sha256(str(backend.ca or "").encode()).hexdigest()[:12]


def snapshot(
    fleet: Fleet,
    backends: Sequence[ResolvedBackend],
    addresses: Mapping[str, Sequence[str]],
    *,
    version: int,
    timers: bool = True,
    dns: Sequence[str] = (),
) -> Snapshot:
    """Build fleet.json (see docs/architecture.md).

    ``addresses``: what each backend's host resolved to, if it did; ``dns``: name servers ("IP:PORT") that the edge asks
    again while it runs.
    """
    content: Snapshot = {"version": version, "timers": timers, "dns": list(dns)}
    content["probe"] = {f"{name}_ms": int(value) for name, value in fleet.edge.probe if value is not None}
    if fleet.edge.count_usage:
        content["count_usage"] = True
    if fleet.edge.keys not in (None, "none"):
        content["keys"] = True
    if fleet.default_model is not None:
        content["default_model"] = fleet.default_model
    content["names"] = _names(fleet)
    if fleet.rules:
        content["rules"] = [_rule(rule) for rule in fleet.rules]
    content["models"] = {name: _model(fleet, name, backends) for name in fleet.models}
    content["backends"] = {backend.id: _backend(backend, addresses) for backend in backends}
    return content


def retold(
    content: Snapshot, backends: Sequence[ResolvedBackend], addresses: Mapping[str, Sequence[str]], dns: Sequence[str]
) -> Snapshot:
    """Another machine's fleet.json with what this machine knows better: where files and name servers are.

    ``backends``: those of ``content`` as this machine resolves them.
    """
    own = {backend.id: _backend(backend, addresses) for backend in backends}
    told = {
        name: {key: value for key, value in entry.items() if key not in (*OWN_TO_A_MACHINE, "ca")} | own[name]
        for name, entry in content["backends"].items()
    }
    return {**content, "dns": list(dns), "backends": told}


def encode(content: Snapshot) -> str:
    """One stable text for one content: keys keep the order in which they were made, which is that of fleet.yaml."""
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def without_version(content: Snapshot) -> Snapshot:
    """The same snapshot without its counter, for "did anything change?"."""
    return {key: value for key, value in content.items() if key != "version"}


def _names(fleet: Fleet) -> dict[str, str]:
    names: dict[str, str] = {}
    for model, settings in fleet.models.items():
        for name in (model, *settings.aliases, *settings.loras):
            names[name] = model
    return names


def _rule(rule: Rule) -> dict[str, Any]:
    """What is given of a rule; hosts and header names, which have no case, in lower case."""
    content = rule.model_dump(exclude_none=True)
    if rule.host is not None:
        content["host"] = rule.host.lower()
    if rule.header is not None:
        content["header"]["name"] = rule.header.name.lower()
    return content


def _model(fleet: Fleet, name: str, backends: Sequence[ResolvedBackend]) -> dict[str, Any]:
    settings = fleet.models[name]
    fallback = {"fallback": list(settings.fallback)} if settings.fallback else {}
    limits = settings.limits.model_dump(exclude_none=True)
    return {
        "policy": settings.routing.policy,
        "connect_ms": int(settings.timeouts.connect),
        "send_ms": int(settings.timeouts.send),
        "read_ms": int(settings.timeouts.read),
        "max_waiting": settings.queue.max_waiting,
        "wait_ms": int(settings.queue.timeout),
        **({} if settings.queue.kv_budget else {"kv_budget": False}),
        "names": [name, *settings.aliases],
        "loras": list(settings.loras),
        **fallback,
        **({"limits": limits} if limits else {}),
        "backends": [backend.id for backend in backends if backend.model == name],
    }


def _backend(backend: ResolvedBackend, addresses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "model": backend.model,
        "host": backend.host,
        "port": backend.port,
        "scheme": backend.scheme,
        # Sorted, IPv4 first: DNS answers in any order, and an order is not a change.
        "addresses": sorted(addresses.get(backend.host, ()), key=lambda address: (":" in address, address)),
    }
    if backend.scheme == "https":
        content["tls_location"] = "@" + tls_location(backend)
        content["tls_upstream"] = tls_name(backend)
    if backend.ca is not None:
        content["own_ca"] = True
    if backend.limit is not None:
        content["limit"] = backend.limit
    if backend.weight != 1:
        content["weight"] = backend.weight
    if backend.tier != 1:
        content["tier"] = backend.tier
    if backend.pool is not None:
        content["pool"] = backend.pool
    content["name"] = backend.name
    content["served"] = list(backend.served)
    if backend.key_file is not None:
        content["key_file"] = str(backend.key_file)
    if backend.key_env is not None:
        content["key_env"] = backend.key_env
    return content
