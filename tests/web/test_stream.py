"""The view's thread and the event stream."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from control.web import poller
from control.web.live import Listeners
from control.web.poller import EdgeAbsent, FleetView
from tests.support.net import wait_until
from tests.web.fakes import FLEET, HOST, Sources, Status, backend, edge_state

OURS = {"Host": "127.0.0.1:9090"}


@pytest.fixture
def sources() -> Sources:
    return Sources()


def events(chunks: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Events of a stream, comments left out."""
    for chunk in chunks:
        text = chunk.decode() if isinstance(chunk, bytes) else chunk
        assert text.endswith("\n\n")
        if not text.startswith(":"):
            kind, data = text.rstrip("\n").split("\n")
            yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_one_thread_polls_for_everybody(sources: Sources) -> None:
    asked: list[str] = []

    def edge() -> Any:
        asked.append(threading.current_thread().name)
        return sources.state

    view = FleetView(FLEET, poller.Sources(edge, sources.ask_engines, lambda: HOST), 0.02)
    view.start()
    try:
        readers = [threading.Thread(target=lambda: [view.wait(n, 1) for n in range(5)]) for _ in range(20)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert view.wait(view.snapshot.version, 1) is not None
        assert set(asked[1:]) == {"fleet-view"}
        assert len(asked) - view.snapshot.version in (0, 1), "once per snapshot, however many wait"
    finally:
        view.close()


def test_a_source_that_fails_and_comes_back(sources: Sources, caplog: pytest.LogCaptureFixture) -> None:
    view = sources.view()
    sources.state = EdgeAbsent("The edge does not run.")
    for _ in range(5):
        snapshot = view.poll()
    assert snapshot.edge.state == "absent" and snapshot.backends[0].state == "unknown"
    assert [record.message for record in caplog.records].count("The edge does not run.") == 1
    sources.state = edge_state(backend("m-1"))
    assert view.poll().backends[0].state == "ready"


def test_an_exception_in_a_poll_does_not_end_the_thread(sources: Sources) -> None:
    troubles: list[Exception] = []

    def host() -> Any:
        if troubles:
            raise troubles.pop()
        return HOST

    view = FleetView(FLEET, poller.Sources(sources.ask_edge, sources.ask_engines, host), 0.01)
    view.start()
    try:
        troubles.append(OSError("no /proc today"))
        wait_until("the poll to fail", lambda: not troubles)
        assert view.wait(view.snapshot.version, 2) is not None
    finally:
        view.close()


def test_the_stream_sends_the_whole_then_only_what_changed(sources: Sources) -> None:
    view, app = sources.app()
    answer = app.test_client().get("/api/events?view=backends", headers=OURS, buffered=False)
    assert answer.content_type == "text/event-stream; charset=utf-8"
    stream = events(answer.response)  # type: ignore[arg-type]
    kind, whole = next(stream)
    assert kind == "whole" and 'id="backend-m-1"' in whole["main"] and "part-summary" in whole["parts"]

    sources.state = edge_state(backend("m-1", "down", reason="<b>refused"), backend("m-2", "starting"))
    view.poll()
    kind, parts = next(stream)
    assert kind == "parts" and set(parts) == {"backend-m-1", "part-summary"}
    assert 'data-state="down"' in parts["backend-m-1"] and "&lt;b&gt;refused" in parts["backend-m-1"]

    sources.state = edge_state(backend("m-1"), backend("new-1"))
    view.poll()
    kind, whole = next(stream)
    assert kind == "whole" and 'id="backend-new-1"' in whole["main"], "a row came: the tables are sent whole"
    answer.close()


def test_a_quiet_stream_gives_a_sign_of_life(sources: Sources) -> None:
    _, app = sources.app(heartbeat=0.0)
    answer = app.test_client().get("/api/events?view=backends", headers=OURS, buffered=False)
    chunks = iter(answer.response)
    assert b"event: whole" in next(chunks)  # type: ignore[operator]
    assert next(chunks) == b": still here\n\n"  # type: ignore[comparison-overlap]
    answer.close()


def test_streams_end_when_the_view_closes(sources: Sources) -> None:
    view, app = sources.app()
    answer = app.test_client().get("/api/events?view=backends", headers=OURS, buffered=False)
    chunks = iter(answer.response)
    next(chunks)
    threading.Timer(0.05, view.close).start()
    begun = time.monotonic()
    assert list(chunks) == [] and time.monotonic() - begun < 0.9
    answer.close()


def test_the_number_of_streams_is_bounded_and_places_come_back(sources: Sources) -> None:
    _, app = sources.app(listeners=2)
    client = app.test_client()
    first = client.get("/api/events?view=backends", headers=OURS, buffered=False)
    second = client.get("/api/events?view=backends", headers=OURS, buffered=False)
    refused = client.get("/api/events?view=backends", headers=OURS)
    assert refused.status_code == 503 and refused.mimetype == "text/plain" and refused.headers["Retry-After"] == "5"
    assert client.get("/", headers=OURS).status_code == 200
    first.close()  # never read from: its generator never started
    third = client.get("/api/events?view=backends", headers=OURS, buffered=False)
    assert third.status_code == 200
    assert client.head("/api/events", headers=OURS).status_code == 200, "HEAD holds no place"
    second.close()
    third.close()


def test_a_place_is_given_back_once() -> None:
    listeners = Listeners(1)
    leave = listeners.enter()
    assert leave is not None and listeners.enter() is None
    leave()
    leave()
    assert listeners.open == 0


def test_the_stream_speaks_the_pages_language(sources: Sources) -> None:
    _, app = sources.app()
    answer = app.test_client().get("/api/events?view=backends&lang=zh", headers=OURS, buffered=False)
    _, whole = next(events(answer.response))  # type: ignore[arg-type]
    assert "就绪" in whole["main"]
    answer.close()


def test_engines_of_a_changed_fleet(sources: Sources) -> None:
    view = sources.view()
    sources.engines = [Status("m-1", "failed", "failed", "ValueError: too little memory", restarts=4)]
    engine = view.poll().backends[0].engine
    assert engine is not None and engine.detail == "ValueError: too little memory" and engine.restarts == 4
