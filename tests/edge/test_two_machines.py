"""Two edges on two machines (network namespaces), the control plane on one of them, Redis and the engine on a third."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.edge.test_follow import change, told
from tests.edge.test_redis_order import line, occupy
from tests.edge.test_redis_slots import holders, kill_all
from tests.support.client import CHAT, at_once, chat, check_error
from tests.support.edge import Edge
from tests.support.net import wait_until
from tests.support.netns import EdgeThere, EngineThere, FollowerThere, RedisThere, machines
from tests.support.queueing import served
from tests.support.redis import needs_redis

pytestmark = [pytest.mark.slow, needs_redis]

LIMIT = 6
#: Seconds after which Redis takes what an edge had that is not heard of any more (shared_state.TTL).
LEASE = 5.0


@dataclass
class Town:
    engine: EngineThere
    redis: RedisThere
    first: EdgeThere
    second: FollowerThere

    @property
    def both(self) -> list[Edge]:
        return [self.first, self.second]


def fleet(town_redis: RedisThere, engine: EngineThere, limit: int = LIMIT, **model: Any) -> dict[str, Any]:
    return {
        "edge": {"state": {"redis": town_redis.url, "timeout": "5s"}},
        "models": {
            "alpha": {
                "backends": [{"id": "alpha-1", "url": engine.url, "limit": limit}],
                "queue": {"max_waiting": 1000},
                **model,
            }
        },
    }


@pytest.fixture(scope="module")
def _town() -> Iterator[Town]:
    with (
        machines(3) as (hub, one, two),
        EngineThere(hub, "alpha") as engine,
        RedisThere(hub) as redis,
        EdgeThere(one, fleet(redis, engine)) as first,
    ):
        with one.inside():
            told(first)
        with FollowerThere(two, {"redis": redis.url, "timeout": "5s"}) as second:
            yield Town(engine, redis, first, second)


@pytest.fixture
def town(_town: Town) -> Iterator[Town]:
    """Both edges run the same fleet, idle."""
    use(_town)
    yield _town
    for edge in _town.both:
        edge.idle()


def use(town: Town, limit: int = LIMIT, **model: Any) -> None:
    """A new fleet on the first machine is the second one's a moment later."""
    with town.first.machine.inside():
        version = change(town.first, fleet(town.redis, town.engine, limit, **model))
    town.second.until_taken(version)
    for edge in town.both:
        wait_until("both edges to be seen", lambda edge=edge: edge.state()["state"]["edges"] == 2)  # type: ignore[misc]
    town.engine.reset()


def test_a_fleet_of_the_one_is_the_fleet_of_the_other(town: Town) -> None:
    assert town.second.chat(chat("later", tokens=1)).status_code == 404
    use(town, aliases=["later"])
    assert town.second.chat(chat("later", tokens=1)).status_code == 200
    assert town.second.state()["fleet_version"] == town.second.status()["version"]


def test_slots_are_those_of_both_together(town: Town) -> None:
    body = chat("alpha", headers_after_ms=60)
    codes = at_once(48, lambda number: town.both[number % 2].chat(body, new_connection=True).status_code)
    assert codes == [200] * 48
    assert town.engine.counters()["peak"] == LIMIT


def test_limits_are_exact_over_both(town: Town) -> None:
    use(town, 100, limits={"requests_per_minute": 30, "concurrent": 5})
    held = [*holders(town.first, 3), *holders(town.second, 2)]
    for edge in town.both:
        check_error(edge.chat(chat("alpha")), 429, "concurrency_limit")
    for client in held:
        client.close()
    use(town, 100, limits={"requests_per_minute": 30})
    began = time.monotonic()
    codes = at_once(80, lambda number: town.both[number % 2].chat(chat("alpha", tokens=1)).status_code)
    # 5 of 30 were used; some come back with time, one every two seconds.
    back = int((time.monotonic() - began + 10) / 2) + 1
    assert 25 <= codes.count(200) <= 25 + back and set(codes) == {200, 429}, codes.count(200)


def test_one_order_over_both(town: Town) -> None:
    use(town, 1)
    waiting = occupy(town.first, 1, 2_500)
    names = [f"wait-{number:02}" for number in range(24)]
    waiting += [line(town.both[number // 3 % 2], name, headers_after_ms=10) for number, name in enumerate(names)]
    assert [client.head().status for client in waiting] == [200] * 25
    order = [name for name in served(town.engine) if name.startswith("wait")]
    away = max(abs(place - names.index(name)) for place, name in enumerate(order))
    assert len(order) == 24 and away <= 3, order
    assert town.engine.counters()["peak"] == 1


def test_an_edge_that_is_killed_gives_its_slots_back(town: Town) -> None:
    """All of the machine at once: nginx and `signalbox edge`. It comes back by itself with what it had."""
    held = holders(town.second, LIMIT - 1)
    assert town.second.daemon is not None
    daemon = psutil.Process(town.second.daemon.pid)
    daemon.suspend()  # it must not start nginx again meanwhile
    kill_all(town.second)
    died = time.monotonic()
    daemon.kill()
    town.second.daemon.wait()
    for client in held:
        client.close()
    mine = [town.first.raw(timeout=30) for _ in range(LIMIT)]
    for client in mine:
        client.request(CHAT, chat("alpha", stream=True, tokens=100_000, delay_ms=50))
    assert [client.head().status for client in mine] == [200] * LIMIT
    took = time.monotonic() - died
    # A lease counts from an edge's last word, which it has once a second.
    assert LEASE - 3 < took < LEASE + 2.5, f"{took:.1f} s"
    town.second.start().until_taken()
    for client in mine:
        client.close()
    # Wherever it is asked, all are there.
    town.first.idle()
    for client in holders(town.second, LIMIT):
        client.close()
