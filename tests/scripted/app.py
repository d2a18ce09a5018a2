"""The ASGI app: counts, guards, finds the endpoint, and notices a client that leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.scripted import generate, others
from tests.scripted.call import Call, Fault, Left
from tests.scripted.metrics import exposition
from tests.scripted.state import Engine

Handler = Callable[[Call], Awaitable[None]]

GENERATING: dict[str, Handler] = {
    "/v1/chat/completions": generate.chat,
    "/v1/completions": generate.completions,
    "/v1/responses": generate.responses,
    "/v1/messages": generate.messages,
    "/v1/audio/transcriptions": others.audio,
    "/v1/audio/translations": others.audio,
}
READING: dict[str, Handler] = {
    "/v1/messages/count_tokens": others.count,
    "/v1/embeddings": others.embeddings,
    "/pooling": others.embeddings,
    "/classify": others.classify,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), others.rerank),
    **dict.fromkeys(("/score", "/v1/score"), others.score),
    "/tokenize": others.tokenize,
    "/detokenize": others.detokenize,
}
DANGEROUS = (
    "/invocations", "/ping", "/sleep", "/wake_up", "/is_sleeping", "/server_info", "/reset_prefix_cache",
    "/reset_mm_cache", "/pause", "/resume", "/collective_rpc", "/generative_scoring", "/scale_elastic_ep",
    "/abort_requests", "/inference/v1/generate", "/inference/v1/abort_requests", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/v1/chat/completions/render", "/v1/completions/derender", "/v2/embed",
)  # fmt: skip
GUARDED = ("/v1", "/v2", "/inference")


class App:
    """One engine as an ASGI application."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        engine, path = self.engine, scope["path"]
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        call = Call(engine, scope, bytes(body), send)
        if path == "/_scripted":
            await self._control(call)
            return
        work = scope["method"] == "POST"
        engine.started[path] += 1
        engine.running += work
        if work:
            _remember(call)
        task = asyncio.ensure_future(self._answer(call))
        watch = asyncio.ensure_future(_left(receive))
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        left = not task.done() or isinstance(task.exception(), Left)
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
        call.end()
        engine.running -= work
        (engine.aborted if left else engine.finished)[path] += 1
        if work and not left:
            engine.e2e.observe(time.monotonic() - call.arrived)

    async def _answer(self, call: Call) -> None:
        try:
            await self._route(call)
        except Fault as fault:
            await call.fault(fault)
        except ValueError as error:
            await call.fault(Fault(400, str(error)))

    async def _route(self, call: Call) -> None:
        engine, path, method = self.engine, call.path, call.method
        key = engine.api_key
        if key and path.startswith(GUARDED) and call.header("authorization") != f"Bearer {key}":
            await call.answer(401, {"error": "Unauthorized"})
            return
        if method == "GET":
            await self._get(call)
            return
        handler = GENERATING.get(path) or READING.get(path)
        if method == "POST" and handler:
            _read_body(call)
            call.begin(call.json["n"] if isinstance(call.json.get("n"), int) else 1)
            if await _spoiled(call):
                return
            await handler(call)
        elif method == "POST" and path.startswith("/v1/responses/") and path.endswith("/cancel"):
            await others.response_by_id(call, path.split("/")[3], cancel=True)
        elif path in DANGEROUS:
            await others.dangerous(call)
        elif path in ("/health", "/version", "/metrics", "/v1/models") or handler:
            await call.answer(405, {"detail": "Method Not Allowed"})
        else:
            await call.answer(404, {"detail": "Not Found"})

    async def _get(self, call: Call) -> None:
        engine, path = self.engine, call.path
        if path == "/health":
            await asyncio.sleep(engine.health_delay_ms / 1000)
            await call.answer(engine.health_status, None)
        elif path == "/version":
            await call.answer(200, {"version": "0.32.0", "scripted": True})
        elif path == "/load":
            await call.answer(200, {"server_load": engine.running})
        elif path == "/metrics":
            data = engine.stale or exposition(engine)
            await call.start(engine.metrics_status, ((b"content-length", str(len(data)).encode()),
                                   (b"content-type", b"text/plain; version=1.0.0; charset=utf-8")))  # fmt: skip
            await call.write(data, more=False)
        elif path == "/v1/models":
            await asyncio.sleep(engine.models_delay_ms / 1000)
            await others.models(call)
        elif path.startswith("/v1/responses/"):
            await others.response_by_id(call, path.removeprefix("/v1/responses/"), cancel=False)
        elif path in DANGEROUS or path in ("/openapi.json", "/docs", "/kv_event_sources"):
            await others.dangerous(call)
        else:
            await call.answer(404, {"detail": "Not Found"})

    async def _control(self, call: Call) -> None:
        engine = self.engine
        if call.method == "GET":
            await call.answer(200, engine.counters())
            return
        wanted = json.loads(call.body)
        if wanted.pop("reset", False):
            engine.reset()
        refuse_ms = wanted.pop("refuse_ms", 0)
        frozen = wanted.pop("freeze", engine.frozen)
        if frozen != engine.frozen:
            engine.stale = exposition(engine) if frozen else b""
        engine.frozen = frozen
        for name in ("health_status", "health_delay_ms", "metrics_status", "models_delay_ms", "names", "loras",
                     "api_key", "waiting", "kv_usage", "kv_tokens"):  # fmt: skip
            setattr(engine, name, wanted.pop(name, getattr(engine, name)))
        try:
            engine.script = engine.script.changed(wanted)
        except ValueError as error:
            await call.answer(400, {"error": str(error)})
            return
        await call.answer(200, engine.counters())
        if refuse_ms:
            asyncio.get_running_loop().create_task(engine.server.refuse(refuse_ms / 1000))


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _remember(call: Call) -> None:
    if call.engine.starts:
        call.engine.starts.write(f"{call.header('x-request-id')}\n".encode())
    digest = hashlib.sha256(call.body).hexdigest()
    call.engine.last.append({"path": call.path, "id": call.header("x-request-id"), "sha256": digest,
                             "length": len(call.body)})  # fmt: skip


