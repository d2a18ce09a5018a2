"""Fallback models: who serves while a model has no ready backend, and who never does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import CHAT, chat, check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.queueing import hold, queue_length

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

HEADER = "X-Signalbox-Fallback"


def fleet(alpha: str, beta: ScriptedEngine, fallback: list[str] | None = None, **beta_backend: Any) -> dict[str, Any]:
    """Model alpha at a URL, falling back to model beta, whose engine calls it org/beta."""
    back = {"fallback": fallback} if fallback is not None else {"fallback": ["beta"]}
    return {
        "models": {
            "alpha": {"loras": ["alpha-lora"], "backends": [{"id": "alpha-1", "url": alpha}], **back},
            "beta": {"backends": [{"id": "beta-1", "url": beta.url, "model_name": "org/beta", **beta_backend}]},
        }
    }


@pytest.fixture
def beta() -> Any:
    with ScriptedEngine("org/beta") as engine:
        yield engine


def down(edge: Edge, backend: str) -> None:
    wait_until(f"{backend} to be down", lambda: edge.backends()[backend]["state"] in ("down", "starting"), 10)


def test_another_model_serves_while_none_of_this_ones_backends_is_ready(
    engine: ScriptedEngine, beta: ScriptedEngine
) -> None:
    with Edge(fleet(engine.url, beta)) as edge:
        first = edge.chat(chat("alpha"))
        assert first.status_code == 200 and HEADER not in first.headers
        engine.kill()
        # From the moment of the crash on: the first one meets a refused connection. (The engine of beta answers 404 to
        # other names than its own.)
        for number in range(6):
            body = chat("alpha", stream=number % 2 == 0, tokens=3)
            answer = edge.chat(body, headers={"X-Request-Id": f"back-{number}"})
            assert (answer.status_code, answer.headers.get(HEADER)) == (200, "beta")
        line = edge.log_of("back-5")
        assert (line["model"], line["fallback_from"], line["backend"]) == ("beta", "alpha", "beta-1")
        # Workers add up their counts once a second.
        wait_until("the count", lambda: edge.metric("signalbox_fallbacks_total", model="alpha", served="beta") == 6)
        down(edge, "alpha-1")
        assert edge.chat(chat("alpha-lora")).headers[HEADER] == "beta"
        engine.start()
        wait_until("alpha to serve again", lambda: HEADER not in edge.chat(chat("alpha")).headers, 15)
        edge.idle()


def test_without_fallback_there_is_none(beta: ScriptedEngine) -> None:
    with Edge(fleet(f"http://127.0.0.1:{free_port()}", beta, fallback=[]), ready=False) as edge:
        down(edge, "alpha-1")
        for _ in range(3):
            answer = edge.chat(chat("alpha"))
            assert answer.status_code in (502, 503) and HEADER not in answer.headers
        assert beta.started() == 0


def test_a_fallback_has_no_fallback_of_its_own(engine: ScriptedEngine) -> None:
    content = fleet(f"http://127.0.0.1:{free_port()}", engine)
    content["models"]["beta"]["backends"] = [{"id": "beta-1", "url": f"http://127.0.0.1:{free_port()}"}]
    content["models"]["beta"]["fallback"] = ["gamma"]
    content["models"]["gamma"] = {"backends": [{"id": "gamma-1", "url": engine.url, "model_name": "alpha"}]}
    with Edge(content, ready=False) as edge:
        down(edge, "beta-1")
        wait_until("gamma to be ready", lambda: edge.backends()["gamma-1"]["state"] == "ready")
        wait_until("beta to fall back", lambda: edge.chat(chat("beta")).headers.get(HEADER) == "gamma")
        answer = edge.chat(chat("alpha"))
        check_error(
            answer, answer.status_code, "no_backend_ready" if answer.status_code == 503 else "engine_unreachable"
        )
        assert "alpha" in answer.text and HEADER not in answer.headers
        # Each in the order of the list.
        content["models"]["alpha"]["fallback"] = ["beta", "gamma"]
        edge.write(content)
        edge.reload()
        assert edge.chat(chat("alpha")).headers[HEADER] == "gamma"


def test_a_full_model_is_waited_for(engine: ScriptedEngine, beta: ScriptedEngine) -> None:
    """Full is not down: what waits for its own model keeps the prefix cache and the answer's quality."""
    content = fleet(engine.url, beta)
    content["models"]["alpha"]["backends"][0]["limit"] = 1
    with Edge(content) as edge:
        holder = hold(edge)
        client = edge.raw()
        client.request(CHAT, chat("alpha"))
        wait_until("the request to wait", lambda: queue_length(edge) == 1)
        holder.close()
        head = client.head()
        assert head.status == 200 and HEADER.lower() not in {name.lower() for name in head.headers}
        client.close()
        assert beta.started() == 0


def test_a_fallback_at_its_limit_lets_wait(beta: ScriptedEngine) -> None:
    """Its queue, its limit: a request for another model does not overtake there."""
    with Edge(fleet(f"http://127.0.0.1:{free_port()}", beta, limit=1), ready=False) as edge:
        wait_until("beta to be ready", lambda: edge.backends()["beta-1"]["state"] == "ready")
        holder = edge.raw()
        holder.request(CHAT, chat("beta", stream=True, tokens=100_000, delay_ms=50))
        assert holder.head().status == 200
        client = edge.raw()
        client.request(CHAT, chat("alpha"), headers={"X-Request-Id": "waits-there"})
        wait_until("the request to wait", lambda: queue_length(edge) == 1)
        assert edge.admin("GET", "/requests").json()["requests"][1]["model"] == "beta"
        holder.close()
        assert client.head().status == 200
        client.close()
        line = edge.log_of("waits-there")
        assert line["queue_ms"] > 0 and line["fallback_from"] == "alpha"
        edge.idle()
