"""Outbox to bus: what a committed transaction wants told is told, at least once.

Receives outbox rows, leased by state. Hands on published records, and deletes their rows only
then. At most one transaction is open, and never while the bus is waited for. A row whose
relay died is leased by another when its lease ends. Source: DESIGN section 5; case 3-12.
"""

from __future__ import annotations

import asyncio

from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.runtime.wakeups import Wakeups
from kernel.store import outbox
from kernel.store.transaction import Store

BATCH = 100
"""Rows of one round."""

LEASE_SECONDS = 10.0
"""How long a relay may take over a round's rows; after that another may publish them too."""


class Relay:
    """One relay of the outbox. `owner` names it among its replicas."""

    def __init__(
        self,
        store: Store,
        wakeups: Wakeups,
        environment: Environment,
        owner: str,
        poll_seconds: float,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._environment = environment
        self._owner = owner
        self._poll_seconds = poll_seconds
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """Say that the outbox has rows; saying it twice is saying it once."""
        self._nudged.set()

    async def one_round(self) -> None:
        """Publish one batch; with nothing to publish, wait for a nudge or the next poll.

        Raises what the bus or the store raised, after deleting what was published before.
        """
        self._nudged.clear()
        if not await self.publish():
            await self._wait()

    async def publish(self) -> int:
        """Publish and delete up to a batch of rows; returns how many there were."""
        rows = await self._store.write(
            outbox.lease, self._owner, BATCH, int(LEASE_SECONDS * MICROS_PER_SECOND)
        )
        published: list[int] = []
        try:
            for row in rows:
                await self._wakeups.publish(row.topic, row.key, row.body)
                published.append(row.id)
        finally:
            if published:
                await self._store.write(outbox.delete, self._owner, published)
        return len(rows)

    async def _wait(self) -> None:
        waits = (
            asyncio.ensure_future(self._nudged.wait()),
            asyncio.ensure_future(self._environment.clock.sleep(self._poll_seconds)),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
