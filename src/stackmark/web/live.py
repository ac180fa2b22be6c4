"""Follow what changes in a ledger: one reader for all browsers that watch the same thing.

Each topic (the list, one experiment) is read once a period, however many browsers follow it, and only while one does. They get a
message when what was read differs from before, and a comment now and then, by which a connection that is gone is noticed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anyio import to_thread

from stackmark.errors import StackmarkError

PERIOD_S = 1.0
HEARTBEAT_S = 15.0
# Browsers that follow something at the same time, and different things that are followed.
MOST_FOLLOWERS, MOST_TOPICS = 512, 64


@dataclass(frozen=True)
class Snapshot:
    """What was read: `state` tells whether it changed, `message` is what browsers get; after `ended` nothing more comes."""

    state: object
    message: dict[str, object]
    ended: bool = False


@dataclass
class _Topic:
    followers: int = 0
    number: int = 0
    message: str = ""
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def publish(self, event: str, message: dict[str, object]) -> None:
        self.number += 1
        self.message = f"id: {self.number}\nevent: {event}\ndata: {json.dumps(message)}\n\n"
        self.changed.set()
        self.changed = asyncio.Event()


class TooMany(Exception):
    """As many browsers follow something as may."""


class Hub:
    """The topics that are followed."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        self.period_s = period_s
        self._topics: dict[str, _Topic] = {}
        self._closed = False

    def has_room(self, key: str) -> bool:
        followers = sum(topic.followers for topic in self._topics.values())
        return followers < MOST_FOLLOWERS and (key in self._topics or len(self._topics) < MOST_TOPICS)

    def close(self) -> None:
        """End all messages: the server ends only when its answers have."""
        self._closed = True
        for topic in self._topics.values():
            topic.changed.set()

    async def follow(self, key: str, read: Callable[[], Snapshot]) -> AsyncIterator[str]:
        """Yield messages in the form of server-sent events."""
        if not self.has_room(key):
            return
        topic = self._topics.setdefault(key, _Topic())
        topic.followers += 1
        if topic.task is None:
            topic.task = asyncio.create_task(self._watch(topic, read))
        seen = 0
        try:
            # A browser that lost its connection comes again after this many milliseconds.
            yield "retry: 2000\n\n"
            while not self._closed:
                changed = topic.changed
                if topic.number != seen:
                    seen = topic.number
                    yield topic.message
                    continue
                if topic.ended:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield ": nothing new\n\n"
        finally:
            topic.followers -= 1
            if not topic.followers:
                if topic.task:
                    topic.task.cancel()
                if self._topics.get(key) is topic:
                    del self._topics[key]

    async def _watch(self, topic: _Topic, read: Callable[[], Snapshot]) -> None:
        last: object = None
        while not topic.ended and not self._closed:
            try:
                found = await to_thread.run_sync(read)
            except StackmarkError as error:
                if last != error.message:
                    last = error.message
                    topic.publish("trouble", {"said": error.message})
            else:
                if found.state != last or not topic.number:
                    last = found.state
                    topic.ended = found.ended
                    topic.publish("ended" if found.ended else "change", found.message)
            await asyncio.sleep(self.period_s)
