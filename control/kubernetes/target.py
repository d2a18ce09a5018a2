"""``signalbox render --target kubernetes``: the manifests of a fleet as text, and the folder that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from control.edge import files
from control.edge.binary import Profile
from control.edge.keys import encode as encode_keys
from control.edge.render import Sources, build_context, fill
from control.edge.snapshot import encode, snapshot
from control.edge.surroundings import Surroundings
from control.errors import RenderError
from control.fleet.load import LoadedFleet
from control.keys.entries import entries
from control.keys.load import load_keys
from control.kubernetes import edge, engines, redis
from control.kubernetes.edge import DNS_PLACE, PodEdge
from control.kubernetes.fleet import InCluster, in_cluster
from control.kubernetes.secrets import Secrets
from control.kubernetes.shapes import Document, Target
from control.paths import REPOSITORY

#: The first line of what we wrote, and may remove when its engine has left the fleet.
MARK = "# Written by `signalbox render --target kubernetes` from fleet.yaml. Edit fleet.yaml, not this file.\n"
#: The engine of the image that ``nginx/Dockerfile`` makes: nginx 1.27.
PROFILE = Profile("openresty", (), "directive", "/etc/ssl/certs/ca-certificates.crt")
LUA = Path("/opt/signalbox/lua")
KEYS_JSON = "keys.json"
#: Kubernetes takes no larger ConfigMap.
LARGEST_CONFIG = 1024 * 1024


@dataclass(frozen=True)
class Bundle:
    """Everything for one cluster. ``manifests``: file name to YAML; ``keys_json``: hashes of API keys, or None."""

    manifests: Mapping[str, str]
    script: str
    keys_json: str | None

    def text(self) -> str:
        """All manifests as one stream of YAML documents."""
        return "---\n".join(self.manifests.values())


def render(loaded: LoadedFleet, target: Target) -> Bundle:
    """The manifests of a fleet. Raises RenderError for what a cluster cannot have, KeysError for a broken keys.yaml."""
    secrets = Secrets()
    moved = in_cluster(loaded, target, secrets)
    pod = _pod_edge(moved, secrets)
    manifests = {"namespace.yaml": _text([_namespace(target)])}
    for engine in moved.engines:
        manifests[f"{engine.name}.yaml"] = _text(engines.documents(engine, target))
    if moved.redis_key is not None:
        manifests["redis.yaml"] = _text(redis.documents(target, moved.redis_key or None))
    manifests["edge.yaml"] = _text(edge.documents(pod, target))
    known = load_keys(loaded) if pod.keys else None
    keys = encode_keys(entries(known), 1) if known is not None else None
    return Bundle(manifests, secrets.script(target.namespace, KEYS_JSON if keys else None), keys)


def write(bundle: Bundle, folder: Path) -> list[str]:
    """Write the bundle into ``folder``, and remove manifests of ours that are in it no more; what changed, in words.

    Raises EdgeError when that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = []
    for name, text in bundle.manifests.items():
        before = files.read(folder / name)
        if before != text:
            files.write(folder / name, text)
            said.append(f"{name}: {'new' if before is None else 'changed'}")
    for path in sorted(folder.glob("*.yaml")):
        if path.name not in bundle.manifests and path.read_text().startswith(MARK):
            path.unlink()
            said.append(
                f"{path.name}: removed (what it made is still in the cluster: kubectl apply --prune, or delete it)"
            )
    files.write(folder / "secrets.sh", bundle.script, mode=0o755)
    if bundle.keys_json is not None:
        files.write(folder / KEYS_JSON, bundle.keys_json, mode=0o600)
    return said


def _pod_edge(moved: InCluster, secrets: Secrets) -> PodEdge:
    settings = moved.loaded.fleet.edge
    surroundings = Surroundings(user=None, open_files=None, nameservers=(DNS_PLACE,))
    sources = Sources(lua=LUA, templates=REPOSITORY / "templates")
    context = build_context(moved.loaded, PROFILE, moved.backends, surroundings, sources, None)
    content = snapshot(moved.loaded.fleet, moved.backends, {}, version=1, dns=context["dns"])
    pod = PodEdge(
        nginx_conf=fill(sources.templates, context),
        fleet_json=encode(content),
        port=moved.port,
        inside=moved.inside,
        admin=settings.admin,
        tls=len(context["certificates"]),
        keys=settings.keys != "none",
        files=bool(secrets.files),
        key_envs=tuple(secrets.variable(name) for name in context["key_envs"]),
        drain_seconds=-(-int(settings.timeouts.drain) // 1000),
        replicas=1 if settings.state == "memory" else 2,
    )
    if len(json.dumps([pod.nginx_conf, pod.fleet_json])) > LARGEST_CONFIG - 4096:
        raise RenderError(
            "the edge's configuration is larger than the 1 MiB that a ConfigMap may have",
            "Give the fleet fewer models, backends or rules for each cluster.",
        )
    return pod


def _namespace(target: Target) -> Document:
    # The strictest of the cluster's own rules for pods; all of ours keep them.
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": target.namespace, "labels": enforce}}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, and nothing by reference."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)


def _text(found: Iterable[Document]) -> str:
    dumped = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True) for document in found
    ]
    return MARK + "---\n".join(dumped)
