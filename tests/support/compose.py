"""A compose file on a Docker Engine by the SDK, for tests: what of it ``nginx/compose.yaml`` uses, and nothing else."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

#: The keys of a service that ``create_arguments`` understands; another one fails the test that reads the file.
KNOWN = {
    "image", "network_mode", "user", "init", "read_only", "cap_drop", "security_opt", "restart", "logging", "build",
    "command", "depends_on", "volumes", "tmpfs", "ulimits", "stop_grace_period", "healthcheck", "group_add",
    "stop_signal", "entrypoint", "environment", "secrets",
}  # fmt: skip


def read(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with ``${NAME:-default}`` filled in, as compose does it."""

    def filled(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match["name"], match["default"] or "")

    text = re.sub(r"\$\$|\$\{(?P<name>[A-Z_]+)(:-(?P<default>[^}]*))?\}", filled, path.read_text())
    content: dict[str, Any] = yaml.safe_load(text)
    for name, service in content["services"].items():
        assert set(service) <= KNOWN, f"{name}: {set(service) - KNOWN}"
    return content


def create_arguments(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What ``client.containers.create`` is told for a service. Checks look every second."""
    service = content["services"][name]
    binds = [_bind(content, entry) for entry in service.get("volumes", ())]
    for secret in service.get("secrets", ()):
        binds.append(f"{content['secrets'][secret]['file']}:/run/secrets/{secret}:ro")
    arguments: dict[str, Any] = {
        "image": service["image"],
        "name": f"{content['name']}-{name}",
        "command": service.get("command"),
        "entrypoint": service.get("entrypoint"),
        "environment": service.get("environment", {}),
        "network_mode": service["network_mode"],
        "user": service["user"],
        "init": service["init"],
        "read_only": service["read_only"],
        "cap_drop": service["cap_drop"],
        "security_opt": service["security_opt"],
        "group_add": service.get("group_add", []),
        "restart_policy": {"Name": service["restart"]},
        "log_config": {"type": service["logging"]["driver"], "config": service["logging"]["options"]},
        "volumes": binds,
        "tmpfs": dict(entry.split(":", 1) for entry in service.get("tmpfs", ())),
        "healthcheck": {
            "test": service["healthcheck"]["test"],
            "interval": 10**9,
            "timeout": 5 * 10**9,
            "retries": service["healthcheck"]["retries"],
            "start_period": 30 * 10**9,
        },
    }
    if "stop_signal" in service:
        arguments["stop_signal"] = service["stop_signal"]
    if "ulimits" in service:
        assert set(service["ulimits"]) == {"nofile"}
        most = min(service["ulimits"]["nofile"], resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # no more than we have
        arguments["ulimits"] = [{"Name": "nofile", "Soft": most, "Hard": most}]
    return arguments


def _bind(content: Mapping[str, Any], entry: str) -> str:
    """A volume as a bind; one with a name of its own gets the project's before it."""
    source, _, rest = entry.partition(":")
    return f"{content['name']}_{source}:{rest}" if source in content["volumes"] else entry
