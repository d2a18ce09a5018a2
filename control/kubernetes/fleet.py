"""The fleet as it is inside a cluster: addresses, files and settings that differ from those of fleet.yaml. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from control.engines.args import VLLM_ENVIRONMENT, command_launch, vllm_arguments
from control.engines.prepare import engine_spec
from control.errors import RenderError
from control.fleet.address import is_loopback, split_listen
from control.fleet.edge_schema import Certificate, Edge, RedisState, Tls
from control.fleet.host_checks import is_hub_name
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, resolve_backends
from control.fleet.schema import Engine, PackagedModel
from control.fleet.shared_state import settings_of, split_redis
from control.kubernetes import engines, redis
from control.kubernetes.engines import PodEngine
from control.kubernetes.secrets import FILES, MOUNTED, VARIABLES, Secrets, from_secret, secret_name
from control.kubernetes.shapes import Document, Target, name_of
from control.vllm.flags import image_version

#: nginx's ``auto`` would be the cores of the node.
WORKERS = 2
#: Set for engines that load their model from a folder: nothing is looked up on a hub.
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
#: vLLM reads its own API key here.
KEY_VARIABLE = "VLLM_API_KEY"


@dataclass(frozen=True)
class InCluster:
    """What the edges and engines of the cluster are told. ``port``: that of edge.listen; ``inside``: in the pod.

    ``redis_key``: where the Secret of files has its password ("" without one); None when the cluster needs no Redis.
    """

    loaded: LoadedFleet
    backends: tuple[ResolvedBackend, ...]
    engines: tuple[PodEngine, ...]
    port: int
    inside: int
    redis_key: str | None


def in_cluster(loaded: LoadedFleet, target: Target, secrets: Secrets) -> InCluster:
    """Move a fleet into a cluster; what is secret is noted in ``secrets``. Raises RenderError for what cannot move."""
    edge = loaded.fleet.edge
    if edge.keys is None:
        raise RenderError(
            "everybody in the cluster could use the edge, and no API key would be asked for",
            "Ask for keys with 'keys: keys.yaml' under edge in fleet.yaml, or 'keys: none' if the network is trusted.",
        )
    backends, pods = [], []
    for backend in resolve_backends(loaded):
        if backend.ours:
            pods.append(_pod(loaded, backend, target, secrets))
        elif is_loopback(backend.host):
            raise RenderError(
                f"the backend {backend.id} is at {backend.host}, which in a pod is the pod itself",
                "Give its url a name or address that the cluster reaches.",
            )
        backends.append(_moved(backend, target, secrets))
    _, port = split_listen(edge.listen)
    inside = port if port >= 1024 else port + 8000  # an account without rights has no lower ones
    state, redis_key = _state(loaded, target, secrets)
    moved = edge.model_copy(
        update={
            "listen": f"0.0.0.0:{inside}",
            "tls": _tls(loaded, edge, secrets),
            "state": state,
            "workers": WORKERS if edge.workers == "auto" else edge.workers,
            "binary": None,
        }
    )
    fleet = loaded.fleet.model_copy(update={"edge": moved})
    return InCluster(
        replace(loaded, fleet=fleet, folder=MOUNTED), tuple(backends), tuple(pods), port, inside, redis_key
    )


def _moved(backend: ResolvedBackend, target: Target, secrets: Secrets) -> ResolvedBackend:
    """The backend as the edges in the cluster see it."""
    moved = replace(
        backend,
        key_file=secrets.mounted(backend.key_file) if backend.key_file is not None else None,
        ca=secrets.mounted(backend.ca) if backend.ca is not None else None,
    )
    if not backend.ours:
        return moved
    host = f"{name_of('engine', backend.id)}.{target.namespace}.svc.{target.cluster_domain}"
    return replace(moved, host=host, port=engines.PORT)


def _pod(loaded: LoadedFleet, backend: ResolvedBackend, target: Target, secrets: Secrets) -> PodEngine:
    engine = backend.engine
    assert engine is not None  # the fleet's own checks
    image = engine.image or target.engine_image
    if image is None:
        raise RenderError(
            f"the engine of the model {backend.model} names no image, and a cluster runs nothing else",
            "Add 'image:' to its engine, or give one for all such engines: --engine-image IMAGE.",
        )
    source, in_claim = _source(loaded, backend)
    plain, secret = _environment(loaded, backend, engine, secrets)
    if source is not None and not in_claim:
        plain = {name: value for name, value in plain.items() if name not in OFFLINE}
    return PodEngine(
        id=backend.id,
        name=name_of("engine", backend.id),
        model=backend.model,
        image=image,
        command=_command(loaded, backend, engine, image, source),
        environment=plain,
        secret=secret,
        gpus=len(backend.gpus),
        start_seconds=-(-int(engine.start_timeout) // 1000),
        stop_seconds=-(-int(engine.stop_timeout) // 1000),
        claim=in_claim,
        shared_memory=int(engine.shm_size) if engine.shm_size is not None else engines.SHARED_MEMORY,
        memory=int(engine.memory) if engine.memory is not None else None,
        cpus=engine.cpus,
    )


def _source(loaded: LoadedFleet, backend: ResolvedBackend) -> tuple[Path | None, bool]:
    """Where the pod finds the model, and whether that is in the claim.

    The claim has each model's folder under its own last name; a name on a hub stays what it is.
    """
    written = loaded.fleet.models[backend.model].source
    if isinstance(written, PackagedModel):
        raise RenderError(
            f"the model {backend.model} comes from the package {written.package}, which no image unpacks",
            "Put its folder into the claim of models, and name that folder in source.",
        )
    if written is None:
        return None, False
    if backend.engine is not None and backend.engine.image is not None and is_hub_name(written):
        return Path(written), False
    return Path(engines.MODELS, Path(written).name), True


def _command(
    loaded: LoadedFleet, backend: ResolvedBackend, engine: Engine, image: str, source: Path | None
) -> tuple[str, ...]:
    """All words, so that it does not matter what entrypoint the image has."""
    spec = replace(engine_spec(backend, loaded), host="0.0.0.0", port=engines.PORT, model_folder=source)
    if engine.command is not None:
        return command_launch(spec, "python3", Path("/")).argv
    return ("vllm", "serve", *vllm_arguments(spec, image_version(image)))


def _environment(
    loaded: LoadedFleet, backend: ResolvedBackend, engine: Engine, secrets: Secrets
) -> tuple[dict[str, str], tuple[Document, ...]]:
    """Variables with their values, and those that come from Secrets."""
    known = {} if engine.command is not None else dict(VLLM_ENVIRONMENT)
    plain = known | {name: value for name, value in engine.environment.items() if not secret_name(name)}
    secret = [secrets.variable(name) for name in engine.environment if secret_name(name)]
    secret += [from_secret(name, FILES, secrets.file(loaded.file(path))) for name, path in engine.secrets.items()]
    if KEY_VARIABLE in engine.secrets or KEY_VARIABLE in engine.environment:
        return plain, tuple(secret)
    if backend.key_file is not None:
        secret.append(from_secret(KEY_VARIABLE, FILES, secrets.file(backend.key_file)))
    elif backend.key_env is not None:
        secrets.variable(backend.key_env)
        secret.append(from_secret(KEY_VARIABLE, VARIABLES, backend.key_env))
    return plain, tuple(secret)


def _tls(loaded: LoadedFleet, edge: Edge, secrets: Secrets) -> Tls | None:
    if edge.tls is None:
        return None

    def moved(pair: Certificate) -> dict[str, str]:
        certificate, key = secrets.certificate(loaded.file(pair.certificate), loaded.file(pair.key))
        return {"certificate": str(certificate), "key": str(key)}

    first = moved(edge.tls)  # before the others: they are numbered in this order
    others = [other.model_copy(update=moved(other)) for other in edge.tls.others]
    return edge.tls.model_copy(update={**first, "others": others})


def _state(loaded: LoadedFleet, target: Target, secrets: Secrets) -> tuple[str | RedisState, str | None]:
    """``edge.state`` in the cluster, and the key of the password of a Redis that the cluster is to run."""
    settings = settings_of(loaded.fleet.edge.state)
    if settings is None:
        return "memory", None
    scheme, host, _, database = split_redis(settings.redis)
    update: dict[str, str] = {}
    if settings.password_file is not None:
        update["password_file"] = str(secrets.mounted(loaded.file(settings.password_file)))
    if settings.sentinels is not None or not (is_loopback(host) or "." not in host):
        return settings.model_copy(update=update), None  # it is there already, and stays where it is
    if scheme == "rediss":
        raise RenderError(
            f"edge.state names {settings.redis}, which the cluster would have to run, and that one speaks no TLS",
            "Write redis://redis:6379/0, or the full name of a Redis that is there already.",
        )
    update["redis"] = f"redis://{redis.NAME}.{target.namespace}.svc.{target.cluster_domain}:{redis.PORT}/{database}"
    key = secrets.file(loaded.file(settings.password_file)) if settings.password_file is not None else ""
    return settings.model_copy(update=update), key
