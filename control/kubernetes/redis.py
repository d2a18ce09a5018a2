"""The Redis that several edges share, when fleet.yaml names one that only the cluster can have. Pure."""

from __future__ import annotations

from control.kubernetes import secrets
from control.kubernetes.shapes import (
    CONTAINER_RIGHTS,
    Document,
    Target,
    empty_dir,
    labels,
    metadata,
    mount,
    only_from,
    pod_rights,
)

NAME = "redis"
PORT = 6379
#: The image's own account.
ACCOUNT = 999


def documents(target: Target, password_key: str | None) -> list[Document]:
    """Deployment, Service and NetworkPolicy. ``password_key``: where the Secret of files has its password, if any.

    It keeps nothing on disk: edges that find it empty tell it what they know (docs/redis.md).
    """
    return [_deployment(target, password_key), _service(target), only_from(target, NAME, "redis", {}, PORT)]


def _deployment(target: Target, password_key: str | None) -> Document:
    # By stdin, so that no list of processes shows the password.
    password = 'echo "requirepass $(cat /run/password/password)"; ' if password_key else ""
    script = f'{{ {password}echo "save \\"\\""; echo "dir /data"; }} | exec redis-server -'
    authorized = 'REDISCLI_AUTH="$(cat /run/password/password)" ' if password_key else ""
    check = {"exec": {"command": ["/bin/sh", "-c", f"{authorized}redis-cli ping | grep -q PONG"]}}
    volumes = [empty_dir("data", "256Mi")]
    mounts = [mount("data", "/data")]
    if password_key:
        items = [{"key": password_key, "path": "password"}]
        volumes.append(
            {"name": "password", "secret": {"secretName": secrets.FILES, "items": items, "defaultMode": 0o440}}
        )
        mounts.append(mount("password", "/run/password", read_only=True))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(target, NAME, "redis"),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels("redis")},
            "template": {
                "metadata": {"labels": labels("redis")},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": pod_rights(ACCOUNT),
                    "containers": [
                        {
                            "name": "redis",
                            "image": target.redis_image,
                            "command": ["/bin/sh", "-ec", script],
                            "ports": [{"name": "redis", "containerPort": PORT}],
                            "readinessProbe": {**check, "periodSeconds": 5, "timeoutSeconds": 3},
                            "livenessProbe": {**check, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
                            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
                            "securityContext": CONTAINER_RIGHTS,
                            "volumeMounts": mounts,
                        }
                    ],
                    "volumes": volumes,
                },
            },
        },
    }


def _service(target: Target) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(target, NAME, "redis"),
        "spec": {
            "selector": labels("redis"),
            "ports": [{"name": "redis", "port": PORT, "targetPort": "redis"}],
        },
    }
