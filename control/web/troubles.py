"""What somebody should look at, worst first. Pure; the page has the words (texts: ``trouble_`` and the kind)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from control.web.view import BackendView, EdgeView, ModelView

#: Days before its end that a certificate is told of, and is urgent.
SOON, URGENT = 30, 7


@dataclass(frozen=True)
class Trouble:
    """``kind`` names the sentence, ``about`` what it is about (a backend's id ...), ``detail`` is another's text."""

    level: Literal["error", "warning"]
    kind: str
    about: str = ""
    detail: str = ""
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """What does not change by the second: ends of certificates (file → Unix seconds), a fleet.yaml that was refused."""

    certificates: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""
    #: Why the edge's last reload was refused.
    reload_refused: str = ""


def troubles_of(
    edge: EdgeView,
    models: Sequence[ModelView],
    backends: Sequence[BackendView],
    standing: Standing,
    now: float | None = None,
) -> tuple[Trouble, ...]:
    """Everything that is wrong at this moment, errors first."""
    found = [*_edge(edge), *_models(models, edge), *_backends(backends), *_standing(standing, now or time.time())]
    return tuple(sorted(found, key=lambda one: one.level != "error"))


def _edge(edge: EdgeView) -> Iterable[Trouble]:
    if edge.state == "absent":
        yield Trouble("error", "edge_absent")
    elif edge.state == "silent":
        yield Trouble("error", "edge_silent", detail=edge.problem)
    if edge.redis_ok is False:
        yield Trouble("error", "redis_down")


def _models(models: Sequence[ModelView], edge: EdgeView) -> Iterable[Trouble]:
    if edge.state == "running":
        for model in models:
            if model.backends and not model.ready:
                yield Trouble("error", "model_down", model.name)


def _backends(backends: Sequence[BackendView]) -> Iterable[Trouble]:
    for one in backends:
        if one.engine is not None and one.engine.state == "failed":
            yield Trouble("error", "engine_failed", one.id, one.engine.detail)
        elif one.state in ("down", "suspect", "misconfigured"):
            yield Trouble("warning", f"backend_{one.state}", one.id, one.reason)
        if one.tunnel is not None and one.tunnel.state == "down":
            yield Trouble("warning", "tunnel_down", one.id, one.tunnel.detail)
        for alarm in one.engine.alarms if one.engine else ():
            yield Trouble("warning", "not_as_asked", one.id, alarm)
    unknown = [one.id for one in backends if one.note == "not_in_edge"]
    if unknown:
        yield Trouble("warning", "not_applied", ", ".join(unknown[:5]), values={"count": len(unknown)})


def _standing(standing: Standing, now: float) -> Iterable[Trouble]:
    if standing.refused:
        yield Trouble("error", "fleet_refused", detail=standing.refused)
    if standing.reload_refused:
        yield Trouble("error", "reload_refused", detail=standing.reload_refused)
    for file, end in standing.certificates.items():
        days = int((end - now) // 86_400)
        if days < 0:
            yield Trouble("error", "certificate_over", file)
        elif days < SOON:
            yield Trouble("error" if days < URGENT else "warning", "certificate_ends", file, values={"days": days})
