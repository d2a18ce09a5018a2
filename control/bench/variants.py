"""Variants: which engine settings, and which way there. Pure: a fleet's data in, a measured fleet's data out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from control.bench.results import Way
from control.errors import BenchRunError
from control.vllm.profiles import PROFILES

#: Settings that a variant may change; ``default`` takes all of them out of the fleet.
TUNED = ("profile", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "chunked_prefill",
         "prefix_caching")  # fmt: skip
#: The fleet as it is written.
AS_WRITTEN = "fleet"
_EDGE = "+edge"


@dataclass(frozen=True)
class Choice:
    """One variant as it was asked for. ``start`` names engines that can be shared with other ways to them."""

    name: str
    start: str
    way: Way
    fleet: Path | None = None  # another fleet file
    settings: Mapping[str, object] = field(default_factory=dict)
    clean: bool = False  # without the tuned settings of the fleet


def choices(text: str, tuned: str) -> list[Choice]:
    """The variants of ``--variants``, in order. ``tuned`` is the profile that the workload names.

    Each is one of ``default``, ``tuned``, ``fleet``, a profile, ``NAME:FIELD=VALUE,...`` or the path of a fleet file,
    and then ``+edge`` or not; ``direct`` and ``edge`` mean ``fleet`` and ``fleet+edge``. Raises BenchRunError.
    """
    found = [_choice(part.strip(), tuned) for part in _split(text) if part.strip()]
    names = [one.name for one in found]
    if not found:
        raise BenchRunError("No variants were given.", "For example --variants default,tuned,tuned+edge.")
    if len(set(names)) != len(names):
        raise BenchRunError(f"A variant is named twice in {text!r}.", "Give each once; repeats are --repeats.")
    return found


def _split(text: str) -> list[str]:
    """At commas, but not at those inside ``NAME:FIELD=VALUE,FIELD=VALUE``."""
    parts: list[str] = []
    for part in text.split(","):
        if "=" in part and ":" not in part and parts and ":" in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _choice(text: str, tuned: str) -> Choice:
    if text in ("direct", "edge"):
        return Choice(text, AS_WRITTEN, "direct" if text == "direct" else "edge")
    start = text.removesuffix(_EDGE)
    way: Way = "edge" if text.endswith(_EDGE) else "direct"
    if start == AS_WRITTEN:
        return Choice(text, start, way)
    if start == "tuned":
        return Choice(text, start, way, settings={"profile": tuned})
    if start in PROFILES:
        settings = {} if start == "default" else {"profile": start}
        return Choice(text, start, way, settings=settings, clean=True)
    if ":" in start:
        name, _, given = start.partition(":")
        return Choice(name + (_EDGE if way == "edge" else ""), start, way, settings=_settings(given), clean=True)
    if start.endswith((".yaml", ".yml")):
        return Choice(Path(start).stem + (_EDGE if way == "edge" else ""), start, way, Path(start))
    raise BenchRunError(
        f"There is no variant {text!r}.",
        f"A variant is tuned, fleet, a profile ({', '.join(PROFILES)}), NAME:FIELD=VALUE,... or the path of a "
        "fleet.yaml, with +edge behind it to go through the edge; direct and edge are the fleet as it is.",
    )


def _settings(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in TUNED:
            raise BenchRunError(
                f"{part!r} is no setting of a variant.", f"Settings are {', '.join(TUNED)}, as in max_num_seqs=32."
            )
        found[name] = yaml.safe_load(value)
    return found


@dataclass(frozen=True)
class Ports:
    """Free ports of this machine for a measured fleet."""

    edge: int
    admin: int
    page: int
    engines: Sequence[int]


def measured_fleet(
    data: Mapping[str, Any], folder: Path, model: str, choice: Choice, ports: Ports, state: str
) -> dict[str, Any]:
    """The fleet to start for ``choice``: this model alone, on loopback, with ports and a state folder of its own.

    ``data`` is a fleet.yaml that passed its checks, ``folder`` where it lies. Keys, TLS, Redis and rules of the edge
    are left out: they are not what is measured. Raises BenchRunError where engines are not processes of this machine.
    """
    one = copy.deepcopy(data["models"][model])
    hosts = data.get("hosts") or {}
    for backend in one["backends"]:
        if not (hosts.get(backend.get("host")) or {}).get("local"):
            raise BenchRunError(
                f"The model {model} has a backend that is no process of this machine, so it is not started anew.",
                "Measure it as it runs: `signalbox bench run --running` with the variants direct and edge.",
            )
    for backend, port in zip(one["backends"], ports.engines, strict=True):
        backend["port"] = port
        for name in ("key_file", "ca"):
            if backend.get(name):
                backend[name] = str(folder / backend[name])
    if isinstance(one.get("source"), str):
        one["source"] = str(folder / one["source"])
    one.pop("fallback", None)
    engine = one["engine"]
    for name in TUNED if choice.clean else ():
        engine.pop(name, None)
    engine.update(choice.settings)
    edge = {name: value for name, value in (data.get("edge") or {}).items() if name in ("binary", "max_body")}
    if "/" in str(edge.get("binary", "")):
        edge["binary"] = str(folder / edge["binary"])
    edge |= {"listen": f"127.0.0.1:{ports.edge}", "admin": f"127.0.0.1:{ports.admin}"}
    used = {backend["host"] for backend in one["backends"]}
    return {
        "edge": edge,
        "control": {"listen": f"127.0.0.1:{ports.page}", "state_dir": state},
        "hosts": {name: host for name, host in hosts.items() if name in used},
        "models": {model: one},
    }


def tuned_settings(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What a measured fleet's engine has of the settings that variants may change."""
    return {name: engine[name] for name in TUNED if name in engine}
