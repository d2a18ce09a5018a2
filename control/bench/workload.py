"""Workload files: what is sent, as people write it (examples/workloads/, docs/bench.md)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from control.errors import BenchRunError, FleetError, Problem
from control.fleet.messages import translate
from control.fleet.shapes import Identifier, Strict
from control.fleet.source import Kind, Source, dotted, line_of, parse, read
from control.fleet.units import Bytes, Milliseconds
from control.paths import REPOSITORY
from control.vllm.profiles import Name as Profile

FOLDER = REPOSITORY / "examples" / "workloads"
#: The scale that is the file itself.
FULL = "full"
_KIND = Kind("workload file", "'title:' and 'groups:'")


def _span(value: int | list[int]) -> int | list[int]:
    if isinstance(value, list) and (len(value) != 2 or value[0] > value[1]):
        raise ValueError("two numbers are the least and the greatest, in this order")
    return value


_Count = Annotated[int, Field(ge=1, le=10_000_000)]
#: So many tokens, or evenly between two numbers.
Tokens = Annotated[_Count | list[_Count], AfterValidator(_span)]


def most(tokens: int | list[int]) -> int:
    """The greatest of ``Tokens``."""
    return tokens[-1] if isinstance(tokens, list) else tokens


class Group(Strict):
    """Requests of one kind. The name of the group stands beside its figures."""

    kind: Literal["prompt", "chat", "documents", "tools"] = "prompt"
    """``prompt``: a question of its own; ``chat``: turns, with the engine's own answers as history; ``documents``: a
    question about one of a few shared texts; ``tools``: an agent's turns, with tool calls and results as history."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of all conversations."""
    prompt: Tokens
    """Tokens of each question; no two begin alike."""
    output: Tokens
    """Tokens of each answer; the engine is told to write so many."""
    turns: Annotated[int, Field(ge=1, le=100)] = 1
    """``chat``, ``tools``: requests of one conversation, one after the other."""
    system: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """``chat``, ``tools``: tokens of a system prompt that all conversations share."""
    documents: Annotated[int, Field(ge=1, le=10_000)] = 1
    """``documents``: how many there are."""
    document: Tokens = 1000
    """``documents``: tokens of each."""
    tools: Annotated[int, Field(ge=0, le=128)] = 0
    """``tools``: tools that the model may call, the same for all."""
    result: Tokens = 100
    """``tools``: tokens of each tool's answer."""
    body: Bytes = Bytes(0)
    """``tools``: bodies are at least so large: a field that engines ignore is filled up."""
    mark: bool = False
    """Shown one by one on the timeline."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer, roughly."""
        each = most(self.prompt) + most(self.output) + (most(self.result) if self.kind == "tools" else 0)
        shared = self.system + (most(self.document) if self.kind == "documents" else 0)
        return shared + each * self.turns


class Workload(Strict):
    """One workload file."""

    title: Annotated[str, Field(min_length=1, max_length=200)]
    tuned: Profile = "mixed"
    """The profile that the variant ``tuned`` takes (docs/arguments.md)."""
    requests: Annotated[int, Field(ge=1, le=1_000_000)]
    """Of each pass; every turn is one."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Requests that are always in flight: the next is sent when one ends."""
    times_capacity: Annotated[float, Field(gt=0, le=100)] | None = None
    """Instead: requests arrive at so many times the rate that the first variant can serve, which is measured first."""
    capacity: Annotated[float, Field(gt=0)] | None = None
    """That rate, in requests a second, where it is known."""
    timeout: Milliseconds = Milliseconds(600_000)
    """A request that takes longer is a failure."""
    groups: Annotated[dict[Identifier, Group], Field(min_length=1, max_length=16)]
    scales: dict[Identifier, dict[str, Any]] = Field(default_factory=dict)
    """For smaller machines: name → what is otherwise, in the same shape. ``--scale NAME`` takes it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.concurrency is None) == (self.times_capacity is None):
            raise ValueError("give either concurrency or times_capacity")
        chats = {group.kind == "chat" for group in self.groups.values()}
        if len(chats) > 1:
            raise ValueError("chat cannot be mixed with other kinds of groups")
        if chats == {True} and self.times_capacity is not None:
            raise ValueError("times_capacity sends single requests: it does not go with chat")
        return self

    @property
    def is_chat(self) -> bool:
        """Whether turns carry the engine's own answers."""
        return any(group.kind == "chat" for group in self.groups.values())

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer, roughly."""
        return max(group.longest for group in self.groups.values())

    @property
    def in_flight(self) -> int:
        """Requests at the same time, where the number is given; 32 for arrivals."""
        return self.concurrency or 32


def find(name: str) -> Path:
    """The file of a workload that is named, or given as a path. Raises BenchRunError."""
    given = Path(name)
    if given.suffix in (".yaml", ".yml") or "/" in name:
        return given
    file = FOLDER / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml")))
        raise BenchRunError(f"There is no workload {name!r}.", f"Take one of {known}, or the path of a file.")
    return file


def load(path: Path, scale: str = FULL) -> Workload:
    """The workload of this file at this scale. Raises FleetError with all problems, BenchRunError for no such scale."""
    source = parse(read(path, _KIND), path, _KIND)
    if source.problems:
        raise FleetError(source.problems)
    whole = _validate(source.data, source, path)
    for name in whole.scales:  # a mistake in any of them is told at once, not on the day when it is used
        _validate(_scaled(source.data, name), source, path, ("scales", name))
    if scale == FULL:
        return whole
    if scale not in whole.scales:
        known = ", ".join([FULL, *whole.scales])
        raise BenchRunError(f"{path} has no scale {scale!r}.", f"Take one of {known}, or add it below scales:.")
    return _validate(_scaled(source.data, scale), source, path, ("scales", scale))


def _scaled(data: Mapping[str, object], scale: str) -> dict[str, object]:
    whole = copy.deepcopy(dict(data))
    scales = whole.pop("scales", {})
    assert isinstance(scales, dict)
    _lay_over(whole, scales[scale])
    return whole


def _lay_over(whole: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _lay_over(whole[key], value)
        else:
            whole[key] = value


def _validate(data: dict[str, object], source: Source, path: Path, inside: tuple[str, ...] = ()) -> Workload:
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        findings = translate(error.errors(include_url=False), data, Workload)
        raise FleetError(
            [
                Problem(path, line_of(source.lines, (*inside, *one.path)), dotted((*inside, *one.path)), one.message,
                        one.suggestion)
                for one in findings
            ]
        ) from error  # fmt: skip
