"""One pass of the real AIPerf against a scripted engine that is slow, broken or strange; and what the engine did."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.bench import aiperf
from control.bench.prompts import Dataset
from control.bench.records import Request
from control.paths import REPOSITORY, StatePaths
from tests.support.engine import ScriptedEngine

TOKENS = 16
PLAIN = {"tokens": TOKENS, "first_ms": 300, "delay_ms": 40, "stamp": True}
#: Group → what the engine does, as often as the number says.
SCRIPTS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (8, PLAIN),
    "merged": (8, {**PLAIN, "merge": 4}),
    "comments": (8, {**PLAIN, "comment_first": True, "comment_every": 3}),
    "null-usage": (8, {**PLAIN, "null_usage": True}),
    "http": (2, {"status": 500}),
    "connect": (2, {"die": True}),
    "cut": (2, {**PLAIN, "cut_after": 3}),
    "reset": (2, {**PLAIN, "abort_after": 3}),
    "aborted": (2, {**PLAIN, "told_to_stop_after": 3}),
    "error_event": (2, {**PLAIN, "error_event_after": 3}),
    "empty": (2, {"empty_stream": True}),
    "timeout": (1, {"hang": True}),
}


def many_tokens_an_event() -> dict[str, Any]:
    """Five events 100 ms apart with four tokens each, then usage with empty choices, as vLLM sends when it is busy."""

    def event(value: dict[str, Any]) -> str:
        return f"data: {json.dumps(value)}\n\n"

    events = [event({"choices": [{"index": 0, "delta": {"content": "a b c d "}, "finish_reason": reason}]})
              for reason in (None, None, None, None, "length")]  # fmt: skip
    end = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 20}}) + "data: [DONE]\n\n"
    places = [sum(map(len, events[:number])) for number in range(1, 5)]
    return {"raw": "".join(events) + end, "split_at": places, "split_ms": 100}


@dataclass
class Truth:
    requests: list[Request]
    #: Request id → when the engine sent each of its tokens, Unix seconds by the engine's clock.
    stamps: dict[str, list[float]]

    def group(self, name: str) -> list[Request]:
        return [one for one in self.requests if one.group == name]


def measure(out: Path) -> Truth:
    """Send everything once; ``out`` is a folder that is not there yet."""
    scripts = {**SCRIPTS, "several": (4, many_tokens_an_event())}
    lines = [{"session_id": f"warm-up:{number}", "payload": body({"tokens": 2})} for number in range(4)]
    for name, (count, script) in scripts.items():
        lines += [{"session_id": f"{name}:{number}", "payload": body(script)} for number in range(count)]
    data = Dataset(lines, False, 4, len(lines) - 4)
    folder = aiperf.install(StatePaths(REPOSITORY / ".signalbox"))
    with ScriptedEngine("m") as engine:
        sender = aiperf.Running(folder, aiperf.Load([engine.url], "m", 4, timeout=4.0), data, out)
        try:
            while sender.alive:
                sender.poll()
                time.sleep(0.2)
        finally:
            sender.stop()
        return Truth(sender.finish(), stamps(out / "profile_export_raw.jsonl"))


def body(script: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Say it."}], "max_tokens": TOKENS, "stream": True,
            "stream_options": {"include_usage": True}, "scripted": script}  # fmt: skip


def stamps(file: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in file.read_text().splitlines():
        record = json.loads(line)
        values = [json.loads(packet["value"]) for answer in record["responses"] for packet in answer.get("packets", ())
                  if packet["name"] == "data" and packet["value"].startswith("{")]  # fmt: skip
        texts = [choice["delta"].get("content") for value in values for choice in value.get("choices", ())]
        found[record["metadata"]["x_request_id"]] = [float(text) for text in texts if text and text[0].isdigit()]
    return found


def deviations(truth: Truth, name: str) -> tuple[list[float], list[float]]:
    """Of each request of a group: how far TTFT and TPOT are from what the engine did, as shares."""
    first, each = [], []
    for one in truth.group(name):
        assert one.failure is None and one.ttft is not None and one.tpot is not None, one
        sent = truth.stamps[one.id]
        assert one.output_tokens == TOKENS == len(sent)
        first.append(one.ttft / (sent[0] - one.started) - 1)
        each.append(one.tpot / ((sent[-1] - sent[0]) / (TOKENS - 1)) - 1)
    return first, each
