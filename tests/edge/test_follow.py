"""``signalbox edge``: one more edge whose fleet and keys come from a control plane elsewhere, through Redis."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import yaml

from control.paths import REPOSITORY
from control.sharing import document
from control.sharing.draining import SharedGate
from control.sharing.publish import publish, repeat
from tests.support.client import chat
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.follower import Follower
from tests.support.net import wait_until
from tests.support.queueing import hold
from tests.support.redis import Redis, needs_redis

pytestmark = [pytest.mark.slow, needs_redis]


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis() as one:
        yield one


def fleet(redis: Redis, engine: ScriptedEngine, **model: Any) -> dict[str, Any]:
    backends = [{"id": "alpha-1", "url": engine.url}]
    return {"edge": {"state": redis.url}, "models": {"alpha": {"backends": backends, **model}}}


def told(edge: Edge) -> list[str]:
    site = edge.site
    return publish(site.loaded, site.paths)


def change(edge: Edge, content: dict[str, Any]) -> int:
    """What a person does: edits fleet.yaml, and reloads. The version that others take."""
    edge.write(content)
    edge.reload()
    told(edge)
    found = json.loads(edge.paths.published.read_text())
    return int(found["version"])


@contextmanager
def both(redis: Redis, content: dict[str, Any], **settings: Any) -> Iterator[tuple[Edge, Follower]]:
    """The edge of a control plane, and one that follows."""
    with Edge(content) as first:
        assert "take this fleet as version" in told(first)[0]
        with Follower({"redis": redis.url}, **settings) as second:
            yield first, second.until_taken()


def test_the_fleet_comes_by_version_and_changes_live(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine)
    with both(redis, content) as (first, second):
        assert second.chat(chat("alpha", tokens=1)).status_code == 200
        generation = second.state()["generation"]
        content["models"]["alpha"]["aliases"] = ["another"]
        version = change(first, content)
        second.until_taken(version)
        assert second.chat(chat("another", tokens=1)).status_code == 200
        state = second.state()
        assert state["fleet_version"] == version and state["generation"] == generation, "no reload was needed"
        assert state["published_version"] == version == second.metric("signalbox_fleet_published_version")
        assert first.state()["published_version"] is None, "it follows nobody"
        assert first.metric("signalbox_fleet_hash") == second.metric("signalbox_fleet_hash")
        assert second.status()["problem"] == ""
        shown = second.command("status")
        assert shown.returncode == 0 and f"version {version}, through Redis" in shown.stdout, shown
        assert told(first) == [], "the same again is no news"
        # Somebody else's command on its file.
        assert "edge only" in second.command("reload").stderr
        assert "keeps this edge running" in second.command("stop").stderr
        assert second.end() == 0
        assert second.process.pid() is None, "it has ended its edge"
        second.start().until_taken(version)
        assert second.command("down").returncode == 0
        assert second.process.pid() is None and second.daemon is not None and second.daemon.wait(5) == 0


def test_keys_come_too_and_the_engine_s_own_stays_where_it_is(redis: Redis) -> None:
    with ScriptedEngine("alpha", api_key="canary-engine-key") as engine:
        content = fleet(redis, engine)
        content["edge"]["keys"] = "keys.yaml"
        content["models"]["alpha"]["backends"][0]["key_file"] = "secrets/engine.key"
        first = Edge(content)
        for edge in (first, second := Follower({"redis": redis.url})):
            (edge.folder / "secrets").mkdir()
            (edge.folder / "secrets" / "engine.key").write_text("canary-engine-key\n")
        key = keys_command(first, "create", "alice")
        with first, second:
            told(first)
            second.until_taken()
            headers = {"Authorization": f"Bearer {key}"}
            assert second.chat(chat("alpha", tokens=1), headers=headers).status_code == 200
            assert second.chat(chat("alpha", tokens=1)).status_code == 401
            there = redis.call("HGET", "signalbox:fleet", "document")
            assert "canary" not in there and key not in there and str(first.folder) not in there
            assert str(first.folder) not in second.state().__repr__()
            # One command, on the control plane's machine.
            keys_command(first, "disable", "alice")
            refused = wait_until(
                "the key to be refused",
                lambda: second.chat(chat("alpha", tokens=1), headers=headers).status_code in (401, 403),
            )
            assert refused
            for path in (second.paths.taken, first.paths.published):
                assert path.stat().st_mode & 0o777 == 0o600


def keys_command(edge: Edge, *words: str) -> str:
    command = [sys.executable, "-m", "control", "--fleet", str(edge.fleet_file), "keys", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bad(good: document.Document, **changes: Any) -> document.Document:
    return document.Document(**{**good.__dict__, "version": good.version + 100, **changes})


def test_a_bad_version_never_replaces_a_good_one(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine)
    with both(redis, content) as (first, second):
        good = document.read(second.paths.taken.read_text())

        def put(version: int, text: str) -> None:
            redis.call("HSET", "signalbox:fleet", "version", version, "document", text)

        def refused(why: str) -> None:
            wait_until(f"{why!r} in the status", lambda: why in second.status()["problem"], 10)
            assert second.status()["version"] == good.version
            assert second.chat(chat("alpha", tokens=1)).status_code == 200
            assert why in second.command("status").stdout.replace("\n", " ")

        put(good.version + 1, "{broken")
        refused("no JSON")
        put(good.version + 2, json.dumps({"format": 9}))
        refused("the same release")
        entry = {**good.fleet["backends"]["alpha-1"], "key_file": "/etc/shadow"}
        evil = bad(good, fleet={**good.fleet, "backends": {"alpha-1": entry}})
        put(evil.version, evil.encode())
        refused("is not below the fleet's folder")
        # In order as far as this machine can see; the edge itself refuses it.
        broken = bad(evil, fleet={**good.fleet, "names": {"alpha": "nothing"}})
        put(broken.version, broken.encode())
        refused("the edge refused PUT /fleet")
        entry = {**good.fleet["backends"]["alpha-1"], "scheme": "https", "ca": "certs/ca.pem"}
        lacking = bad(broken, fleet={**good.fleet, "backends": {"alpha-1": entry}})
        put(lacking.version, lacking.encode())
        refused("on this machine")
        assert second.error_log().count("[emerg]") == 0
        # The next good one heals.
        version = change(first, {**content, "default_model": "alpha"})
        assert version > lacking.version
        second.until_taken(version)
        assert second.status()["problem"] == ""
        assert second.said().count("was not taken") == 5, "each was told once"


def test_it_starts_without_redis_and_goes_on_when_it_is_killed(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine)
    with both(redis, content) as (_, second):
        version = second.status()["version"]
        pid = second.process.pid()
        second.end(signal.SIGKILL)
        assert second.chat(chat("alpha", tokens=1)).status_code == 200
        second.start()
        wait_until("it to follow again", lambda: second.said().count("Nothing changed") == 1, 10)
        assert second.process.pid() == pid, "the edge ran on"
        second.end()
        redis.kill()
        second.start().until_taken(version)
        assert second.chat(chat("alpha", tokens=1)).status_code == 200
        assert "does not answer" in second.said()
        # A dead nginx is started again.
        master = psutil.Process(second.process.pid())
        for process in (*master.children(), master):
            process.kill()
        wait_until("the edge to be back", lambda: second.process.pid() not in (None, master.pid), 15)
        second.until_ready()
        redis.start()


def test_a_redis_that_begins_anew_is_told_again(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine)
    with both(redis, content) as (first, second):
        version = second.status()["version"]
        redis.kill()
        content["models"]["alpha"]["aliases"] = ["later"]
        newer = change(first, content)
        assert newer > version
        assert any("were not told" in line for line in told(first))
        redis.start()
        site = first.site
        assert "no fleet" in repeat(site.loaded, site.paths)
        assert repeat(site.loaded, site.paths) == ""
        second.until_taken(newer)
        assert second.chat(chat("later", tokens=1)).status_code == 200


def test_nobody_is_let_in_without_a_key_by_mistake(redis: Redis, engine: ScriptedEngine) -> None:
    """A fleet that listens on loopback needs no keys; an edge that others reach does."""
    with Edge(fleet(redis, engine)) as first:
        told(first)
        second = Follower({"redis": redis.url})
        listen = f"0.0.0.0:{second.port}"
        second.fleet_file.write_text(second.fleet_file.read_text().replace(f"127.0.0.1:{second.port}", listen))
        with second:
            wait_until("it to be refused", lambda: "asks for no API keys" in second.status().get("problem", ""), 15)
            assert second.process.pid() is None
            settings = yaml.safe_load(second.fleet_file.read_text())
            settings["edge"]["keys"] = "none"
            second.fleet_file.write_text(yaml.safe_dump(settings))
            assert second.daemon is not None
            second.daemon.send_signal(signal.SIGHUP)
            second.until_taken()


def test_an_engine_is_empty_only_when_every_edge_is_done_with_it(redis: Redis, engine: ScriptedEngine) -> None:
    content = fleet(redis, engine)
    address = engine.url.removeprefix("http://")
    with both(redis, content) as (first, second):
        gate = SharedGate(first.paths, lambda: first.site.loaded)
        stream = hold(second)
        wait_until("the other's stream to be counted", lambda: gate.running(address) == (1, ["alpha-1"]), 5)
        assert gate.hold("alpha-1")
        # Until the other has heard of it, it may send more there.
        wait_until("the other edge to drain", lambda: second.backends()["alpha-1"]["drained_by"] == ["control"], 5)
        assert second.chat(chat("alpha", tokens=1)).status_code == 503
        wait_until("its stream alone to count", lambda: gate.running(address) == (1, ["alpha-1"]), 5)
        stream.close()
        wait_until("nothing to run there", lambda: gate.running(address) == (0, ["alpha-1"]), 5)
        gate.release("alpha-1")
        second.until_ready()
        # An engine that leaves: not before the other's fleet is without it.
        with ScriptedEngine("alpha") as another:
            content["models"]["alpha"]["backends"] = [{"id": "alpha-2", "url": another.url}]
            first.write(content)
            first.reload()
            wait_until("the other edge's word", lambda: gate.running(address) == (1, []), 5)
            told(first)
            wait_until("the other edge to follow", lambda: gate.running(address) == (0, []), 5)
