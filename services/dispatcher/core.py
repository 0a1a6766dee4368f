"""The dispatcher: claimer, timer and resolver around one store and one gateway.

Receives everything injected. Hands on task facts to callers and moves to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel.attempt import WaitRules
from kernel.environment import Environment
from kernel.errors import NotFound
from kernel.identity import parse_task_id
from kernel.lifecycle import State
from kernel.limits import LeaseBounds
from kernel.retry import Backoff
from kernel.runtime.lifecycle import Loops
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store import closures, tasks
from kernel.store.tasks import PoolCount, Task
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile
from services.dispatcher import operator, timeline, timer
from services.dispatcher.claimer import Claimer
from services.dispatcher.gateway import Gateway
from services.dispatcher.operator import Resolution
from services.dispatcher.resolver import Resolver

_RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0, floor=0.25)
_QUERY = Backoff(base_seconds=0.2, cap_seconds=60.0, floor=0.25)
_MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as the mesh sees it; times in microseconds since the epoch."""

    name: str
    vendor: str
    window: int
    counts: Mapping[State, int]
    oldest_ready_at: int | None
    closed_until: int | None


class DispatcherCore:
    """One dispatcher process; several may share a store."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        pools: Mapping[str, PoolProfile],
        environment: Environment,
        wakeups: Wakeups,
        bounds: LeaseBounds | None = None,
        *,
        backoff: Backoff = _RETRY,
        query_backoff: Backoff = _QUERY,
        poll_seconds: float = 0.2,
    ) -> None:
        bounds = bounds or LeaseBounds()
        bounds.assert_relations()
        self.owner = f"dispatcher-{environment.new_id()}"
        self._store = store
        self._environment = environment
        self._wakeups = wakeups
        self._pools = dict(pools)
        self._poll_seconds = poll_seconds
        self.claimer = Claimer(
            store,
            gateway,
            pools,
            environment,
            wakeups,
            self.owner,
            bounds,
            backoff,
            query_backoff,
            poll_seconds,
        )
        self.resolver = Resolver(
            store, gateway, environment, wakeups, self.claimer, self.owner, bounds.lease_seconds
        )
        self.loops = Loops("dispatcher", environment)

    def start(self) -> None:
        """Start the loops."""
        self.loops.start("listen", self.claimer.listen_round)
        self.loops.start("claim", self.claimer.claim_round)
        self.loops.start("settle", self.claimer.settle_round)
        self.loops.start("renew", self.claimer.renew_round)
        self.loops.start("timer", self.timer_round)
        self.claimer.look()

    async def stop(self, drain_seconds: float) -> None:
        """Claim no more, let open calls settle, then end; what is left is taken over."""
        await self.claimer.drain(drain_seconds)
        await self.loops.stop()
        await self.resolver.stop()
        await self.claimer.abandon()

    async def timer_round(self) -> None:
        """One scan of due rows, then a wait until the next can be due."""
        found = await self.timer_once()
        if found == 0:
            await self._environment.clock.sleep(self._poll_seconds)

    async def timer_once(self) -> int:
        """One scan of due rows; returns how many were found."""
        budgets = {name: pool.budget for name, pool in self.claimer.pools.items()}
        due = await self._store.write(timer.scan, budgets, self.claimer.waits())
        self.resolver.submit(due.ended_leases, due.unsettled, due.unwanted)
        if due.pools_ready:
            self.claimer.look()
        if due.found:
            await self._wakeups.publish(CHANGED, "", "")
        return due.found

    async def get_task(self, task_id: str) -> Task:
        """One task; raises NotFound."""
        key = parse_task_id(task_id)
        task = await self._store.read(tasks.get, key) if key else None
        if task is None:
            raise NotFound("No such task.")
        return task

    async def list_tasks(
        self,
        *,
        after: tuple[str, int],
        most: int,
        tenant_id: str,
        parent_id: str,
        state: str,
        pool: str,
    ) -> list[Task]:
        """A page of tasks by key."""
        return await self._store.read(
            tasks.page,
            after=after,
            most=most,
            tenant_id=tenant_id,
            parent_id=parent_id,
            state=state,
            pool=pool,
        )

    async def story(self, identifier: str) -> tuple[str, list[timeline.Line]]:
        """(tenant id, lines) of a case or task; raises NotFound."""
        parent, lines = await self._store.read(timeline.read, identifier)
        return parent.tenant_id, lines

    async def list_pools(self) -> list[PoolView]:
        """Every configured pool with its open tasks by state."""
        counts = await self._store.read(tasks.pool_counts)
        closed = await self._store.read(closures.closed)
        return [
            PoolView(
                name,
                pool.vendor,
                pool.concurrency,
                {each.state: each.amount for each in counts if each.pool == name},
                _oldest_ready(counts, name),
                closed.get(name),
            )
            for name, pool in sorted(self._pools.items())
        ]

    async def list_unknown(self, *, after: tuple[int, str, int], most: int) -> list[Task]:
        """The operator's queue, the oldest first."""
        return await self._store.read(tasks.unknown_page, after=after, most=most)

    async def resolve_unknown(
        self, task_id: str, resolution: Resolution, operator_name: str, note: str
    ) -> Task:
        """Settle an UNKNOWN task by an operator's word."""
        key = parse_task_id(task_id)
        if key is None:
            raise NotFound("No such task.")
        waits: WaitRules = self.claimer.waits()
        task = await self._store.write(
            operator.resolve, key, resolution, operator_name, note, waits
        )
        await self._wakeups.publish(CHANGED, task.parent_id, "")
        self.claimer.look()
        return task

    async def now(self) -> int:
        """The database's clock, in microseconds."""
        return await self._store.read(lambda tx: tx.now())


def _oldest_ready(counts: list[PoolCount], pool: str) -> int | None:
    return next((c.oldest for c in counts if c.pool == pool and c.state is State.READY), None)
