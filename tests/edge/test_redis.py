"""Several edges with one Redis: limits hold for all of them together, and Redis may go and come back."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from control.edge.site import Site
from tests.support.client import at_once, chat, check_error, retry_after
from tests.support.dns import NAME, name_server
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import free_port, wait_until
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def fleet(redis: Redis, engine: ScriptedEngine, limits: dict[str, int], **state: Any) -> dict[str, Any]:
    """Model alpha with these limits; a slow answer of Redis is one that a busy machine gives, unless ``state`` says."""
    return {
        "edge": {"state": {"redis": redis.url, "timeout": "5s", **state}},
        "models": {"alpha": {"backends": [{"id": "alpha-1", "url": engine.url}], "limits": limits}},
    }


@contextmanager
def edges(content: dict[str, Any], number: int = 2) -> Iterator[list[Edge]]:
    """So many edges of one fleet, each of which has seen all others."""
    with ExitStack() as stack:
        found = [stack.enter_context(Edge(content)) for _ in range(number)]
        for edge in found:
            wait_until("all edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == number)  # type: ignore[misc]
        yield found


def ask(edge: Edge) -> int:
    return edge.chat(chat("alpha", tokens=1), new_connection=True).status_code


def test_exactly_so_many_requests_pass_through_all_edges(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, {"requests_per_minute": 40})) as both:
        began = time.monotonic()
        codes = at_once(80, lambda number: ask(both[number % 2]))
        assert 40 <= codes.count(200) <= 41 + (time.monotonic() - began) / 1.5
        assert set(codes) == {200, 429}


def test_a_budget_is_one_for_all_edges_and_is_settled(redis: Redis, engine: ScriptedEngine) -> None:
    with edges(fleet(redis, engine, {"tokens_per_day": 100_000})) as both:
        answers = [both[number % 2].chat({**chat("alpha", tokens=10), "max_tokens": 1000}) for number in range(10)]
        used = sum(answer.json()["usage"]["total_tokens"] for answer in answers)
        key = next(key for key in redis.names() if "budget/" in key)
        wait_until("all to be settled", lambda: int(redis.call("GET", key)) == used)


def test_without_redis_each_edge_has_its_share_and_says_so(redis: Redis, engine: ScriptedEngine) -> None:
    """Killed, then back without anything that it knew."""
    limits = {"requests_per_minute": 40, "tokens_per_day": 1_000_000}
    with edges(fleet(redis, engine, limits)) as both:
        assert [ask(edge) for edge in both] == [200, 200]
        key = next(key for key in redis.names() if "budget/" in key)
        before = wait_until("both to be settled", lambda: settled_below(redis, key, 100))
        redis.kill()
        for edge in both:
            codes = [ask(edge) for _ in range(30)]
            assert 19 <= codes.count(200) <= 23 and set(codes) == {200, 429}
            state = edge.state()["state"]
            assert state["kind"] == "redis" and not state["ok"] and time.time() - state["since"] < 60
            assert edge.metric("signalbox_state_up") == 0
        redis.start()
        for edge in both:
            wait_until("Redis to be seen again", lambda edge=edge: edge.state()["state"]["ok"])  # type: ignore[misc]
            assert edge.metric("signalbox_state_up") == 1
            log = edge.error_log()
            assert log.count("no answer") == 1 and log.count("answers again") == 1
        # What was spent before is still spent, and what was spent meanwhile is counted.
        wait_until("what was spent to be known", lambda: int(redis.call("GET", key) or 0) >= before + 40 * 3)
        assert [ask(edge) for edge in both] == [200, 200]


def settled_below(redis: Redis, key: str, most: int) -> int:
    spent = int(redis.call("GET", key))
    return spent if 0 < spent < most else 0


def test_a_redis_that_hangs_costs_the_first_request_only(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine, {"requests_per_minute": 10_000, "tokens_per_day": 10**9}, timeout="500ms")
    with Edge(content) as edge:
        assert ask(edge) == 200
        redis.freeze()
        # Perhaps one in each worker at the same time.
        took = sorted(timed(edge) for _ in range(30))
        assert sum(took[:-2]) < 5 and took[-1] < 3, took
        redis.thaw()
        wait_until("Redis to be seen again", lambda: edge.state()["state"]["ok"])
        assert ask(edge) == 200


def timed(edge: Edge) -> float:
    began = time.monotonic()
    assert ask(edge) == 200
    return time.monotonic() - began


def test_what_was_used_is_told_once_redis_answers_again(redis: Redis, engine: ScriptedEngine) -> None:
    with Edge(fleet(redis, engine, {"tokens_per_day": 1_000_000}, timeout="500ms")) as edge:
        stream = edge.raw()
        body = {**chat("alpha", stream=True, tokens=20, delay_ms=50), "stream_options": {"include_usage": True}}
        stream.request("/v1/chat/completions", {**body, "max_tokens": 2_000})
        assert stream.head().status == 200
        key = next(key for key in redis.names() if "budget/" in key)
        assert int(redis.call("GET", key)) > 2_000
        redis.freeze()
        list(stream.events())
        edge.idle()
        redis.thaw()
        wait_until("it to be settled", lambda: 20 <= int(redis.call("GET", key)) < 200, 10)
        stream.close()


def test_refused_when_the_fleet_says_so(redis: Redis, engine: ScriptedEngine) -> None:
    with Edge(fleet(redis, engine, {"requests_per_minute": 100}, on_error="refuse")) as edge:
        assert ask(edge) == 200
        redis.kill()
        answer = edge.chat(chat("alpha", tokens=1))
        check_error(answer, 503, "state_unavailable")
        assert retry_after(answer) == 1
        redis.start()
        wait_until("to be served again", lambda: ask(edge) == 200)


def test_scripts_that_redis_forgot_are_sent_again(redis: Redis, engine: ScriptedEngine) -> None:
    with Edge(fleet(redis, engine, {"requests_per_minute": 100})) as edge:
        assert ask(edge) == 200
        redis.call("SCRIPT", "FLUSH")
        redis.call("CLIENT", "KILL", "TYPE", "normal")
        assert [ask(edge) for _ in range(4)] == [200] * 4
        assert edge.state()["state"]["ok"] and "no answer" not in edge.error_log()


def test_the_password_is_in_no_file_but_its_own(engine: ScriptedEngine, tmp_path: Path) -> None:
    canary = "canary-9f3b1c-password"
    file = tmp_path / "redis.pw"
    file.write_text(canary + "\n")
    with Redis(password=canary) as redis:
        content = fleet(redis, engine, {"requests_per_minute": 100}, password_file=str(file))
        with Edge(content) as edge:
            assert ask(edge) == 200
            wait_until("Redis to know the edge", lambda: "signalbox:edges" in redis.names())
            redis.call("CONFIG", "SET", "requirepass", "another")
            redis.password = "another"
            redis.call("CLIENT", "KILL", "TYPE", "normal")
            assert ask(edge) == 200
            wait_until("the refusal to be said", lambda: "AUTH" in edge.error_log())
            written = [path for path in edge.folder.rglob("*") if path.is_file()]
            assert len(written) > 5
            for path in written:
                assert canary.encode() not in path.read_bytes(), path
            assert canary not in edge.admin("GET", "/state").text + edge.admin("GET", "/metrics").text


class Trusting(Edge):
    """An edge on a machine whose authorities are those of ``bundle``."""

    bundle = ""

    @property
    def site(self) -> Site:
        site = super().site
        profile = dataclasses.replace(site.engine.profile, ca_bundle=self.bundle)
        return dataclasses.replace(site, engine=dataclasses.replace(site.engine, profile=profile))


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that workers may read, whoever they run as."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_tls_with_a_certificate_that_is_checked(engine: ScriptedEngine, shared_folder: Path) -> None:
    authority, port = trustme.CA(), free_port()
    pair = authority.issue_cert(NAME)
    pair.private_key_and_cert_chain_pem.write_to_path(str(shared_folder / "redis.pem"))
    authority.cert_pem.write_to_path(str(shared_folder / "ca.pem"))
    files = {"tls_cert_file": str(shared_folder / "redis.pem"), "tls_key_file": str(shared_folder / "redis.pem")}
    with (
        name_server() as (zone, dns),
        Redis(
            tls_port=str(port), tls_ca_cert_file=str(shared_folder / "ca.pem"), tls_auth_clients="no", **files
        ) as redis,
    ):
        zone.address = "127.0.0.1"
        content = fleet(redis, engine, {"requests_per_minute": 100})
        content["edge"] |= {"dns": f"127.0.0.1:{dns}"}
        content["edge"]["state"]["redis"] = f"rediss://{NAME}:{port}"
        for bundle, trusted in ((shared_folder / "ca.pem", True), (Path("/etc/ssl/certs/ca-certificates.crt"), False)):
            Trusting.bundle = str(bundle)
            with Trusting(content) as edge:
                wait_until("Redis to be asked", lambda edge=edge, ok=trusted: edge.state()["state"]["ok"] == ok)  # type: ignore[misc]
                assert ask(edge) == 200
                assert ("TLS" in edge.error_log()) is not trusted
                found = [name for name in redis.names() if "rate/" in name]
                assert bool(found) is trusted
                if found:
                    redis.call("DEL", *found)
