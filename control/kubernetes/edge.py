"""The edge as a Deployment: its two files as a ConfigMap, what it needs of Secrets, and its Service. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from control.kubernetes import secrets
from control.kubernetes.shapes import (
    CONFIG,
    CONTAINER_RIGHTS,
    Document,
    Target,
    empty_dir,
    labels,
    metadata,
    mount,
    pod_rights,
    variables,
)

NAME = "signalbox-edge"
#: What clients inside the cluster call.
SERVICE = "signalbox"
STATE = "/var/lib/signalbox"
PREFIX = f"{STATE}/edge"
#: Stands for the cluster's name server, which each pod knows and nobody else does (an address kept for documentation).
DNS_PLACE = "192.0.2.53:53"
#: Seconds for balancers to notice that a pod goes, and for Kubernetes to wait beyond the drain before it kills.
NOTICE, KILL_AFTER = 5, 15

#: nginx's prefix is made in a folder of the pod. What the pod's resolv.conf says goes to the place of the name server.
_PREPARE = rf"""dns=$(awk '$1 == "nameserver" {{ print $2; exit }}' /etc/resolv.conf)
case "$dns" in *:*) dns="[$dns]" ;; esac
mkdir -p {PREFIX}/conf {PREFIX}/run {PREFIX}/logs {PREFIX}/temp
cd {PREFIX}
for file in nginx.conf fleet.json; do
    sed "s/{DNS_PLACE.replace(".", "[.]")}/$dns:53/g" "/config/$file" >"conf/$file"
done
echo 1 >conf/generation
if [ -e /keys/keys.json ]; then cp /keys/keys.json conf/; else echo '{{"version": 1, "keys": {{}}}}' >conf/keys.json; fi
chmod 600 conf/keys.json
install -m 600 /admin/admin.token run/admin.token
ln -sf /dev/stdout logs/access.log
ln -sf /dev/stderr logs/error.log
"""
#: QUIT lets running answers finish; the hook must last as long as they do, since TERM follows it and cuts them.
_LEAVE = f"sleep {NOTICE}; kill -QUIT 1; while kill -0 1 2>/dev/null; do sleep 1; done"


@dataclass(frozen=True)
class PodEdge:
    """The edge as its pods are told. ``port``: where clients inside the cluster reach it; ``inside``: in the pod."""

    nginx_conf: str
    fleet_json: str
    port: int
    inside: int
    admin: str
    tls: int
    keys: bool
    files: bool
    key_envs: Sequence[Document]
    drain_seconds: int
    replicas: int

    def digest(self) -> str:
        """Names the configuration: pods with another one are replaced."""
        return hashlib.sha256((self.nginx_conf + self.fleet_json).encode()).hexdigest()[:16]


def documents(edge: PodEdge, target: Target) -> list[Document]:
    """ConfigMap, Deployment and Service; with several edges a budget for disruptions."""
    found = [_config(edge, target), _deployment(edge, target), _service(edge, target)]
    return [*found, _budget(target)] if edge.replicas > 1 else found


def _config(edge: PodEdge, target: Target) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(target, NAME, "edge"),
        "data": {"nginx.conf": edge.nginx_conf, "fleet.json": edge.fleet_json},
    }


def _deployment(edge: PodEdge, target: Target) -> Document:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels("edge")},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(target, NAME, "edge"),
        "spec": {
            "replicas": edge.replicas,
            # The new one serves before an old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": labels("edge")},
            "template": {
                "metadata": {"labels": labels("edge"), "annotations": {CONFIG: edge.digest()}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": NOTICE + edge.drain_seconds + KILL_AFTER,
                    "securityContext": pod_rights(),
                    "topologySpreadConstraints": [spread],
                    "initContainers": [_preparer(edge, target)],
                    "containers": [_container(edge, target)],
                    "volumes": _volumes(edge),
                },
            },
        },
    }


def _preparer(edge: PodEdge, target: Target) -> Document:
    mounts = [mount("state", STATE), mount("config", "/config", True), mount("admin", "/admin", True)]
    return {
        "name": "prepare",
        "image": target.edge_image,
        "command": ["/bin/sh", "-ec", _PREPARE],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": CONTAINER_RIGHTS,
        "volumeMounts": [*mounts, mount("keys", "/keys", True)] if edge.keys else mounts,
    }


def _container(edge: PodEdge, target: Target) -> Document:
    python = "/opt/signalbox/.venv/bin/python"
    alive = {"exec": {"command": [python, "-m", "control.alive", "edge", STATE, edge.admin]}}
    mounts = [mount("state", STATE), mount("tmp", "/tmp")]
    if edge.files:
        mounts.append(mount("files", str(secrets.MOUNTED / "files"), True))
    mounts += [mount(f"tls-{number}", str(secrets.MOUNTED / "tls" / str(number)), True) for number in range(edge.tls)]
    return {
        "name": "edge",
        "image": target.edge_image,
        "command": ["openresty", "-p", f"{PREFIX}/", "-e", "stderr", "-c", "conf/nginx.conf", "-g", "daemon off;"],
        "env": variables({}, edge.key_envs),
        "ports": [{"name": "https" if edge.tls else "http", "containerPort": edge.inside}],
        "startupProbe": {**alive, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 30},
        "readinessProbe": {**alive, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**alive, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", _LEAVE]}}},
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": CONTAINER_RIGHTS,
        "volumeMounts": mounts,
    }


def _volumes(edge: PodEdge) -> list[Document]:
    found: list[Document] = [
        {"name": "config", "configMap": {"name": NAME}},
        _secret("admin", secrets.ADMIN),
        # Request bodies above 1 MiB wait here.
        empty_dir("state", "8Gi"),
        empty_dir("tmp", "64Mi"),
    ]
    if edge.keys:
        found.append(_secret("keys", secrets.KEYS))
    if edge.files:
        found.append(_secret("files", secrets.FILES))
    return [*found, *(_secret(f"tls-{number}", f"{secrets.TLS}-{number}") for number in range(edge.tls))]


def _secret(name: str, secret: str) -> Document:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def _service(edge: PodEdge, target: Target) -> Document:
    scheme = "https" if edge.tls else "http"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(target, SERVICE, "edge"),
        "spec": {"selector": labels("edge"), "ports": [{"name": scheme, "port": edge.port, "targetPort": scheme}]},
    }


def _budget(target: Target) -> Document:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(target, NAME, "edge"),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels("edge")}},
    }
