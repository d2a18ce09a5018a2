"""From a workload to the requests of one pass, as the load generator reads them. Pure: seeds in, lines out.

Two seeds, so that passes can be compared and caches cannot help: ``shape`` decides lengths and order, and is the same
for all variants of a repeat; ``text`` decides the words, and is another one for every pass. Otherwise the second pass
of an engine would find the first one's prompts in its prefix cache.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from control.bench.workload import Group, Workload

#: Common words: one token each in most vocabularies. ``tokens_per_word`` corrects what is not.
_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea kid body information back
parent face others level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy music market sense nation plan college interest death
experience effect use class control field development role effort rate heart drug show leader light voice wife
police mind price report decision son view relationship town road arm difference value building action season
society tax director position player record paper space ground form event official matter center couple site project
activity star table need court oil situation cost industry figure street image phone data picture practice piece
land product doctor wall patient worker news test movie north love support technology
"""
WORDS = tuple(_TEXT.split())
#: Group of requests that come first and are not measured: AIPerf opens its connections with them.
WARM_UP = "warm-up"
_CONNECTIONS = 4


@dataclass(frozen=True)
class Dataset:
    """What one pass sends, in this order; the first ``warm_up`` lines are not measured.

    ``lines`` has more conversations than are measured: when the last ones are running, free places still have work, and
    nothing is sent twice.
    """

    lines: list[dict[str, Any]]
    chat: (
        bool  # AIPerf's multi_turn lines (with the engine's answers as history), else mooncake_trace with whole bodies
    )
    warm_up: int
    requests: int
    scheduled: bool = False  # lines have timestamps

    @property
    def schedule(self) -> dict[str, float]:
        """Conversation → seconds after the first one's arrival; empty where nothing is scheduled."""
        return {line["session_id"]: line["timestamp"] / 1000 for line in self.lines} if self.scheduled else {}

    def write(self) -> str:
        """The text of the file."""
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.lines)


def dataset(
    workload: Workload, model: str, shape: int, text: int, tokens_per_word: float = 1.3, rate: float | None = None
) -> Dataset:
    """The requests of one pass. ``rate``: arrivals a second, for a workload with ``times_capacity``."""
    write = _Writer(workload, model, random.Random(f"shape {shape}"), random.Random(f"text {text}"), tokens_per_word)
    warm_up = _CONNECTIONS if rate is None else 0
    spare = workload.in_flight if rate is None else 0
    lines = [write.opening(number) for number in range(warm_up)]
    made = 0
    for group, number in write.order(workload.requests):
        if made >= workload.requests:
            spare -= 1
        if spare < 0:
            break
        lines += write.conversation(group, number)
        made += workload.groups[group].turns
    if rate is not None:
        lines = _scheduled(lines[: workload.requests], rate, random.Random(f"arrivals {shape}"))
    return Dataset(lines, workload.is_chat, warm_up, workload.requests, rate is not None)


def warm_up(workload: Workload, model: str, text: int, tokens_per_word: float, count: int) -> list[dict[str, Any]]:
    """Bodies to send before a pass."""
    write = _Writer(workload, model, random.Random(0), random.Random(f"warm-up {text}"), tokens_per_word)
    return [{**write.warm_up(number), "stream": False, "stream_options": None} for number in range(count)]


def _scheduled(lines: list[dict[str, Any]], rate: float, draw: random.Random) -> list[dict[str, Any]]:
    """Arrivals that know nothing of each other (a Poisson process), in milliseconds."""
    at, arriving = 0.0, []
    for number, line in enumerate(lines):
        arriving.append({**line, "session_id": f"{line['session_id']}.{number}", "timestamp": round(at * 1000, 3)})
        at += draw.expovariate(rate)
    return arriving


