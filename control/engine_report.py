"""What `signalbox status` says of the engines' processes: phases, what they run with, why they died."""

from __future__ import annotations

from typing import Any

from control.engines.phases import Span, times
from control.engines.samples import Sample
from control.fleet.load import LoadedFleet
from control.fleet.resolve import resolve_backends
from control.page_client import snapshot


def collect(loaded: LoadedFleet) -> list[dict[str, Any]] | None:
    """The engines that we start, with their ``id``; None when the control plane does not answer."""
    ours = any(backend.ours for backend in resolve_backends(loaded))
    content = snapshot(loaded) if ours else {"backends": []}
    if content is None:
        return None
    return [
        {"id": row["id"], **row["engine"], "use": row.get("use")} for row in content["backends"] if row.get("engine")
    ]


def lines(engines: list[dict[str, Any]] | None) -> list[str]:
    """The same for people."""
    if engines is None:
        return ["engines: the control plane does not run, so nobody minds them. Start it with `signalbox run`."]
    return [line for engine in engines for line in _engine(engine)]


def _engine(engine: dict[str, Any]) -> list[str]:
    state, phase, detail = engine["state"], engine["phase"], engine["detail"]
    head = f"{state} ({phase})" if phase not in ("", state, "serving") else state
    told = [f"engine {engine['id']}: {head}{': ' if detail else ''}{detail}"]
    if engine.get("phases"):
        told.append(f"  phases: {times(Span(span['phase'], span['seconds']) for span in engine['phases'])}")
    if now := (engine.get("use") or {}).get("now"):
        told.append(f"  uses: {Sample(**now).words()}")
    told += [f"  not as asked: {alarm}" for alarm in engine.get("alarms") or ()]
    failure = engine.get("failure")
    if failure and state != "failed":
        told.append(f"  last death: {failure['sentence']} {failure['cure']}")
    return told + [f"  | {line}" for line in (failure or {}).get("lines") or ()]
