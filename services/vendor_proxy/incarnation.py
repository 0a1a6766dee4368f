"""The replica's leased right to send: renewed while it lives, and given up by itself.

Receives the store and the bounds. Hands on `may_send`, asked right before the first byte of
every call. When the store is away the lease runs out, and sends stop without being told.
Source: DESIGN section 7 (pre-send check).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.limits import IncarnationBounds
from kernel.store import incarnations
from kernel.store.transaction import Store


@dataclass(frozen=True, slots=True)
class Instant:
    """The database's `now` (microseconds), as asked for at `issued` (steady seconds).

    Time is counted from before the asking, so `at` is never behind the database's clock.
    """

    now: int
    issued: float

    def at(self, steady: float) -> int:
        """The database's clock at a later steady time, at the latest."""
        return self.now + int((steady - self.issued) * MICROS_PER_SECOND)


class Incarnation:
    """One life of this replica: an id that no other life has, and a lease."""

    def __init__(self, store: Store, environment: Environment, bounds: IncarnationBounds) -> None:
        self._store = store
        self._environment = environment
        self._bounds = bounds
        self.id = ""
        self._lease_until = 0
        self._seen = Instant(0, 0.0)

    async def begin(self) -> None:
        """Start a new life; raises StoreAway."""
        fresh = self._environment.new_id()
        issued = self._environment.clock.suspended_seconds()
        lease = await self._store.write(incarnations.start, fresh, self._bounds.lease_seconds)
        self.id = fresh
        self._take(lease, issued)

    async def renew(self) -> None:
        """Renew the lease; a lease that ran out is followed by a new life. Raises StoreAway."""
        issued = self._environment.clock.suspended_seconds()
        lease = await self._store.write(incarnations.renew, self.id, self._bounds.lease_seconds)
        if lease is None:
            await self.begin()
        else:
            self._take(lease, issued)

    async def end(self) -> None:
        """Give the lease up; nothing of this life is open any more."""
        self._lease_until = 0
        await self._store.write(incarnations.release, self.id)

    def may_begin(self) -> bool:
        """Whether a send that is begun now could still leave in time."""
        return self.may_send(self.id, self.now())

    def may_send(self, incarnation: str, now: int) -> bool:
        """Whether a first byte at `now` (the database's clock) leaves in time to be finished."""
        write = int(self._bounds.write_seconds * MICROS_PER_SECOND)
        return incarnation == self.id and now + write < self._lease_until

    def now(self) -> int:
        """The database's clock, by the last renewal and the time since: never behind."""
        return self._seen.at(self._environment.clock.suspended_seconds())

    def _take(self, lease: incarnations.Lease, issued: float) -> None:
        self._lease_until = lease.until
        self._seen = Instant(lease.now, issued)
