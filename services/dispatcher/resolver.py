"""The resolver: asks what became of calls that nobody can vouch for, and writes the answer.

Receives UNKNOWN and overdue ACCEPTED tasks, and tasks whose lease ran out. Fences first,
then asks the vendor by key or id. Hands on settled tasks, retries that are proved or allowed,
and what cannot be settled to the operator. Source: DESIGN sections 2 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import structlog

from kernel.attempt import (
    CallOutcome,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    Settlement,
    WaitRules,
    after_call,
    after_fence_never_begun,
    after_query,
)
from kernel.environment import Environment
from kernel.lifecycle import Mover, State, allowed
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store import moves, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Store, Tx
from services.dispatcher import pipeline
from services.dispatcher.claimer import Claimer
from services.dispatcher.gateway import Gateway, LinkLostError

_log = structlog.get_logger("sluice.dispatcher")
_AT_ONCE = 32
_NO_CALL = CallOutcome(Outcome.UNKNOWN)


class Resolver:
    """Works due tasks, at most `_AT_ONCE` at a time; what it cannot finish stays due."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        environment: Environment,
        wakeups: Wakeups,
        claimer: Claimer,
        owner: str,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._environment = environment
        self._wakeups = wakeups
        self._claimer = claimer
        self._owner = owner
        self._lease_micros = int(lease_seconds * 1_000_000)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._working: set[asyncio.Task[None]] = set()

    def submit(
        self, ended_leases: Iterable[Task], unsettled: Iterable[Task], unwanted: frozenset[str]
    ) -> None:
        """Work these in the background; each row was reserved by the scan that found it."""
        for task in ended_leases:
            self._spawn(self.take_over(task, wanted=task.parent_id not in unwanted), task)
        for task in unsettled:
            self._spawn(self.resolve(task, wanted=task.parent_id not in unwanted), task)

    async def stop(self) -> None:
        """End what is under way; the rows stay due."""
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def resolve(self, task: Task, *, wanted: bool) -> None:
        """One round for an UNKNOWN or overdue ACCEPTED task."""
        facts = task.facts(wanted=wanted)
        waits = self._claimer.waits()
        call = _NO_CALL
        if task.state is State.UNKNOWN:
            fence, settled = await self._gateway.fence(
                task.idempotency_key, task.vendor, task.attempt
            )
            if fence is FenceAnswer.NEVER_BEGUN:
                await self._store.write(write_never_begun, task, wanted, waits)
                return await self._told(task)
            if fence is FenceAnswer.SETTLED and settled is not None:
                await self._store.write(write_call, task, settled, waits)
                return await self._told(task)
            if fence is FenceAnswer.IN_PROGRESS:
                wait = waits.query_backoff.seconds(task.tries, waits.draw)
                await self._store.write(write_linger, task, "IN_PROGRESS", wait)
                return None
        elif not wanted and await self._gateway.cancel(task.idempotency_key, task.vendor):
            settlement = Settlement(State.CANCELLED, "CANCELLED_AT_VENDOR", None, False)
            await self._store.write(write_settlement, task, settlement, call)
            return await self._told(task)
        answer = await self._gateway.query(task.idempotency_key, task.vendor)
        if answer.call is not None:
            call = answer.call
        now = await self._store.read(Tx.now)
        settlement = after_query(answer, facts, now, waits)
        if answer.answer is QueryAnswer.SETTLED and answer.call is not None:
            await self._store.write(write_call, task, answer.call, waits)
        else:
            await self._store.write(write_settlement, task, settlement, call)
        return await self._told(task)

    async def take_over(self, task: Task, *, wanted: bool) -> None:
        """Fence the attempt whose lease ran out, then go on with one of our own."""
        fence, settled = await self._gateway.fence(task.idempotency_key, task.vendor, task.attempt)
        waits = self._claimer.waits()
        never_begun = fence is FenceAnswer.NEVER_BEGUN and not task.maybe_executed
        if never_begun and await self._store.write(write_no_longer_wanted, task, wanted, waits):
            return await self._told(task)
        lease_start = self._environment.clock.suspended_seconds()
        held = await self._store.write(pipeline.take_over, task, self._owner, self._lease_micros)
        if held is None:
            return None
        if never_begun:
            held = replace(held, maybe_executed=False)
        waiting = await self._store.read(pipeline.has_waiting_receipt, held)
        if wanted and not waiting:
            self._claimer.run_taken_over(held, lease_start)
        else:
            outcome = settled if fence is FenceAnswer.SETTLED and settled else _NO_CALL
            self._claimer.adopt(held, outcome, lease_start)
        return None

    def _spawn(self, work: object, task: Task) -> None:
        async def run() -> None:
            async with self._places:
                try:
                    await work  # type: ignore[misc]
                except LinkLostError as lost:
                    _log.warning("resolver_link_lost", task_id=task.task_id, code=str(lost))
                except Exception as error:
                    _log.error("resolver_failed", task_id=task.task_id, error=type(error).__name__)

        running = asyncio.create_task(run(), name=f"resolve:{task.task_id}")
        self._working.add(running)
        running.add_done_callback(self._working.discard)

    async def _told(self, task: Task) -> None:
        await self._wakeups.publish(CHANGED, task.parent_id, "")
        self._claimer.look()


