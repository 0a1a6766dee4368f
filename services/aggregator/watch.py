"""Who waits for a case to change: woken by the rounds of this process, or by the poll.

Receives a signal after every round. Hands on a wait that loses no signal given between the
look at the store and the wait. A lost signal costs latency only.
"""

from __future__ import annotations

import asyncio


class Changes:
    """Any number of waiters for "something changed"; told to all at once."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.closed = False

    def next(self) -> asyncio.Event:
        """The event of the next change: take it before looking at the store."""
        return self._next

    def tell(self) -> None:
        """Wake all who hold the present event."""
        told, self._next = self._next, asyncio.Event()
        told.set()

    def close(self) -> None:
        """Wake all, for the last time."""
        self.closed = True
        self.tell()

    async def wait(self, change: asyncio.Event, timeout_seconds: float) -> None:
        """Until the change, or the time-out."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await change.wait()
        except TimeoutError:
            return
