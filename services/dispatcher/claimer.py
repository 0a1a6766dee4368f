"""The claimer: keeps every pool's places filled, has the calls made, and settles them.

Receives wake-ups and free places. Hands on claimed tasks to their execution, and what came
back to the settle, in batches. Nothing waits in memory under a running lease: it claims
exactly what it can start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from kernel.attempt import NO_PERMIT, CallOutcome, CallRequest, Outcome, WaitRules
from kernel.budget import RetryBudget
from kernel.environment import Environment
from kernel.errors import StoreAway
from kernel.limits import LeaseBounds
from kernel.retry import Backoff
from kernel.runtime.wakeups import CHANGED, Wakeups, ready_topic
from kernel.store import tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Store
from kernel.vendor import PoolProfile
from services.dispatcher import pipeline
from services.dispatcher.gateway import Gateway, LinkLostError, Occupied
from services.dispatcher.leases import Held, Leases
from services.dispatcher.pipeline import Finished

_log = structlog.get_logger("sluice.dispatcher")
_SETTLE_BATCH = 500
# A proxy that did not answer, and a pool that had no permit, are asked again after a wait
# that grows.
_AWAY = Backoff(base_seconds=0.1, cap_seconds=2.0, floor=0.5)
_FULL = Backoff(base_seconds=0.02, cap_seconds=0.5, floor=0.5)


@dataclass(slots=True)
class PoolState:
    """What this dispatcher knows of one pool; `full_until` on the steady clock, in seconds.

    `elsewhere`: permits that calls of ours under way do not explain: jobs at the vendor,
    quarantine, other callers.
    """

    profile: PoolProfile
    budget: RetryBudget
    limit: int
    running: int = 0
    elsewhere: int = 0
    refusals: int = 0
    full_until: float = 0.0

    @property
    def free(self) -> int:
        """Places for more calls."""
        return self.limit - self.elsewhere - self.running

    def learn(self, seen: Occupied) -> None:
        """Take in what the proxy says of the pool."""
        self.limit = seen.limit
        self.elsewhere = max(0, seen.in_use - self.running)


class Claimer:
    """Claims, executes, renews and settles for one dispatcher process."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        pools: Mapping[str, PoolProfile],
        environment: Environment,
        wakeups: Wakeups,
        owner: str,
        bounds: LeaseBounds,
        backoff: Backoff,
        query_backoff: Backoff,
        poll_seconds: float,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._environment = environment
        self._wakeups = wakeups
        self._owner = owner
        self._backoff = backoff
        self._query_backoff = query_backoff
        self._poll_seconds = poll_seconds
        self._topics = frozenset(ready_topic(pool) for pool in pools)
        self.pools = {
            name: PoolState(pool, RetryBudget(), pool.concurrency) for name, pool in pools.items()
        }
        self.leases = Leases(store, environment, bounds)
        self._finished: asyncio.Queue[Finished] = asyncio.Queue()
        self._look = asyncio.Event()
        self._claims_under_way = 0
        self._away = 0  # looks in a row at which the proxy did not answer
        self._away_until = 0.0
        self.draining = False
        self.fenced = 0

    @property
    def held(self) -> dict[tuple[str, int, int], Held]:
        """What this dispatcher holds a lease of."""
        return self.leases.held

    def waits(self) -> WaitRules:
        """The waits for one decision, with a fresh random draw."""
        draw = self._environment.random.random()
        return WaitRules(self._backoff, self._query_backoff, draw)

    def look(self) -> None:
        """Have the pools looked at now."""
        self._look.set()

    async def listen_round(self) -> None:
        """Turn wake-ups into looks; the time-out bounds the delay when one is lost."""
        await self._wakeups.wait(self._topics, self._poll_seconds)
        self._look.set()

    async def claim_round(self) -> None:
        """Fill every pool that has places, once somebody asked to look."""
        await self._look.wait()
        self._look.clear()
        if self.draining:
            return
        if self.leases.steady() < self._away_until:
            return
        waiting = await self._store.read(tasks.pools_with_ready, self.pools)
        if not waiting:
            return
        try:
            occupied = await self._gateway.occupied()
        except LinkLostError as lost:
            # What could not start is left in the index, for a proxy that answers.
            if not self._away:
                _log.warning("proxy_away", code=str(lost))
            wait = _AWAY.seconds(self._away, self._environment.random.random())
            self._away += 1
            self._away_until = self.leases.steady() + wait
            return
        self._away = 0
        for name in sorted(waiting):
            pool = self.pools[name]
            if name in occupied:
                pool.learn(occupied[name])
            while not self.draining and pool.free > 0 and pool.full_until <= self.leases.steady():
                if not await self._claim(name, pool):
                    break

    async def settle_round(self) -> None:
        """Write what came back, as many at once as have come."""
        batch = [await self._finished.get()]
        while len(batch) < _SETTLE_BATCH and not self._finished.empty():
            batch.append(self._finished.get_nowait())
        try:
            settled = await self._store.write(pipeline.settle, batch, self.waits())
        except asyncio.CancelledError:
            self._put_back(batch)
            raise
        except StoreAway:
            # The answers are kept: the next round writes them, under the same fence.
            self._put_back(batch)
            raise
        except Exception:
            # One of them cannot be written: the others must not wait for it.
            await self._settle_one_by_one(batch)
        else:
            self.fenced += settled.fenced
            for each in batch:
                self._release(each.task)
        await self._wakeups.publish(CHANGED, "", "")
        self._look.set()

    def run_taken_over(self, task: Task, lease_start: float) -> None:
        """Execute a task that was taken over, ahead of anything that is newly claimed."""
        self._start(task, lease_start)
        self.leases.drop_ended()

    def adopt(self, task: Task, call: CallOutcome, lease_start: float) -> None:
        """Settle a task that was taken over with an outcome that is known already."""
        self._hold(task, lease_start)
        self.finish(task, call)

    async def drain(self, seconds: float) -> None:
        """Claim no more, and give calls under way up to `seconds` to settle."""
        self.draining = True
        ends = self.leases.steady() + seconds
        while (self.held or self._claims_under_way) and self.leases.steady() < ends:
            await self._environment.clock.sleep(0.05)
        if self.held:
            _log.warning("drain_ended_with_open_calls", calls=len(self.held))

    def finish(self, task: Task, call: CallOutcome) -> None:
        """Hand a held task's outcome to the settle."""
        self._finished.put_nowait(Finished(task, call))

    async def _claim(self, name: str, pool: PoolState) -> bool:
        before = self.leases.steady()
        most = min(pool.free, _SETTLE_BATCH)
        self._claims_under_way += 1
        try:
            claimed = await self._store.write(
                pipeline.claim, name, most, self._owner, self.leases.micros
            )
        finally:
            self._claims_under_way -= 1
        pool.budget.earn(sum(task.attempt == 1 for task in claimed))
        for task in claimed:
            self._start(task, before)
        # A store that took longer than a lease hands on what others may hold by now.
        self.leases.drop_ended()
        return len(claimed) == most

    def _start(self, task: Task, lease_start: float) -> None:
        held = self._hold(task, lease_start)
        held.work = asyncio.create_task(self._execute(task), name=f"execute:{task.task_id}")

        def ended(work: asyncio.Task[None]) -> None:
            # The lease may have ended: whoever takes over asks the proxy what became of it.
            if work.cancelled():
                self._release(task)

        held.work.add_done_callback(ended)

    def _hold(self, task: Task, lease_start: float) -> Held:
        if task.pool in self.pools:
            self.pools[task.pool].running += 1
        return self.leases.hold(task, lease_start)

    async def _execute(self, task: Task) -> None:
        try:
            call = await self._gateway.execute(request_of(task))
        except LinkLostError as lost:
            call = CallOutcome(Outcome.UNKNOWN, reason=f"LINK_LOST_{lost}")
        except Exception as error:
            _log.error("execute_failed", task_id=task.task_id, error=type(error).__name__)
            call = CallOutcome(Outcome.UNKNOWN, reason="DISPATCHER_FAULT")
        pool = self.pools.get(task.pool)
        if pool is not None and call.outcome is Outcome.NOT_SENT and call.reason == NO_PERMIT:
            pool.refusals += 1
            wait = _FULL.seconds(pool.refusals - 1, self._environment.random.random())
            pool.full_until = self.leases.steady() + wait
        elif pool is not None:
            pool.refusals = 0
        self.finish(task, call)

    async def _settle_one_by_one(self, batch: list[Finished]) -> None:
        for at, each in enumerate(batch):
            try:
                settled = await self._store.write(pipeline.settle, [each], self.waits())
                self.fenced += settled.fenced
            except (StoreAway, asyncio.CancelledError):
                self._put_back(batch[at:])
                raise
            except Exception as error:
                # Its lease ends, and whoever takes over asks the ledger what became of it.
                _log.error("settle_refused", task_id=each.task.task_id, error=type(error).__name__)
            self._release(each.task)

    def _put_back(self, batch: list[Finished]) -> None:
        for each in batch:
            self._finished.put_nowait(each)

    def _release(self, task: Task) -> None:
        if self.leases.release(task) and task.pool in self.pools:
            self.pools[task.pool].running -= 1


def request_of(task: Task) -> CallRequest:
    """The Execute of a held task: the same key at every attempt."""
    return CallRequest(
        tenant_id=task.tenant_id,
        idempotency_key=task.idempotency_key,
        vendor=task.vendor,
        pool=task.pool,
        attempt=task.attempt,
        deadline=task.deadline,
        max_sends=task.max_sends,
        kind=task.input_kind,
        model_id=task.model_id,
        model_version=task.model_version,
        task_id=task.task_id,
        payload_ref=task.payload_ref,
        units=task.units,
        on_unknown=task.on_unknown,
        granted_sends=task.granted_sends,
    )
