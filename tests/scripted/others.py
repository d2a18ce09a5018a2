"""Everything beside generation: models, embeddings, scores, tokens, audio, and what must never be reachable."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from tests.scripted.call import Call, Event, Fault, sse
from tests.scripted.generate import TEXT, Job, count_tokens


def _texts(value: Any) -> list[Any]:
    if isinstance(value, list) and not (value and isinstance(value[0], int)):
        return value
    return [value]


def _vector(text: Any) -> list[float]:
    digest = hashlib.sha256(json.dumps(text).encode()).digest()
    return [(byte - 128) / 128 for byte in digest[:8]]


def _base(call: Call, prefix: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{call.request_id}", "object": "list", "created": int(time.time()),
            "model": call.json.get("model") or call.engine.names[0]}  # fmt: skip


def _usage(call: Call) -> dict[str, Any]:
    tokens = count_tokens(call.json)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


async def models(call: Call) -> None:
    """GET /v1/models: all names, then the adapters."""
    now = int(time.time())
    first = call.engine.names[0]

    def card(name: str, parent: str | None) -> dict[str, Any]:
        permission = {"id": f"modelperm-{name}", "object": "model_permission", "created": now, "group": None}
        length = call.engine.max_model_len if parent is None else None
        return {"id": name, "object": "model", "created": now, "owned_by": "scripted", "root": f"scripted/{first}",
                "parent": parent, "max_model_len": length, "permission": [permission]}  # fmt: skip

    cards = [card(name, None) for name in call.engine.names] + [card(name, first) for name in call.engine.loras]
    await call.answer(200, {"object": "list", "data": cards})


async def embeddings(call: Call) -> None:
    """POST /v1/embeddings and /pooling: eight numbers made from the text's hash."""
    data = [{"index": index, "object": "embedding", "embedding": _vector(text)}
            for index, text in enumerate(_texts(call.json.get("input")))]  # fmt: skip
    await call.answer(200, {**_base(call, "embd"), "data": data, "usage": _usage(call)})


async def rerank(call: Call) -> None:
    documents = _texts(call.json.get("documents") or [])
    results = [{"index": index, "document": {"text": text}, "relevance_score": 1.0 / (index + 1)}
               for index, text in enumerate(documents)]  # fmt: skip
    await call.answer(200, {**_base(call, "rerank"), "results": results, "usage": _usage(call)})


async def score(call: Call) -> None:
    others = _texts(call.json.get("text_2") or call.json.get("documents") or [])
    data = [{"index": index, "object": "score", "score": 0.5} for index, _ in enumerate(others)]
    await call.answer(200, {**_base(call, "score"), "data": data, "usage": _usage(call)})


async def classify(call: Call) -> None:
    data = [{"index": index, "label": "scripted", "probs": [1.0], "num_classes": 1}
            for index, _ in enumerate(_texts(call.json.get("input")))]  # fmt: skip
    await call.answer(200, {**_base(call, "classify"), "data": data, "usage": _usage(call)})


async def tokenize(call: Call) -> None:
    count = count_tokens(call.json)
    await call.answer(200, {"count": count, "max_model_len": call.engine.max_model_len,
                            "tokens": list(range(count)), "token_strs": None})  # fmt: skip


async def detokenize(call: Call) -> None:
    tokens = call.json.get("tokens") or []
    await call.answer(200, {"prompt": " ".join(TEXT[int(token) % len(TEXT)] for token in tokens)})


async def count(call: Call) -> None:
    """POST /v1/messages/count_tokens."""
    tokens = count_tokens(call.json)
    await call.answer(200, {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})


async def response_by_id(call: Call, response_id: str, cancel: bool) -> None:
    """GET /v1/responses/{id} and POST .../cancel: only what this process made."""
    value = call.engine.responses.get(response_id)
    if value is None:
        raise Fault(404, f"Response with id '{response_id}' not found.", "invalid_request_error", "response_id")
    if cancel:
        value["status"] = "cancelled"
    await call.answer(200, {**value, "instance": call.engine.instance})


async def audio(call: Call) -> None:
    """POST /v1/audio/transcriptions and translations: says which model and which file came."""
    file = call.json.pop("file", {"size": 0, "sha256": "", "name": ""})
    if call.json.get("stream") == "true":
        job = Job(call, ())
        base = {"id": f"trsc-{call.request_id}", "object": "transcription.chunk", "model": job.model}
        words = [Event(sse({**base, "choices": [{"delta": {"content": word}}]}), token=True) for word in job.words()]
        await call.stream([*words, Event(b"data: [DONE]\n\n")])
        return
    text = "This is a scripted engine. It heard nothing."
    await call.answer(200, {"text": text, "model": call.json.get("model"), "file": file, "fields": sorted(call.json),
                            "instance": call.engine.instance})  # fmt: skip


def parse_multipart(body: bytes, content_type: str) -> dict[str, Any]:
    """Fields of a form; the file part becomes its name, size and SHA-256. Raises Fault 400 when it is no form."""
    _, found, boundary = content_type.partition("boundary=")
    if not found:
        raise Fault(400, "Missing boundary in multipart.", "Bad Request")
    fields: dict[str, Any] = {}
    for part in body.split(b"--" + boundary.split(";")[0].strip().strip('"').encode())[1:-1]:
        head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        value = value.removesuffix(b"\r\n")
        names = dict(item.strip().split("=", 1) for item in head.decode().split("\r\n")[0].split(";")[1:])
        name = names["name"].strip('"')
        if "filename" in names:
            digest = hashlib.sha256(value).hexdigest()
            fields[name] = {"name": names["filename"].strip('"'), "size": len(value), "sha256": digest}
        else:
            fields[name] = value.decode()
    return fields


async def dangerous(call: Call) -> None:
    """Management and unguarded routes of a real engine. Reaching one through the edge is a fault of the edge."""
    await call.answer(200, {"dangerous": call.path, "scripted": True})
