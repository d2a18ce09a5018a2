"""A crowd of clients: many requests, some of whose clients leave, and the story of each of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.client import CHAT, chat

#: Seconds after which a request that has not ended counts as stuck.
STUCK = 90.0
#: What a client that leaves has asked for: more than it will wait for.
LONG = 2000
#: So few prompts that the map of prefixes is soon as large as it will be.
PROMPTS = [f"Document {number}. " + "All work and no play makes a dull test. " * 30 for number in range(100)]


@dataclass
class Story:
    """One request, as its client saw it. Times are ``time.time()``."""

    id: str
    stream: bool
    tokens: int
    leaves_after: float | None = None
    port: int = 0
    began: float = 0.0
    ended: float = 0.0
    status: int = 0
    events: int = 0
    outcome: str = "never ended"  # complete, left, or what went wrong
    said: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome not in ("complete", "left")

    def __str__(self) -> str:
        return (f"{self.id}: {'stream' if self.stream else 'plain'} of {self.tokens} tokens, client port {self.port}, "
                f"{self.began:.3f} to {self.ended:.3f}: status {self.status}, {self.events} events, {self.outcome}; "
                f"{self.said}")  # fmt: skip


def stories(count: int, seed: int) -> Iterator[Story]:
    """What the crowd will ask: half of it streams, 30 of 100 leave at any moment of their first 1.2 s."""
    chance = random.Random(seed)
    for number in range(count):
        leaves = chance.random() < 0.31  # some of them end before they can leave
        yield Story(f"chaos-{number}", chance.random() < 0.5, LONG if leaves else chance.randint(1, 20),
                    chance.uniform(0, 1.2) if leaves else None)  # fmt: skip


@dataclass
class Crowd:
    """``users`` clients that ask one after the other, each time over a new connection."""

    port: int
    plan: Iterable[Story]
    users: int
    delay_ms: float = 15
    running: int = 0  # how many have their answer's head
    done: list[Story] = field(default_factory=list)

    def run(self) -> None:
        """Ask everything; returns when the last request has ended."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        waiting = iter(self.plan)

        async def user() -> None:
            for story in waiting:
                await self._ask(story)
                self.done.append(story)

        await asyncio.gather(*(user() for _ in range(self.users)))

    async def _ask(self, story: Story) -> None:
        story.began = time.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        story.port = writer.get_extra_info("sockname")[1]
        try:
            await asyncio.wait_for(self._talk(story, reader, writer), story.leaves_after or STUCK)
        except TimeoutError:
            story.outcome = "left" if story.leaves_after is not None else "stuck"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            story.outcome = "cut" if story.status else "no answer"
            story.said += f" {type(error).__name__}"
        finally:
            story.ended = time.time()
            # Half of those that leave say goodbye, the others are just gone (RST).
            writer.close() if story.port % 2 else writer.transport.abort()

    async def _talk(self, story: Story, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._request(story))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        story.status = int(head.split(" ", 2)[1])
        text = ""
        self.running += 1
        try:
            async for data in _body(head, reader):
                story.events += data.count(b"\n\n")
                text = (text + data.decode())[-500:]
        finally:
            self.running -= 1
        story.said = text[-300:] if story.status != 200 else ""
        story.outcome = self._judge(story, text)

    def _request(self, story: Story) -> bytes:
        text = PROMPTS[story.port % len(PROMPTS)]
        body = json.dumps(chat("alpha", text, story.stream, tokens=story.tokens, delay_ms=self.delay_ms)).encode()
        head = (f"POST {CHAT} HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
                f"X-Request-Id: {story.id}\r\nContent-Length: {len(body)}\r\n\r\n")  # fmt: skip
        return head.encode() + body

    def _judge(self, story: Story, end: str) -> str:
        if story.status != 200:
            return "error"
        if story.stream:
            whole = story.events == story.tokens + 2 and end.endswith("data: [DONE]\n\n")
            return "complete" if whole else "not whole"
        usage: dict[str, Any] = json.loads("{" + end[end.rindex('"usage"') :])["usage"]
        return "complete" if usage["completion_tokens"] == story.tokens else "not whole"


async def _body(head: str, reader: asyncio.StreamReader) -> Any:
    """The body's pieces as they are framed. Raises IncompleteReadError when its end does not come."""
    if "transfer-encoding: chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return
    length = head.partition("content-length:")[2].split("\r\n")[0]
    yield await reader.readexactly(int(length))
