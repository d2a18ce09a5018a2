"""The generating endpoints: chat, completions, responses, messages."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tests.scripted.call import Call, Event, Fault, sse

SENTENCES = (
    "This is a scripted engine . No model runs here : these words were written in advance , "
    "one token a word , and they come again from the start when more are asked for ."
)
TEXT = SENTENCES.split(" ")
FINGERPRINT = "scripted-0.32.0"
DONE = Event(b"data: [DONE]\n\n")


class Job:
    """One generation: which words, how many, and what is counted for it."""

    def __init__(self, call: Call, limit_keys: tuple[str, ...]) -> None:
        limits = [call.json[key] for key in limit_keys if isinstance(call.json.get(key), int)]
        for key in limit_keys:
            if isinstance(call.json.get(key), int) and call.json[key] < 1:
                raise Fault(400, f"{key} must be at least 1, got {call.json[key]}.", param=key)
        self.call = call
        self.tokens = min([call.script.tokens, *limits])
        self.reason = "length" if self.tokens < call.script.tokens else "stop"
        if call.script.told_to_stop_after >= 0:
            self.tokens, self.reason = min(self.tokens, call.script.told_to_stop_after), "abort"
        self.prompt_tokens = count_tokens(call.json)
        if self.prompt_tokens > call.engine.max_model_len:
            limit = call.engine.max_model_len
            raise Fault(400, f"This model's maximum context length is {limit} tokens. However, your prompt contains at "
                             f"least {limit + 1} input tokens.", param="input_tokens")  # fmt: skip
        self.model = call.json.get("model") or call.engine.names[0]
        self.created = int(time.time())
        call.engine.prompt_tokens += self.prompt_tokens

    def words(self) -> Iterator[str]:
        script = self.call.script
        for number in range(self.tokens):
            word = f"{time.time():.6f} " if script.stamp else TEXT[number % len(TEXT)] + " "
            self.call.engine.generation_tokens += 1
            yield word + "." * script.pad
        self.call.engine.reasons[self.reason] += 1

    def usage(self, completion: int | None = None) -> dict[str, Any]:
        tokens = self.tokens if completion is None else completion
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + tokens,
                "completion_tokens": tokens}  # fmt: skip

    async def wait(self) -> str:
        """The whole text, after the time that a stream of it would have taken."""
        script = self.call.script
        if script.hang:
            await asyncio.Event().wait()
        await self.call.engine.melt()
        await self.call.turn()
        await self.call.engine.work(script.first_ms)
        words = []
        for word in self.words():
            if words and script.delay_ms:
                await asyncio.sleep(script.delay_ms / 1000)
                await self.call.engine.melt()
            words.append(word)
        return "".join(words)


def count_tokens(body: dict[str, Any]) -> int:
    """Words of the prompt, at least one. Nothing like a tokenizer, but the same on every call."""

    def count(value: Any) -> int:
        if isinstance(value, str):
            return 1 if value.startswith("data:") else len(value.split())
        if isinstance(value, list):
            return len(value) if value and isinstance(value[0], int) else sum(map(count, value))
        if isinstance(value, dict):
            return sum(count(part) for key, part in value.items() if key in ("content", "text", "image_url", "url"))
        return 0

    return max(1, sum(count(body.get(key)) for key in ("messages", "prompt", "input", "system")))


def _options(call: Call) -> tuple[bool, bool]:
    """Whether usage comes in an event of its own, and whether also in all others (which needs the first)."""
    options = call.json.get("stream_options")
    if not isinstance(options, dict | None):
        raise Fault(400, "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body.stream_options'}",
                    "Bad Request", "body.stream_options")  # fmt: skip
    include = bool((options or {}).get("include_usage"))
    return include, include and bool((options or {}).get("continuous_usage_stats"))


async def chat(call: Call) -> None:
    """POST /v1/chat/completions."""
    messages = call.json.get("messages")
    if messages is None:
        raise Fault(400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}",
                    "Bad Request", "body.messages")  # fmt: skip
    if not messages:
        raise Fault(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    for key in ("tools", "messages"):
        if key in call.json and not isinstance(call.json[key], list | None):
            raise Fault(400, f"1 validation error:\n  {{'type': 'list_type', 'loc': 'body.{key}', "
                             f"'msg': 'Input should be a valid list'}}", "Bad Request", f"body.{key}")  # fmt: skip
    job = Job(call, ("max_tokens", "max_completion_tokens"))
    base = {"id": f"chatcmpl-{call.request_id}", "created": job.created, "model": job.model}
    if call.json.get("stream"):
        await call.stream(_chat_events(job, base, *_options(call)))
        return
    message = {"role": "assistant", "content": await job.wait(), "refusal": None, "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": job.reason, "stop_reason": None}
    await call.answer(200, {**base, "object": "chat.completion", "choices": [choice], "service_tier": None,
                            "system_fingerprint": FINGERPRINT, "usage": job.usage()})  # fmt: skip


def _chat_events(job: Job, base: dict[str, Any], include: bool, continuous: bool) -> Iterator[Event]:
    base = {**base, "object": "chat.completion.chunk"}

    def chunk(delta: dict[str, Any], number: int, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        value: dict[str, Any] = {**base, "choices": [choice]}
        if continuous:
            value["usage"] = job.usage(number)
        elif job.call.script.null_usage:
            value["usage"] = None
        return sse(value)

    yield Event(chunk({"role": "assistant", "content": ""}, 0))
    for number, word in enumerate(job.words(), 1):
        reason = job.reason if number == job.tokens else None
        yield Event(chunk({"content": word}, number, reason), token=True)
    if include:
        yield Event(sse({**base, "choices": [], "usage": job.usage(), "system_fingerprint": FINGERPRINT}))
    yield DONE


async def completions(call: Call) -> None:
    """POST /v1/completions."""
    if not call.json.get("prompt"):
        raise Fault(400, "Either prompt or prompt_embeds must be provided and non-empty.")
    job = Job(call, ("max_tokens",))
    base = {"id": f"cmpl-{call.request_id}", "object": "text_completion", "created": job.created, "model": job.model}
    if call.json.get("stream"):
        await call.stream(_completion_events(job, base, *_options(call)))
        return
    choice = {"index": 0, "text": await job.wait(), "logprobs": None, "finish_reason": job.reason, "stop_reason": None}
    await call.answer(200, {**base, "choices": [choice], "service_tier": None, "system_fingerprint": FINGERPRINT,
                            "usage": job.usage()})  # fmt: skip


def _completion_events(job: Job, base: dict[str, Any], include: bool, continuous: bool) -> Iterator[Event]:
    for number, word in enumerate(job.words(), 1):
        reason = job.reason if number == job.tokens else None
        choice = {"index": 0, "text": word, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        usage = {"usage": job.usage(number)} if continuous else {}
        yield Event(sse({**base, "choices": [choice], **usage}), token=True)
    if include:
        yield Event(sse({**base, "choices": [], "usage": job.usage(), "system_fingerprint": FINGERPRINT}))
    yield DONE


async def messages(call: Call) -> None:
    """POST /v1/messages, Anthropic's API."""
    if not isinstance(call.json.get("messages"), list):
        raise Fault(400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages'}", "Bad Request")
    job = Job(call, ("max_tokens",))
    stop = "max_tokens" if job.reason == "length" else "end_turn"
    base = {"id": f"chatcmpl-{call.request_id}", "type": "message", "role": "assistant", "model": job.model}
    if call.json.get("stream"):
        await call.stream(_message_events(job, base, stop))
        return
    text = await job.wait()
    await call.answer(200, {**base, "content": [{"type": "text", "text": text}], "stop_reason": stop,
                            "usage": {"input_tokens": job.prompt_tokens, "output_tokens": job.tokens}})  # fmt: skip


def _message_events(job: Job, base: dict[str, Any], stop: str) -> Iterator[Event]:
    def named(kind: str, **values: Any) -> bytes:
        return sse({"type": kind, **values}, kind)

    usage = {"input_tokens": job.prompt_tokens, "output_tokens": 0}
    yield Event(named("message_start", message={**base, "content": [], "stop_reason": None, "stop_sequence": None,
                                                "usage": usage}))  # fmt: skip
    yield Event(named("content_block_start", content_block={"type": "text", "text": ""}, index=0))
    for word in job.words():
        yield Event(named("content_block_delta", delta={"type": "text_delta", "text": word}, index=0), token=True)
    yield Event(named("content_block_stop", index=0))
    yield Event(named("message_delta", delta={"stop_reason": stop, "stop_sequence": None},
                      usage={**usage, "output_tokens": job.tokens}))  # fmt: skip
    yield Event(named("message_stop"))


async def responses(call: Call) -> None:
    """POST /v1/responses. Kept in this process, so that GET and cancel can find it."""
    if not call.json.get("input"):
        raise Fault(400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.input'}", "Bad Request", "body.input")
    job = Job(call, ("max_output_tokens",))
    value: dict[str, Any] = {
        "id": call.json.get("request_id") or f"resp_{uuid.uuid4().hex[:16]}",  # as in vLLM, a client may choose it
        "created_at": job.created, "incomplete_details": None,
        "instructions": None, "metadata": None, "model": job.model, "object": "response", "output": [],
        "parallel_tool_calls": True, "temperature": 0.0, "tool_choice": "none", "tools": [], "top_p": 1.0,
        "background": bool(call.json.get("background")), "status": "in_progress", "usage": None,
    }  # fmt: skip
    store = call.engine.responses
    store[value["id"]] = value
    while len(store) > 1000:
        store.pop(next(iter(store)))
    if call.json.get("stream"):
        await call.stream(_response_events(job, value))
        return
    _complete(value, job, f"msg_{uuid.uuid4().hex[:16]}", await job.wait())
    await call.answer(200, value)


def _complete(value: dict[str, Any], job: Job, item: str, text: str) -> None:
    content = [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}]
    value["output"] = [{"id": item, "content": content, "role": "assistant", "status": "completed", "type": "message"}]
    value["status"] = "completed" if job.reason == "stop" else "incomplete"
    if job.reason == "length":
        value["incomplete_details"] = {"reason": "max_output_tokens"}
    value["usage"] = {
        "input_tokens": job.prompt_tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": job.tokens,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": job.prompt_tokens + job.tokens,
    }  # fmt: skip


def _response_events(job: Job, value: dict[str, Any]) -> Iterator[Event]:
    item = f"msg_{uuid.uuid4().hex[:16]}"
    place = {"content_index": 0, "item_id": item, "output_index": 0}
    sequence = -1

    def named(kind: str, **values: Any) -> bytes:
        nonlocal sequence
        sequence += 1
        return sse({**values, "sequence_number": sequence, "type": kind}, kind)

    message = {"id": item, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
    part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
    yield Event(named("response.created", response=value))
    yield Event(named("response.in_progress", response=value))
    yield Event(named("response.output_item.added", item=message, output_index=0))
    yield Event(named("response.content_part.added", part=part, **place))
    text = ""
    for word in job.words():
        text += word
        yield Event(named("response.output_text.delta", delta=word, logprobs=[], **place), token=True)
    _complete(value, job, item, text)
    yield Event(named("response.output_text.done", text=text, logprobs=[], **place))
    yield Event(named("response.content_part.done", part={**part, "text": text}, **place))
    yield Event(named("response.output_item.done", item=value["output"][0], output_index=0))
    yield Event(named("response.completed", response=value))