class _Writer:
    """Conversations of one pass."""

    def __init__(
        self, workload: Workload, model: str, shape: random.Random, text: random.Random, tokens_per_word: float
    ) -> None:
        self._groups, self._chat, self._model = workload.groups, workload.is_chat, model
        self._shape, self._text, self._ratio = shape, text, tokens_per_word
        self._shared: dict[tuple[str, str, int], str] = {}
        self._tools: dict[str, list[dict[str, Any]]] = {}

    def order(self, most: int) -> Iterator[tuple[str, int]]:
        """Groups in turn, each as often as its share says, in blocks that are shuffled."""
        names, shares = list(self._groups), [group.share for group in self._groups.values()]
        owed = dict.fromkeys(names, 0.0)
        total, numbers = sum(shares), {name: count() for name in names}
        while True:
            block: list[str] = []
            for _ in range(max(8, min(32, most))):
                for name, share in zip(names, shares, strict=True):
                    owed[name] += share / total
                name = max(names, key=lambda one: owed[one])
                owed[name] -= 1
                block.append(name)
            self._shape.shuffle(block)
            yield from ((name, next(numbers[name])) for name in block)

    def opening(self, number: int) -> dict[str, Any]:
        """A short request for AIPerf's own first moments."""
        name, text = f"{WARM_UP}:{number}", self._words(8)
        if self._chat:
            return {"session_id": name, "turns": [self._turn(text, 4)]}
        return {"session_id": name, "payload": self._body([{"role": "user", "content": text}], 4)}

    def warm_up(self, number: int) -> dict[str, Any]:
        """A body that has nothing in common with a measured one; every fourth is as long as the longest group's."""
        groups = sorted(self._groups.values(), key=lambda group: group.longest)
        group = groups[-1] if number % 4 == 3 else groups[0]
        tokens = self._tokens(group.document if group.kind == "documents" else group.prompt)
        return self._body([{"role": "user", "content": self._words(tokens)}], 8)

    def conversation(self, name: str, number: int) -> Iterator[dict[str, Any]]:
        """The lines of one conversation: one with turns for AIPerf to send, or one for each whole body."""
        group, title = self._groups[name], f"{name}:{number:05}"
        if group.kind == "chat":
            system = [{"role": "system", "text": self._common(name, "system", 0, group.system)}] if group.system else []
            turns = [self._turn(self._words(self._tokens(group.prompt)), self._tokens(group.output))
                     for _ in range(group.turns)]  # fmt: skip
            yield {"session_id": title, "turns": [*system, *turns]}
        elif group.kind == "tools":
            yield from self._agent(name, title, group)
        else:
            text = self._words(self._tokens(group.prompt))
            if group.kind == "documents":
                which = self._shape.randrange(group.documents)
                known = self._common(name, "document", which, self._tokens_of(group.document, which))
                text = f"{known}\n\nQuestion: {text}"
            messages = [{"role": "user", "content": text}]
            yield {"session_id": title, "payload": self._body(messages, self._tokens(group.output))}

    def _agent(self, name: str, title: str, group: Group) -> Iterator[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if group.system:
            messages.append({"role": "system", "content": self._common(name, "system", 0, group.system)})
        messages.append({"role": "user", "content": self._words(self._tokens(group.prompt))})
        for turn in range(group.turns):
            if turn:
                call = {"id": f"call_{turn}", "type": "function", "function": {
                    "name": f"tool_{turn % max(group.tools, 1)}",
                    "arguments": json.dumps({"query": self._words(self._tokens(group.prompt))}),
                }}  # fmt: skip
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                result = self._words(self._tokens(group.result))
                messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": result})
            body = self._body(list(messages), self._tokens(group.output), self._definitions(name, group))
            missing = group.body - len(json.dumps(body, separators=(",", ":")))
            if missing > 0:
                body["padding"] = "x" * missing
            yield {"session_id": title, "payload": body}

    def _definitions(self, name: str, group: Group) -> list[dict[str, Any]]:
        if name not in self._tools:
            schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
            self._tools[name] = [
                {"type": "function", "function": {"name": f"tool_{number}", "parameters": schema,
                                                  "description": self._words(20)}}
                for number in range(group.tools)
            ]  # fmt: skip
        return self._tools[name]

    def _body(
        self, messages: list[dict[str, Any]], output: int, tools: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        body = {"model": self._model, "messages": messages, "max_tokens": output, **_FIXED, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        return {**body, "tools": tools, "tool_choice": "none"} if tools else body

    def _turn(self, text: str, output: int) -> dict[str, Any]:
        return {"text": text, "output_length": output, "extra": dict(_FIXED)}

    def _common(self, name: str, what: str, number: int, tokens: int) -> str:
        key = (name, what, number)
        if key not in self._shared:
            self._shared[key] = self._words(tokens)
        return self._shared[key]

    def _tokens(self, tokens: int | list[int]) -> int:
        return self._shape.randint(*tokens) if isinstance(tokens, list) else tokens

    def _tokens_of(self, tokens: int | list[int], number: int) -> int:
        """Of a shared text, which is as long in every pass of a repeat: drawn once, evenly over the documents."""
        if not isinstance(tokens, list):
            return tokens
        return tokens[0] + (number * 7919) % (tokens[1] - tokens[0] + 1)

    def _words(self, tokens: int) -> str:
        return " ".join(self._text.choices(WORDS, k=max(1, round(tokens / self._ratio))))


#: Every answer has the length that is asked for, and the same prompt gets the same answer.
_FIXED: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
