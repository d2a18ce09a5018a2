"""What all manifests share: names, labels, rights, volumes. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

#: The account of all containers: that of the Signalbox image.
ACCOUNT = 10001
#: Labels and annotations of our own.
BACKEND, MODEL, CONFIG = "signalbox/backend", "signalbox/model", "signalbox/config"
#: What a container may do: nothing that it is not told.
CONTAINER_RIGHTS: Document = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True)
class Target:
    """What the cluster is told beyond fleet.yaml. ``engine_image``: for engines whose fleet.yaml names none."""

    namespace: str = "signalbox"
    edge_image: str = "signalbox"
    engine_image: str | None = None
    models_claim: str = "models"
    cluster_domain: str = "cluster.local"
    redis_image: str = "redis:7.2.7-bookworm"


def name_of(prefix: str, identity: str) -> str:
    """A DNS label for ``identity``, which may have capitals, dots and 64 characters; the same one every time.

    What had to be changed to fit gets a hash, so that two identities never meet in one name.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", identity.lower()).strip("-")
    longest = 63 - len(prefix) - 1
    if plain == identity and len(plain) <= longest:
        return f"{prefix}-{plain}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return f"{prefix}-{plain[: longest - 9].rstrip('-')}-{digest}".replace("--", "-")


def labels(component: str) -> dict[str, str]:
    """What marks an object as ours, and what it is part of."""
    return {
        "app.kubernetes.io/name": "signalbox",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "signalbox",
    }


def metadata(
    target: Target,
    name: str,
    component: str,
    more: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Document:
    """Name, namespace, labels (with ``more``) and, if any, annotations."""
    content: Document = {"name": name, "namespace": target.namespace, "labels": {**labels(component), **(more or {})}}
    return {**content, "annotations": dict(notes)} if notes else content


def pod_rights(account: int = ACCOUNT) -> Document:
    """Every pod runs as an account without rights, under the runtime's own filter of system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": account,
        "runAsGroup": account,
        "fsGroup": account,
        "fsGroupChangePolicy": "OnRootMismatch",  # else a large claim is walked through at every start
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def empty_dir(name: str, size: str, memory: bool = False) -> Document:
    """A folder that goes with its pod."""
    return {"name": name, "emptyDir": {"sizeLimit": size, **({"medium": "Memory"} if memory else {})}}


def mount(name: str, path: str, read_only: bool = False, sub_path: str | None = None) -> Document:
    """A volume at ``path`` of a container."""
    content: Document = {"name": name, "mountPath": path}
    if read_only:
        content["readOnly"] = True
    return {**content, "subPath": sub_path} if sub_path else content


def verbatim(text: str) -> str:
    """A word of a command, or a value, without Kubernetes putting variables into it."""
    return text.replace("$", "$$")


def variables(plain: Mapping[str, str], secret: Sequence[Document] = ()) -> list[Document]:
    """``env`` of a container: values, then references to secrets."""
    return [*({"name": name, "value": value} for name, value in plain.items()), *secret]


def only_from(target: Target, name: str, component: str, more: Mapping[str, str], port: int) -> Document:
    """A NetworkPolicy: to pods of ``component`` come edges only, at one port."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(target, name, component, more),
        "spec": {
            "podSelector": {"matchLabels": {**labels(component), **more}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": labels("edge")}}],
                    "ports": [{"protocol": "TCP", "port": port}],
                }
            ],
        },
    }


def gibibytes(count: int) -> str:
    """Bytes as Kubernetes writes them, in the largest unit that loses nothing."""
    for unit, size in (("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024)):
        if count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
