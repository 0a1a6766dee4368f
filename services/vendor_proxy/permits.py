"""Permits: how many calls of a pool may be at its vendor at once, as one replica counts them.

Receives a pool and the end of each call. Hands on permits, each returned exactly once, and
only when the vendor is known to have stopped: after a time-out a permit is quarantined. Pure
of I/O; times are seconds of a steady clock that counts through suspension. Source: DESIGN
section 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kernel.store.calls import CallKey


class Permit:
    """The right to have one call at a pool's vendor. `ends_at`: when it returns at the latest.

    A permit is open until `release` or the end of its quarantine; both count once.
    """

    def __init__(self, pool: Pool, key: CallKey, ends_at: float) -> None:
        self.key = key
        self.ends_at = ends_at
        self.quarantined = False
        self._pool = pool
        pool.permits.add(self)

    def release(self) -> None:
        """The vendor has stopped, or was never asked."""
        self._pool.permits.discard(self)

    def quarantine(self, until: float) -> None:
        """The vendor may go on working until then; the permit returns by itself."""
        self.quarantined = True
        self.ends_at = until


@dataclass(slots=True)
class Pool:
    """One pool's open permits. `closed_until`: the vendor asked for silence until then."""

    limit: int
    closed_until: float = -math.inf
    permits: set[Permit] = field(default_factory=set)

    def sweep(self, now: float) -> None:
        """Return the permits whose quarantine is over."""
        over = [each for each in self.permits if each.quarantined and each.ends_at <= now]
        self.permits.difference_update(over)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool at one instant. `closed_seconds`: how long it stays closed, 0 when it is open."""

    limit: int
    in_flight: int
    quarantined: int
    closed_seconds: float


class Permits:
    """The permits of all pools of one replica."""

    def __init__(self, limits: Mapping[str, int], steady: Callable[[], float]) -> None:
        self._pools = {name: Pool(limit) for name, limit in limits.items()}
        self._steady = steady

    def take(self, pool: str, key: CallKey, ends_within_seconds: float) -> Permit | None:
        """A permit, or None when none is free or the pool is closed.

        `ends_within_seconds`: after that the vendor has stopped whatever becomes of the call.
        """
        now = self._steady()
        held = self._pools[pool]
        if held.closed_until > now:
            return None
        if len(held.permits) >= held.limit:
            held.sweep(now)
        if len(held.permits) >= held.limit:
            return None
        return Permit(held, key, now + ends_within_seconds)

    def occupy(self, pool: str, key: CallKey, permits: int, seconds: float) -> None:
        """Count calls of the past as quarantined, above the limit if need be."""
        if pool not in self._pools:
            return
        until = self._steady() + seconds
        for _ in range(permits):
            Permit(self._pools[pool], key, until).quarantine(until)

    def free(self, key: CallKey) -> None:
        """The vendor has stopped working on `key`: its quarantined permits return."""
        for pool in self._pools.values():
            freed = [each for each in pool.permits if each.quarantined and each.key == key]
            pool.permits.difference_update(freed)

    def close(self, pool: str, seconds: float) -> None:
        """Give no permit for so long; an earlier end never shortens a later one."""
        held = self._pools.get(pool)
        if held is not None:
            held.closed_until = max(held.closed_until, self._steady() + seconds)

    def closed_seconds(self, pool: str) -> float:
        """How long the pool stays closed, 0 when it is open."""
        return max(0.0, self._pools[pool].closed_until - self._steady())

    def set_limit(self, pool: str, limit: int) -> float:
        """Change a limit at once for new calls; returns in how many seconds it surely holds.

        Lowering takes force when the surplus has drained: when so many of the open permits
        have returned at the latest.
        """
        now = self._steady()
        held = self._pools[pool]
        held.limit = limit
        held.sweep(now)
        surplus = len(held.permits) - limit
        if surplus <= 0:
            return 0.0
        ends = sorted(permit.ends_at for permit in held.permits)
        return max(0.0, ends[surplus - 1] - now)

    def use(self, pool: str) -> PoolUse:
        """What is in use now."""
        held = self._pools[pool]
        held.sweep(self._steady())
        quarantined = sum(permit.quarantined for permit in held.permits)
        return PoolUse(
            held.limit,
            len(held.permits) - quarantined,
            quarantined,
            self.closed_seconds(pool),
        )

    def pools(self) -> Iterable[str]:
        """All pools' names, in order."""
        return sorted(self._pools)
