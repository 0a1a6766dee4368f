"""The dispatcher: claimer, timer and resolver around one store and one gateway.

Receives everything injected. Hands on task facts to callers and moves to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel.attempt import WaitRules
from kernel.environment import Environment
from kernel.errors import FieldViolation, InvalidArgument, NotFound
from kernel.identity import is_parent_id, parse_task_id
from kernel.lifecycle import State
from kernel.limits import LeaseBounds
from kernel.retry import Backoff
from kernel.runtime.lifecycle import Loops
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store import closures, task_lists, tasks
from kernel.store.task_lists import PoolCount
from kernel.store.tasks import Task
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile
from services.dispatcher import operator, timeline, timer
from services.dispatcher.claimer import Claimer
from services.dispatcher.gateway import Gateway
from services.dispatcher.operator import Resolution
from services.dispatcher.resolver import Resolver

_RETRY = Backoff(base_seconds=0.2, cap_seconds=30.0, floor=0.25)
_QUERY = Backoff(base_seconds=0.2, cap_seconds=60.0, floor=0.25)


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
            store, gateway, wakeups, self.claimer, self.owner, bounds.lease_seconds
        )
        self.loops = Loops("dispatcher", environment)

    def start(self) -> None:
        """Start the loops."""
        self.loops.start("listen", self.claimer.listen_round)
        self.loops.start("claim", self.claimer.claim_round)
        self.loops.start("settle", self.claimer.settle_round)
        self.loops.start("renew", self.claimer.leases.renew_round)
        self.loops.start("watch", self.claimer.leases.watch_round)
        self.loops.start("timer", self.timer_round)
        self.claimer.look()

    async def stop(self, drain_seconds: float) -> None:
        """Claim no more, let open calls settle, then end; what is left is taken over."""
        await self.claimer.drain(drain_seconds)
        await self.loops.stop()
        await self.resolver.stop()
        await self.claimer.leases.abandon()

    async def timer_round(self) -> None:
        """One scan of due rows, then a wait until the next can be due."""
        found = await self.timer_once()
        if found == 0:
            await self._environment.clock.sleep(self._poll_seconds)

    async def timer_once(self) -> int:
        """One scan of due rows; returns how many were found. A dispatcher that drains scans not."""
        if self.claimer.draining:
            return 0
        budgets = {name: pool.budget for name, pool in self.claimer.pools.items()}
        for budget in budgets.values():
            budget.pass_time(self._environment.clock.suspended_seconds())
        retries = {name: budget.whole() for name, budget in budgets.items()}
        due = await self._store.write(timer.scan, retries, self.claimer.waits())
        for name, went in due.retries.items():
            if name in budgets:
                budgets[name].spend(went)
        self.resolver.submit(due.ended_leases, due.unsettled, due.unwanted)
        if due.pools_ready:
            self.claimer.look()
        if due.found:
            await self._wakeups.publish(CHANGED, "", "")
        return due.found

    async def get_task(self, task_id: str, tenants: frozenset[str] | None = None) -> Task:
        """One task of these tenants (None: anybody's); raises InvalidArgument and NotFound."""
        task = await self._store.read(tasks.get, _task_key(task_id))
        if task is None or (tenants is not None and task.tenant_id not in tenants):
            raise NotFound("There is no task with this id; check task_id.")
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
        tenants: frozenset[str] | None = None,
    ) -> list[Task]:
        """A page of tasks by key, of these tenants; None: everybody's."""
        return await self._store.read(
            task_lists.page,
            tenants=tenants,
            after=after,
            most=most,
            tenant_id=tenant_id,
            parent_id=parent_id,
            state=state,
            pool=pool,
        )

    async def story(
        self, identifier: str, tenants: frozenset[str] | None = None
    ) -> list[timeline.Line]:
        """The lines of a case or task of these tenants; raises InvalidArgument and NotFound."""
        if not is_parent_id(identifier) and parse_task_id(identifier) is None:
            raise InvalidArgument(FieldViolation("id", "must be the id of a case or of a task"))
        return await self._store.read(timeline.read, identifier, tenants)

    async def list_pools(self) -> list[PoolView]:
        """Every configured pool with its open tasks by state."""
        counts = await self._store.read(task_lists.pool_counts)
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

    async def list_unknown(
        self,
        *,
        after: tuple[int, str, int],
        most: int,
        tenants: frozenset[str] | None = None,
    ) -> list[Task]:
        """The operator's queue, the oldest first."""
        return await self._store.read(
            task_lists.unknown_page, after=after, most=most, tenants=tenants
        )

    async def resolve_unknown(
        self,
        task_id: str,
        resolution: Resolution,
        operator_name: str,
        note: str,
        tenants: frozenset[str] | None = None,
    ) -> Task:
        """Settle an UNKNOWN task by an operator's word; raises as `get_task` and `operator` do."""
        key = (await self.get_task(task_id, tenants)).key
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


def _task_key(task_id: str) -> tuple[str, int]:
    key = parse_task_id(task_id)
    if key is None:
        raise InvalidArgument(FieldViolation("task_id", "must be <case id>.<n>"))
    return key


def _oldest_ready(counts: list[PoolCount], pool: str) -> int | None:
    return next((c.oldest for c in counts if c.pool == pool and c.state is State.READY), None)
