"""What is to be done so that the containers of a fleet are what fleet.yaml says. Pure: nothing is asked or changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from control.engines.containers import ContainerSpec

Do = Literal["keep", "wait", "start", "replace", "stop", "conflict"]
#: States in which a container has processes.
ALIVE = ("running", "paused", "restarting")
#: A port that is open on all addresses of its host.
EVERYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class Found:
    """One container of ours on one host. ``facts``: what it was made from, if it says. Times in Unix seconds."""

    id: str
    name: str
    host: str
    backend: str
    hash: str
    state: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    image_id: str = ""
    exit_code: int | None = None
    out_of_memory: bool = False
    started: float = 0.0
    finished: float = 0.0
    #: Where it listens, as (address, port); None when it opens no port.
    listen: tuple[str, int] | None = None

    @property
    def alive(self) -> bool:
        """Whether it has processes."""
        return self.state in ALIVE

    @property
    def short(self) -> str:
        """Its id as `docker ps` shows it."""
        return self.id[:12]


@dataclass(frozen=True)
class Foreign:
    """A container that is not ours. Nothing is ever done to it. ``ports``: (address, port) that it opens."""

    id: str
    name: str
    image: str
    state: str
    ports: tuple[tuple[str, int], ...] = ()

    def words(self) -> str:
        """Which container it is."""
        return (
            f"the container {self.name} ({self.id[:12]}, image {self.image}, {self.state}), which is not this fleet's"
        )


@dataclass(frozen=True)
class Seen:
    """What one host has. ``images``: the id of each image asked for that is there."""

    ours: tuple[Found, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What happens to one backend, and why. ``spec`` is None when it only goes; ``found``: its containers now."""

    do: Do
    backend: str
    host: str
    why: str
    spec: ContainerSpec | None = None
    found: tuple[Found, ...] = ()
    #: What differs, in words, one line each.
    changes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The model that it serves; empty when it has left the fleet."""
        return self.spec.engine.model if self.spec is not None else ""

    @property
    def settled(self) -> bool:
        """Whether nothing has to be done."""
        return self.do == "keep"


def plan(
    desired: Sequence[ContainerSpec], seen: Mapping[str, Seen], names: Iterable[str] | None = None, anew: bool = False
) -> list[Step]:
    """The steps for all hosts in ``seen``, in the order of the fleet; then those of backends that left it.

    ``names``: only backends of these ids or models (None: all). ``anew``: what runs is started again even if it is as
    asked.
    """
    wanted = None if names is None else set(names)
    steps = []
    for spec in desired:
        if spec.host in seen and (wanted is None or spec.id in wanted or spec.engine.model in wanted):
            steps.append(_step(spec, seen[spec.host], anew))
            steps += _elsewhere(spec, seen)
    ids = {spec.id for spec in desired}
    for host, there in seen.items():
        for backend in dict.fromkeys(found.backend for found in there.ours):
            if backend not in ids and (wanted is None or backend in wanted):
                steps.append(gone(backend, host, there, "it has left the fleet"))
    return steps


def gone(backend: str, host: str, there: Seen, why: str) -> Step:
    """The step that ends all containers of one backend on one host."""
    return Step("stop", backend, host, why, None, tuple(found for found in there.ours if found.backend == backend))


def _elsewhere(spec: ContainerSpec, seen: Mapping[str, Seen]) -> list[Step]:
    """The backend ran on another host before."""
    return [
        gone(spec.id, host, there, f"it belongs to {spec.host} now")
        for host, there in seen.items()
        if host != spec.host and any(found.backend == spec.id for found in there.ours)
    ]


def _step(spec: ContainerSpec, there: Seen, anew: bool) -> Step:
    mine = tuple(found for found in there.ours if found.backend == spec.id)
    holder = _conflict(spec, there)
    if holder:
        return Step("conflict", spec.id, spec.host, holder, spec, mine)
    same = next((found for found in mine if found.hash == spec.hash()), None)
    others = [found for found in mine if found is not same]
    running = next((found for found in others if found.alive), None)
    image = there.images.get(spec.image, "")
    if same is None and running is None:
        why = "it has no container" if not mine else "its container does not run, and its settings changed"
        return Step("start", spec.id, spec.host, why, spec, mine, _changes(spec, others))
    if same is None:
        return Step("replace", spec.id, spec.host, "its settings changed", spec, mine, _changes(spec, others))
    if same.image_id and image and same.image_id != image:
        why = f"{spec.image} is another image now"
        return Step("replace" if same.alive else "start", spec.id, spec.host, why, spec, mine)
    if same.state == "paused":
        why = f"somebody has paused it. Let it go on: docker unpause {same.name}"
        return Step("conflict", spec.id, spec.host, why, spec, mine)
    if not same.alive:
        why = "it was never started" if same.state == "created" else f"it has ended{_exit(same)}"
        return Step("replace" if running else "start", spec.id, spec.host, why, spec, mine)
    if others:
        return Step("wait", spec.id, spec.host, "its replacement was interrupted", spec, mine)
    if anew:
        return Step("replace", spec.id, spec.host, "as you asked", spec, mine)
    return Step("keep", spec.id, spec.host, "it runs as asked", spec, mine)


def _exit(found: Found) -> str:
    if found.out_of_memory:
        return " (out of memory)"
    return f" with exit code {found.exit_code}" if found.exit_code else ""


def _conflict(spec: ContainerSpec, there: Seen) -> str:
    """Who has the name or the port that this container needs; empty when nobody has."""
    for other in there.foreign:
        if other.name == spec.name:
            return f"the name {spec.name} is taken by {other.words()}. Rename it: docker rename {spec.name} OTHER"
        if other.state in ALIVE and any(_same_port(spec, *port) for port in other.ports):
            return f"port {spec.engine.port} is taken by {other.words()}. Stop it, or give {spec.id} another port"
    return ""


def _same_port(spec: ContainerSpec, address: str, port: int) -> bool:
    return port == spec.engine.port and (address == spec.engine.host or address in EVERYWHERE)


def _changes(spec: ContainerSpec, others: Sequence[Found]) -> tuple[str, ...]:
    newest = max(others, key=lambda found: (found.alive, found.started), default=None)
    return tuple(differences(newest.facts, spec.facts())) if newest is not None else ()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between the facts of two specs, in words. Secrets are only named."""
    if not old:
        return ["it does not say what it was made from"]
    lines = []
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        if key == "command":
            lines += _words(before or [], value)
        elif key in ("environment", "secrets"):
            lines += _pairs(key, before or {}, value)
        else:
            lines.append(f"{key}: {_text(before)} → {_text(value)}")
    return lines


def _pairs(key: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            change = f"{_text(old.get(name))} → {_text(new.get(name))}" if key == "environment" else "changed"
            lines.append(f"{key}: {name}: {change}")
    return lines


def _words(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Two argument lists, flag by flag."""
    before, after = _flags(old), _flags(new)
    lines = []
    for flag in dict.fromkeys((*before, *after)):
        if before.get(flag) != after.get(flag):
            lines.append(f"{flag or 'arguments'}: {_text(before.get(flag))} → {_text(after.get(flag))}")
    return lines


def _flags(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            found.setdefault(flag, [])
            if value:
                found[flag].append(value)
        else:
            found.setdefault(flag, []).append(word)
    return {name: " ".join(values) or "given" for name, values in found.items()}


def _text(value: object) -> str:
    if value is None or value == []:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