def write_call(tx: Tx, task: Task, call: CallOutcome, waits: WaitRules) -> None:
    """A settled outcome that the ledger or the vendor vouches for."""
    settlement = after_call(call, task.facts(), tx.now(), waits)
    write_settlement(tx, task, settlement, call)


def write_never_begun(tx: Tx, task: Task, wanted: bool, waits: WaitRules) -> None:
    """Proof that no attempt reached the wire."""
    settlement = after_fence_never_begun(task.facts(wanted=wanted), tx.now(), waits)
    write_settlement(tx, task, settlement, CallOutcome(Outcome.NOT_SENT))


def write_no_longer_wanted(tx: Tx, task: Task, wanted: bool, waits: WaitRules) -> bool:
    """Close a task whose lease ran out before anything was begun; False when it is wanted."""
    settlement = after_fence_never_begun(task.facts(wanted=wanted), tx.now(), waits)
    if settlement.state is State.RETRY_WAIT:
        return False
    planned = pipeline.settled_move(task, _NO_CALL, settlement, Mover.TAKEOVER)
    return not moves.move(tx, [replace(planned, outcome=Outcome.NOT_SENT)]).lost


def write_linger(tx: Tx, task: Task, reason: str, wait_seconds: float) -> None:
    """Stay, and be looked at again after `wait_seconds`."""
    moves.linger(
        tx,
        task,
        wake_at=tx.now() + int(wait_seconds * 1_000_000),
        tries=task.tries + 1,
        reason=reason,
        needs_operator=task.needs_operator,
    )


def write_settlement(
    tx: Tx,
    task: Task,
    settlement: Settlement,
    call: CallOutcome,
    mover: Mover = Mover.RESOLVER,
    actor: str = "",
) -> bool:
    """Write a settlement of a task that nobody holds; False when it moved meanwhile.

    An overdue ACCEPTED task that proves not executed goes by way of UNKNOWN, as the move
    table says; the next round finishes it.
    """
    current = tasks.lock(tx, [task.key]).get(task.key)
    if current is None or (current.state, current.attempt) != (task.state, task.attempt):
        return False
    if settlement.state is task.state:
        wake_at = settlement.wake_at if settlement.wake_at is not None else tx.now()
        return moves.linger(
            tx,
            task,
            wake_at=wake_at,
            tries=task.tries + 1,
            reason=settlement.reason,
            needs_operator=settlement.needs_operator,
        )
    flag = settlement.maybe_executed
    if not allowed(task.state, settlement.state, mover, maybe_executed=flag):
        settlement = replace(settlement, state=State.UNKNOWN, wake_at=tx.now(), maybe_executed=True)
    planned = pipeline.settled_move(current, call, settlement, mover)
    return not moves.move(tx, [replace(planned, actor=actor or mover.value.lower())]).lost
