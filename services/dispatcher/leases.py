"""The leases that this dispatcher holds: renewed in batches, and let go of before they end.

Receives claimed tasks. Hands on what is still held, and cancels the work on what can no
longer be kept: a worker that cannot renew stops by itself before its lease ends. Source:
DESIGN section 6.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from kernel.environment import MICROS_PER_SECOND, Environment
from kernel.limits import LeaseBounds
from kernel.store import moves
from kernel.store.tasks import Task
from kernel.store.transaction import Store

_log = structlog.get_logger("sluice.dispatcher")


@dataclass(slots=True)
class Held:
    """A lease; `ends` on the steady clock, counted from before the statement that took it.

    `work` executes the task; None where only its settle is to come.
    """

    task: Task
    ends: float
    work: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        """Whether the call is still under way."""
        return self.work is not None and not self.work.done()


class Leases:
    """Every lease of one dispatcher, by (parent, n, attempt)."""

    def __init__(self, store: Store, environment: Environment, bounds: LeaseBounds) -> None:
        self._store = store
        self._environment = environment
        self._bounds = bounds
        self.held: dict[tuple[str, int, int], Held] = {}

    @property
    def micros(self) -> int:
        """How long a lease is."""
        return int(self._bounds.lease_seconds * MICROS_PER_SECOND)

    def steady(self) -> float:
        """The clock that leases are counted on, in seconds."""
        return self._environment.clock.suspended_seconds()

    def hold(self, task: Task, lease_start: float) -> Held:
        """Keep a lease; `lease_start` is from before the statement that took it."""
        held = Held(task, lease_start + self._bounds.lease_seconds)
        self.held[(*task.key, task.attempt)] = held
        return held

    def release(self, task: Task) -> bool:
        """Forget a lease; False when it was forgotten before."""
        return self.held.pop((*task.key, task.attempt), None) is not None

    async def renew_round(self) -> None:
        """Renew every lease; one that is somebody else's by now is left to end."""
        await self._environment.clock.sleep(self._bounds.renew_interval_seconds)
        before = self.steady()
        leases = list(self.held.values())
        kept = await self._store.write(moves.renew, [each.task for each in leases], self.micros)
        for each in leases:
            if (*each.task.key, each.task.attempt) in kept:
                each.ends = before + self._bounds.lease_seconds

    async def watch_round(self) -> None:
        """Let go of what is about to end, however long the store keeps a renewal waiting."""
        await self._environment.clock.sleep(self._bounds.renew_interval_seconds)
        self.drop_ended()

    def drop_ended(self) -> None:
        """Stop the work on tasks whose lease is about to end: others may hold them soon.

        A lease that is renewed in time has more than two intervals left at every look, since
        `3 * renew_interval + store_timeout < lease`; so the next look would come too late.
        """
        latest = self.steady() + 2 * self._bounds.renew_interval_seconds
        for each in list(self.held.values()):
            if each.work is not None and each.works and each.ends <= latest:
                _log.warning("lease_not_kept", task_id=each.task.task_id)
                each.work.cancel()

    async def abandon(self) -> None:
        """End what still runs; its rows keep their lease, and are taken over after it."""
        works = [each.work for each in self.held.values() if each.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
