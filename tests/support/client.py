"""What tests send, and what every error of the edge must look like."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import requests

CHAT = "/v1/chat/completions"
T = TypeVar("T")


def chat(
    model: Any = None, text: str = "Say something scripted.", stream: bool = False, **script: Any
) -> dict[str, Any]:
    """A chat body; ``script`` says what the engine does with it."""
    body: dict[str, Any] = {} if model is None else {"model": model}
    body["messages"] = [{"role": "user", "content": text}]
    if stream:
        body["stream"] = True
    if script:
        body["scripted"] = script
    return body


def check_error(answer: requests.Response, status: int, code: str, anthropic: bool = False) -> str:
    """The answer is an error of the edge's own, in the shape of its API; returns the message."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers.get("X-Request-Id")
    content = answer.json()
    error = content["error"]
    if anthropic:
        assert set(content) == {"type", "error"} and content["type"] == "error"
        assert set(error) == {"type", "message", "code"}
    else:
        assert set(content) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, content
    assert isinstance(error["type"], str) and error["type"]
    message: str = error["message"]
    assert message and len(message) < 4096
    assert "nginx" not in message.lower() and "lua" not in message.lower()
    return message


def retry_after(answer: requests.Response) -> int:
    """Retry-After as the whole seconds that it must be."""
    seconds = int(answer.headers["Retry-After"])
    assert 1 <= seconds <= 120
    return seconds


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Run ``work(0) .. work(count - 1)`` in as many threads; results in order."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
