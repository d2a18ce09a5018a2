"""Fleets that the edge's tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine


@dataclass
class Alphabet:
    """Model alpha on two engines (alias, adapter), model beta on one that knows it under another name."""

    edge: Edge
    alphas: list[ScriptedEngine]
    beta: ScriptedEngine
    max_body: int

    def fleet(self) -> dict[str, Any]:
        """Its fleet.yaml, to change and start anew."""
        return alphabet_fleet(self.alphas, self.beta)

    @property
    def engines(self) -> list[ScriptedEngine]:
        return [*self.alphas, self.beta]


def alphabet_fleet(alphas: list[ScriptedEngine], beta: ScriptedEngine) -> dict[str, Any]:
    return {
        # Tests count what reaches an engine: no trials of idle ones.
        "edge": {"max_body": "8m", "probe": {"idle": "1h"}},
        "models": {
            "alpha": {
                "aliases": ["alpha-chat", "alpha/chat:v2"],
                "loras": ["alpha-lora"],
                "backends": [{"id": f"alpha-{n}", "url": engine.url} for n, engine in enumerate(alphas, 1)],
            },
            "beta": {"backends": [{"id": "beta-1", "url": beta.url, "model_name": "org/beta:v1"}]},
        },
    }


def one_model(
    name: str,
    *engines: ScriptedEngine,
    policy: str = "",
    timeouts: dict[str, str] | None = None,
    edge_timeouts: dict[str, str] | None = None,
    **edge: Any,
) -> dict[str, Any]:
    """A fleet of one model on these engines; ``timeouts`` are the model's, ``edge`` the settings of the edge."""
    backends = [{"id": f"{name}-{number}", "url": engine.url} for number, engine in enumerate(engines, 1)]
    model: dict[str, Any] = {"backends": backends}
    if policy:
        model["routing"] = {"policy": policy}
    if timeouts:
        model["timeouts"] = timeouts
    if edge_timeouts:
        edge["timeouts"] = edge_timeouts
    return {"edge": edge, "models": {name: model}}