def _read_body(call: Call) -> None:
    """Parse the body as vLLM would, check the model, take the request's own script out of it."""
    content_type = call.header("content-type")
    if call.path.startswith("/v1/audio/"):
        call.json = others.parse_multipart(call.body, content_type)
        own = json.loads(call.json.pop("scripted", "null"))
    else:
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise Fault(400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                        "Bad Request")  # fmt: skip
        try:
            value = json.loads(call.body)
        except (ValueError, RecursionError) as error:
            raise Fault(400, f"1 validation error:\n  {{'type': 'json_invalid', 'ctx': {{'error': '{error}'}}}}",
                        "Bad Request") from error  # fmt: skip
        if not isinstance(value, dict):
            raise Fault(400, "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body'}", "Bad Request")
        call.json, own = value, value.get("scripted")
    call.script = call.engine.script.changed(own)
    model = call.json.get("model")
    if model is not None and not isinstance(model, str):
        raise Fault(400, "1 validation error:\n  {'type': 'string_type', 'loc': 'body.model', "
                         f"'msg': 'Input should be a valid string', 'input': '{model}'}}",
                    "Bad Request", "body.model")  # fmt: skip
    known = call.engine.names + call.engine.loras
    if model and model not in known:
        raise Fault(404, f"The model `{model}` does not exist. Valid aliases: {', '.join(known)}.", "NotFoundError",
                    "model")  # fmt: skip


async def _spoiled(call: Call) -> bool:
    """Carry out what the script does to a request before it is answered; True when that was the whole answer."""
    script = call.script
    await call.engine.work(script.headers_after_ms)
    if script.die:
        call.close()
        return True
    if script.status == 503:
        raise Fault(503, "The engine is currently busy and cannot accept new requests. Please try again later or on a "
                         "different instance.", "Service Unavailable")  # fmt: skip
    if script.status:
        raise Fault(script.status, "EngineCore encountered an issue. See stack trace (above) for the root cause."
                    if script.status >= 500 else "This answer is scripted.", "InternalServerError"
                    if script.status >= 500 else "BadRequestError")  # fmt: skip
    if script.echo:
        await call.echo()
        return True
    if call.path in READING:
        if script.hang:
            await asyncio.Event().wait()
        await call.engine.melt()
    return False
