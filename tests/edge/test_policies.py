"""Which engine gets a request: every policy, weights and tiers, with real nginx and two workers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from tests.support.client import CHAT, at_once, chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import wait_until

#: Long enough to be worth a place in an engine's cache.
SYSTEM = "You answer as a signalman would: briefly, kindly, and in the order of the trains. " * 40


@pytest.fixture(scope="module")
def _trio() -> Iterator[list[ScriptedEngine]]:
    engines = [ScriptedEngine("alpha") for _ in range(3)]
    try:
        for engine in engines:
            engine.launch()
        yield [engine.ready() for engine in engines]
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture
def trio(_trio: list[ScriptedEngine]) -> list[ScriptedEngine]:
    """Three engines, counters at zero. Tests leave them running."""
    for engine in _trio:
        engine.reset()
    return _trio


def fleet(policy: str, *engines: ScriptedEngine, **settings: list[Any]) -> dict[str, Any]:
    """Model alpha on these engines; ``settings`` have a value for each: weight=[3, 1]. No policy: the default."""
    backends = [
        {"id": f"alpha-{number}", "url": engine.url, **{key: values[number] for key, values in settings.items()}}
        for number, engine in enumerate(engines)
    ]
    model: dict[str, Any] = {"backends": backends}
    if policy:
        model["routing"] = {"policy": policy}
    return {"models": {"alpha": model}}


def talk(*texts: str, system: str = SYSTEM, **script: Any) -> dict[str, Any]:
    """A conversation as a client sends it: what the user said, each time but the last with an answer."""
    messages = [{"role": "system", "content": system}] if system else []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": f"On {text}: yes."}]
    return {**chat("alpha", **script), "messages": messages[:-1]}


def counts(engines: list[ScriptedEngine]) -> list[int]:
    return [engine.started() for engine in engines]


def serve(edge: Edge, engines: list[ScriptedEngine], body: dict[str, Any], **options: Any) -> int:
    """Send it and return the index of the engine that served. A new connection each time: any worker may take it."""
    before, running = counts(engines), edge.in_flight()
    answer = edge.post(CHAT, body, new_connection=True, **options)
    assert answer.status_code == 200, answer.text
    served = [number for number, count in enumerate(counts(engines)) if count != before[number]]
    assert len(served) == 1
    wait_until("its slot to be free", lambda: edge.in_flight() == running)
    return served[0]


def until_started(engines: list[ScriptedEngine], count: int) -> None:
    wait_until("the request to start", lambda: sum(counts(engines)) == count)


@contextmanager
def held(edge: Edge, engines: list[ScriptedEngine], bodies: list[dict[str, Any]]) -> Iterator[None]:
    """Requests that run for as long as the block, begun one after the other."""
    started = sum(counts(engines))
    answers: list[Future[Any]] = []
    with ThreadPoolExecutor(len(bodies)) as pool:
        try:
            for number, body in enumerate(bodies, 1):
                body = {**body, "stream": True, "scripted": {"first_ms": 60_000}}
                answers.append(pool.submit(edge.post, CHAT, body, new_connection=True, stream=True))
                until_started(engines, started + number)
            yield
        finally:
            for answer in answers:
                answer.result().close()
    edge.idle()


class TestPrefix:
    def test_a_growing_conversation_stays_with_its_engine(self, trio: list[ScriptedEngine]) -> None:
        """By default, short messages included, whichever worker gets it."""
        with Edge(fleet("", *trio)) as edge:
            for name in ("a", "b", "c", "d"):
                texts = [f"{name} asks number {number}" for number in range(6)]
                served = {serve(edge, trio, talk(*texts[: turn + 1], system=name)) for turn in range(6)}
                assert len(served) == 1

    def test_different_beginnings_spread(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge:
            for number in range(18):
                serve(edge, trio, talk("hello", system=f"{number} {SYSTEM}"))
            assert min(counts(trio)) >= 3

    def test_a_common_beginning_draws_to_one_engine_while_that_is_idle(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge:
            assert len({serve(edge, trio, talk(f"user {number}")) for number in range(8)}) == 1

    def test_what_is_too_short_to_matter_draws_nobody(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge:
            for number in range(18):
                serve(edge, trio, talk(f"user {number}", system="You are helpful."))
            assert min(counts(trio)) >= 3

    def test_a_common_beginning_does_not_starve_the_others(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge, held(edge, trio, [talk(f"user {n}") for n in range(12)]):
            assert min(counts(trio)) >= 3

    def test_a_busy_favourite_gives_way_and_the_map_learns(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge:
            favourite = serve(edge, trio, talk("first"))
            with held(edge, trio, [talk("first")] * 9):
                # All nine follow the first; then it is eight above the others.
                assert counts(trio)[favourite] == 10
                second = serve(edge, trio, talk("first", "second"))
                assert second != favourite
                # Two are idle now; one of them has the conversation.
                for turn in range(3, 8):
                    assert serve(edge, trio, talk(*["first", "second", "third", "more"][: turn - 1])) == second
            # And the other one still knows the beginning.
            assert serve(edge, trio, talk("first", "second", "third", "other")) in (favourite, second)

    def test_the_map_survives_a_reload(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("prefix", *trio)) as edge:
            systems = [f"{number} {SYSTEM}" for number in range(8)]
            before = [serve(edge, trio, talk("hello", system=system)) for system in systems]
            edge.reload(force=True)
            assert [serve(edge, trio, talk("hello", "again", system=system)) for system in systems] == before
            assert len(set(before)) > 1

    def test_salt_and_tools_are_part_of_the_beginning(self, trio: list[ScriptedEngine]) -> None:
        tools = [{"type": "function", "function": {"name": "signal", "parameters": {}}}]
        with Edge(fleet("prefix", *trio)) as edge:
            serve(edge, trio, talk("hello"))
            for more in [{"cache_salt": f"salt {number}"} for number in range(12)] + [{"tools": tools}]:
                serve(edge, trio, {**talk("hello"), **more})
            assert min(counts(trio)) >= 2

    def test_other_shapes_of_prompts_stay_too(self, trio: list[ScriptedEngine]) -> None:
        shapes = {"/v1/completions": "prompt", "/v1/responses": "input", "/v1/embeddings": "input"}
        with Edge(fleet("prefix", *trio)) as edge:
            for path, key in shapes.items():
                for text in ("one ", "two ", "three "):
                    for turn in range(1, 4):
                        answer = edge.post(path, {"model": "alpha", key: text * 800 * turn}, new_connection=True)
                        assert answer.status_code == 200
                        edge.idle()
                assert sorted(engine.started(path) for engine in trio)[-1] % 3 == 0
                assert all(engine.started(path) % 3 == 0 for engine in trio)

    def test_an_engine_that_is_gone_is_no_favourite(self, engine: ScriptedEngine, engine_2: ScriptedEngine) -> None:
        both = [engine, engine_2]
        with Edge(fleet("prefix", *both)) as edge:
            favourite = serve(edge, both, talk("first"))
            both[favourite].kill()
            for turn in range(1, 4):
                assert edge.post(CHAT, talk(*["first", "second", "third"][:turn])).status_code == 200
            assert both[1 - favourite].started() == 3


class TestOthers:
    def test_round_robin_keeps_to_the_weights(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("round_robin", *trio, weight=[3, 1, 2])) as edge:
            for _ in range(18):
                assert edge.post(CHAT, chat("alpha"), new_connection=True).status_code == 200
            assert counts(trio) == [9, 3, 6]

    def test_least_loaded_keeps_to_the_weights(self, trio: list[ScriptedEngine]) -> None:
        bodies = [chat("alpha")] * 12
        with Edge(fleet("least_loaded", *trio, weight=[3, 1, 2])) as edge, held(edge, trio, bodies):
            assert counts(trio) == [6, 2, 4]

    def test_a_request_weighs_its_sequences(self, trio: list[ScriptedEngine]) -> None:
        bodies = [{**chat("alpha"), "n": 4}, *[chat("alpha")] * 8]
        with Edge(fleet("least_loaded", *trio)) as edge, held(edge, trio, bodies):
            assert sorted(counts(trio)) == [1, 4, 4]
            assert sorted(backend["in_flight"] for backend in edge.backends().values()) == [4, 4, 4]

    def test_requests_that_wait_in_an_engine_count_once(self) -> None:
        """Ours are counted in flight already; only those that others sent are known from the engine alone."""
        names = ("alpha", "alpha", "beta", "beta")
        options: tuple[dict[str, int], ...] = ({"max_running": 1}, {}, {}, {})
        with ExitStack() as running:
            engines = [ScriptedEngine(name, **more) for name, more in zip(names, options, strict=True)]
            for engine in engines:
                running.enter_context(engine)
            alphas, (shared, own) = engines[:2], engines[2:]
            content = fleet("least_loaded", *alphas)
            content["models"]["beta"] = {
                "backends": [{"url": engine.url} for engine in (shared, own)],
                "routing": {"policy": "least_loaded"},
            }
            content["edge"] = {"workers": 1, "probe": {"metrics": "250ms", "idle": "1h"}}
            edge = running.enter_context(Edge(content))
            running.enter_context(held(edge, alphas, [chat("alpha")] * 6))
            assert counts(alphas) == [3, 3]
            wait_until("the two that wait to be seen", lambda: edge.backends()["alpha-0"]["waiting"] == 2)
            shared.configure(waiting=2)

            def avoided() -> bool:
                before = shared.started()
                return all(edge.post(CHAT, chat("beta")).ok for _ in range(4)) and shared.started() == before

            wait_until("the worker to know both", avoided)
            for number in (7, 8):
                client = running.enter_context(closing(edge.raw()))
                client.request(CHAT, chat("alpha", stream=True, first_ms=60_000))
                until_started(alphas, number)
            assert counts(alphas) == [4, 4]

    def test_random_two_uses_all_and_avoids_the_busy(self, trio: list[ScriptedEngine]) -> None:
        with Edge(fleet("random_two", *trio)) as edge:
            with held(edge, trio, [chat("alpha")] * 12):
                assert min(counts(trio)) >= 2
            at_once(4, lambda _: [edge.post(CHAT, chat("alpha")) for _ in range(10)])
            assert min(counts(trio)) >= 6

    def test_a_new_weight_counts_without_a_reload(self, trio: list[ScriptedEngine]) -> None:
        two = trio[:2]
        with Edge(fleet("round_robin", *two)) as edge:
            generation = edge.state()["generation"]
            edge.write(fleet("round_robin", *two, weight=[1, 3]))
            edge.reload()
            for _ in range(12):
                assert edge.post(CHAT, chat("alpha"), new_connection=True).status_code == 200
            assert counts(two) == [3, 9]
            assert edge.state()["generation"] == generation

    @pytest.mark.parametrize("where", ["header", "user", "prompt_cache_key"])
    def test_a_session_stays(self, trio: list[ScriptedEngine], where: str) -> None:
        with Edge(fleet("session", *trio)) as edge:
            homes: list[int] = []
            for session in (f"session-{number}" for number in range(12)):
                body = chat("alpha") if where == "header" else {**chat("alpha"), where: session}
                headers = {"X-Session-Id": session} if where == "header" else {}
                served = {serve(edge, trio, {**body, "seed": n}, headers=headers) for n in range(2)}
                assert len(served) == 1
                homes += served
            assert len(set(homes)) > 1
            edge.reload(force=True)
            body = chat("alpha") if where == "header" else {**chat("alpha"), where: "session-0"}
            headers = {"X-Session-Id": "session-0"} if where == "header" else {}
            assert serve(edge, trio, body, headers=headers) == homes[0]

    def test_a_session_leaves_a_busy_engine_and_none_spreads(self, trio: list[ScriptedEngine]) -> None:
        body = {**chat("alpha"), "user": "somebody"}
        with Edge(fleet("session", *trio)) as edge:
            home = serve(edge, trio, body)
            with held(edge, trio, [body] * 5):
                assert counts(trio)[home] == 6
                assert serve(edge, trio, body) != home
            assert serve(edge, trio, body) == home
            for nothing in ({}, {"user": None}, {"user": ""}, {"user": 7}):
                for _ in range(3):
                    serve(edge, trio, {**chat("alpha"), **nothing})
            assert min(counts(trio)) >= 3

    @pytest.mark.parametrize("policy", ["prefix", "least_loaded", "session", "random_two", "round_robin"])
    def test_the_second_tier_gets_what_the_first_cannot_take(self, trio: list[ScriptedEngine], policy: str) -> None:
        body = {**chat("alpha"), "user": "somebody"}
        with Edge(fleet(policy, *trio, tier=[2, 1, 1], limit=[9, 2, 2])) as edge:
            for _ in range(6):
                serve(edge, trio, body)
            assert counts(trio)[0] == 0
            with held(edge, trio, [body] * 4):
                assert counts(trio)[0] == 0
                assert serve(edge, trio, body) == 0
            assert serve(edge, trio, body) != 0

    def test_the_second_tier_serves_when_the_first_is_gone(
        self, engine: ScriptedEngine, engine_2: ScriptedEngine
    ) -> None:
        with Edge(fleet("", engine, engine_2, tier=[1, 2])) as edge:
            engine.kill()
            for _ in range(3):
                assert edge.post(CHAT, chat("alpha")).status_code == 200
            assert engine_2.started() == 3
