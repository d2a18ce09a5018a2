"""An engine as a Deployment with one pod, its headless Service, and who may reach it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from control.kubernetes.shapes import (
    BACKEND,
    CONTAINER_RIGHTS,
    MODEL,
    Document,
    Target,
    empty_dir,
    gibibytes,
    labels,
    metadata,
    mount,
    only_from,
    pod_rights,
    variables,
    verbatim,
)

#: Every engine listens here: each has an address of its own.
PORT = 8000
#: The folder that the claim with all models is mounted at.
MODELS = "/models"
#: Seconds that Kubernetes waits beyond stop_timeout before it kills.
KILL_AFTER = 10
#: An image's own account may have a home that it cannot write to, and torch asks for a user's name.
HOME: Mapping[str, str] = {
    "HOME": "/cache",
    "USER": "vllm",
    "LOGNAME": "vllm",
    "XDG_CACHE_HOME": "/cache",
    "HF_HOME": "/cache/huggingface",
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "TRITON_CACHE_DIR": "/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/inductor",
}
#: Shared memory of an engine that does not say how much: NCCL and vLLM's processes talk through it.
SHARED_MEMORY = 8 * 1024**3


@dataclass(frozen=True)
class PodEngine:
    """One engine as its pod is told. ``command``: whole argument list. Times in seconds, sizes in bytes.

    ``claim``: whether it reads a model out of the claim. ``secret``: variables that come from Secrets.
    """

    id: str
    name: str
    model: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: int
    start_seconds: int
    stop_seconds: int
    claim: bool
    secret: tuple[Document, ...] = ()
    shared_memory: int = SHARED_MEMORY
    memory: int | None = None
    cpus: float | None = None


def documents(engine: PodEngine, target: Target) -> list[Document]:
    """Deployment, Service and NetworkPolicy of one engine."""
    return [_deployment(engine, target), _service(engine, target), _fence(engine, target)]


def _own(engine: PodEngine) -> dict[str, str]:
    return {BACKEND: engine.name}


def _deployment(engine: PodEngine, target: Target) -> Document:
    selector = {**labels("engine"), **_own(engine)}
    notes = {MODEL: engine.model, "signalbox/id": engine.id}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(target, engine.name, "engine", _own(engine), notes),
        "spec": {
            # Each pod is a backend of its own in fleet.yaml, with its own slots and prefix cache: never scale this.
            "replicas": 1,
            # A second pod would ask for GPUs that the first one still has.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": engine.start_seconds + 600,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": selector, "annotations": notes},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,  # VLLM_PORT, made by Kubernetes for a Service "vllm", breaks vLLM
                    "terminationGracePeriodSeconds": engine.stop_seconds + KILL_AFTER,
                    "securityContext": pod_rights(),
                    "containers": [_container(engine)],
                    "volumes": _volumes(engine, target),
                },
            },
        },
    }


def _container(engine: PodEngine) -> Document:
    secret = {entry["name"] for entry in engine.secret}
    environment = {name: value for name, value in {**HOME, **engine.environment}.items() if name not in secret}
    health = {"httpGet": {"path": "/health", "port": "http"}}
    mounts = [mount("shm", "/dev/shm"), mount("cache", "/cache"), mount("tmp", "/tmp")]
    if engine.claim:
        mounts.append(mount("models", MODELS, read_only=True))
    return {
        "name": "engine",
        "image": engine.image,
        "command": [verbatim(word) for word in engine.command],
        "env": variables({name: verbatim(value) for name, value in environment.items()}, engine.secret),
        "ports": [{"name": "http", "containerPort": PORT}],
        # Until it answers for the first time: weights, compiling, CUDA graphs.
        "startupProbe": {
            **health,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": -(-engine.start_seconds // 5),
        },
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        # Patient: an engine that is late under load is busy, not dead, and a restart costs minutes.
        "livenessProbe": {**health, "periodSeconds": 20, "timeoutSeconds": 15, "failureThreshold": 6},
        "resources": _resources(engine),
        "securityContext": CONTAINER_RIGHTS,
        "volumeMounts": mounts,
    }


def _resources(engine: PodEngine) -> Document:
    limits: Document = {}
    if engine.gpus:
        limits["nvidia.com/gpu"] = engine.gpus
    if engine.cpus is not None:
        limits["cpu"] = f"{engine.cpus:g}"
    if engine.memory is not None:
        limits["memory"] = gibibytes(engine.memory)
    return {"limits": limits} if limits else {}


def _volumes(engine: PodEngine, target: Target) -> list[Document]:
    found = [
        empty_dir("shm", gibibytes(engine.shared_memory), memory=True),
        empty_dir("cache", "64Gi"),
        empty_dir("tmp", "8Gi"),
    ]
    if engine.claim:
        claim = {"claimName": target.models_claim, "readOnly": True}
        found.append({"name": "models", "persistentVolumeClaim": claim})
    return found


def _service(engine: PodEngine, target: Target) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(target, engine.name, "engine", _own(engine)),
        "spec": {
            # Headless: its name is the pod's own address, which the edge follows as the pod moves.
            "clusterIP": "None",
            # Whether an engine is ready is the edge's own finding; one that is busy must not vanish from DNS.
            "publishNotReadyAddresses": True,
            "selector": {**labels("engine"), **_own(engine)},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }


def _fence(engine: PodEngine, target: Target) -> Document:
    """vLLM's management paths are open to whoever reaches its port."""
    return only_from(target, engine.name, "engine", _own(engine), PORT)
