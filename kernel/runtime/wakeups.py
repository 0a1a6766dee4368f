"""Wake-ups inside one process: a hint that there is work, never the work itself.

Receives topic names. Hands on a signal to whoever waits for one of them. Losing a wake-up
costs latency only: every waiter has a time-out and then looks at the database.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

CHANGED = "sluice.changed"


def ready_topic(pool: str) -> str:
    """The topic that says "look at this pool"."""
    return f"sluice.ready.{pool}"


class Wakeups(Protocol):
    """What a service needs of the bus."""

    async def publish(self, topic: str, key: str, body: str) -> None:
        """Tell everyone who waits for `topic`."""

    async def wait(self, topics: frozenset[str], timeout_seconds: float) -> bool:
        """True when one of the topics was told since the last wait, False after the time-out."""


class InProcessWakeups:
    """One event a waiter; topics coalesce, since "look again" said twice is said once."""

    def __init__(self) -> None:
        self._waiters: dict[frozenset[str], asyncio.Event] = {}

    async def publish(self, topic: str, key: str, body: str) -> None:
        """Wake every waiter for `topic`; the record's content is not carried in one process."""
        for topics, event in self._waiters.items():
            if topic in topics:
                event.set()

    async def wait(self, topics: frozenset[str], timeout_seconds: float) -> bool:
        """Wait for any of `topics`; a wake-up told between two waits is not lost."""
        event = self._waiters.setdefault(topics, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            event.clear()
        return True
