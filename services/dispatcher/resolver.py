"""The resolver: asks what became of calls that nobody can vouch for, and writes the answer.

Receives UNKNOWN and overdue ACCEPTED tasks, and tasks whose lease ran out. Fences first,
then asks the vendor by key or id. Hands on settled tasks, retries that are proved or allowed,
and what cannot be settled to the operator. Source: DESIGN sections 2 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import structlog

from kernel.attempt import (
    CallOutcome,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    QueryOutcome,
    Resend,
    Settlement,
    WaitRules,
    after_fence_never_begun,
    after_query,
)
from kernel.environment import micros
from kernel.lifecycle import Mover, State, allowed
from kernel.runtime.wakeups import CHANGED, Wakeups
from kernel.store import moves, tasks
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Store, Tx
from services.dispatcher import pipeline
from services.dispatcher.claimer import Claimer
from services.dispatcher.gateway import Gateway, LinkLostError

_log = structlog.get_logger("sluice.dispatcher")
_AT_ONCE = 32
_NO_CALL = CallOutcome(Outcome.UNKNOWN)
_LEASE_EXPIRED = CallOutcome(Outcome.UNKNOWN, reason=pipeline.LEASE_EXPIRED)


class Resolver:
    """Works due tasks, at most `_AT_ONCE` at a time; what it cannot finish stays due."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        wakeups: Wakeups,
        claimer: Claimer,
        owner: str,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._wakeups = wakeups
        self._claimer = claimer
        self._owner = owner
        self._lease_micros = micros(lease_seconds)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._working: dict[TaskKey, asyncio.Task[None]] = {}

    def submit(
        self, ended_leases: Iterable[Task], unsettled: Iterable[Task], unwanted: frozenset[str]
    ) -> None:
        """Work these in the background; each row was reserved by the scan that found it."""
        for task in ended_leases:
            self._spawn(self.take_over, task, task.parent_id not in unwanted)
        for task in unsettled:
            self._spawn(self.resolve, task, task.parent_id not in unwanted)

    async def idle(self) -> None:
        """Return once nothing is under way."""
        while self._working:
            await asyncio.wait(list(self._working.values()))

    async def stop(self) -> None:
        """End what is under way; the rows stay due."""
        works = list(self._working.values())
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    async def resolve(self, task: Task, *, wanted: bool) -> None:
        """One round for an UNKNOWN or overdue ACCEPTED task."""
        waits = self._claimer.waits()
        if task.state is State.UNKNOWN:
            fence, settled = await self._gateway.fence(
                task.idempotency_key, task.vendor, task.attempt
            )
            if fence is FenceAnswer.NEVER_BEGUN:
                await self._store.write(write_never_begun, task, wanted, waits)
                return await self._told(task)
            if fence is FenceAnswer.SETTLED and settled is not None and _is_news(task, settled):
                news = QueryOutcome(QueryAnswer.SETTLED, settled)
                await self._store.write(write_query, task, news, wanted, waits)
                return await self._told(task)
            if fence is FenceAnswer.IN_PROGRESS:
                under_way = QueryOutcome(QueryAnswer.RUNNING, reason="IN_PROGRESS")
                await self._store.write(write_query, task, under_way, wanted, waits)
                return None
        if (
            not wanted
            and task.external_id
            and await self._gateway.cancel(task.idempotency_key, task.vendor)
        ):
            settlement = Settlement(State.CANCELLED, "CANCELLED_AT_VENDOR", None, False)
            await self._store.write(write_settlement, task, settlement, _NO_CALL)
            return await self._told(task)
        answer = await self._gateway.query(task.idempotency_key, task.vendor)
        await self._store.write(write_query, task, answer, wanted, waits)
        return await self._told(task)

    async def take_over(self, task: Task, *, wanted: bool) -> None:
        """Fence the attempt whose lease ran out, then go on with one of our own.

        It is executed where the ledger proves that nothing is in doubt, or joins what is under
        way. What is in doubt is asked about first, as UNKNOWN.
        """
        fence, settled = await self._gateway.fence(task.idempotency_key, task.vendor, task.attempt)
        waits = self._claimer.waits()
        never_begun = fence is FenceAnswer.NEVER_BEGUN
        if never_begun and await self._store.write(write_no_longer_wanted, task, wanted, waits):
            return await self._told(task)
        if self._claimer.draining:
            return None
        lease_start = self._claimer.leases.steady()
        held = await self._store.write(pipeline.take_over, task, self._owner, self._lease_micros)
        if held is None:
            return None
        outcome = settled if fence is FenceAnswer.SETTLED and settled else _LEASE_EXPIRED
        if never_begun:
            held = replace(held, maybe_executed=False)
        elif outcome is settled:
            held = replace(held, maybe_executed=task.maybe_executed and not outcome.settles_key)
        waiting = await self._store.read(pipeline.has_waiting_receipt, held)
        if wanted and not waiting and fence is not FenceAnswer.UNKNOWN:
            self._claimer.run_taken_over(held, lease_start)
        else:
            self._claimer.adopt(held, outcome, lease_start)
        return None

    def _spawn(self, work: Callable[..., Awaitable[None]], task: Task, wanted: bool) -> None:
        if task.key in self._working:
            return  # a slow answer outlived the row's reservation

        async def run() -> None:
            async with self._places:
                try:
                    await work(task, wanted=wanted)
                except LinkLostError as lost:
                    _log.warning("resolver_link_lost", task_id=task.task_id, code=str(lost))
                except Exception as error:
                    _log.error("resolver_failed", task_id=task.task_id, error=type(error).__name__)

        running = asyncio.create_task(run(), name=f"resolve:{task.task_id}")
        self._working[task.key] = running
        running.add_done_callback(lambda _: self._working.pop(task.key, None))

    async def _told(self, task: Task) -> None:
        await self._wakeups.publish(CHANGED, task.parent_id, "")
        self._claimer.look()


def _is_news(task: Task, settled: CallOutcome) -> bool:
    """Whether a settled row says more than that the vendor took what it is known to hold."""
    return settled.outcome is not Outcome.ACCEPTED or not task.external_id


def write_query(tx: Tx, task: Task, answer: QueryOutcome, wanted: bool, waits: WaitRules) -> None:
    """What the ledger or the vendor said of a task that nobody holds."""
    settlement = after_query(answer, task.facts(wanted=wanted), tx.now(), waits)
    may_tell_yet = answer.answer in (QueryAnswer.TOO_EARLY, QueryAnswer.RUNNING)
    if task.state is State.ACCEPTED and may_tell_yet:
        # The vendor holds it: having to ask again is no doubt.
        settlement = replace(settlement, state=State.ACCEPTED, needs_operator=False)
    call = answer.call or _NO_CALL
    if settlement.state is State.RETRY_WAIT and answer.resend is Resend.MARKED:
        # Marked before the send: a receipt may close the task before its outcome comes.
        call = replace(call, possible_duplicates=task.possible_duplicates + 1)
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
    flag = settlement.maybe_executed
    if settlement.state is not task.state and not allowed(
        task.state, settlement.state, mover, maybe_executed=flag
    ):
        settlement = replace(settlement, state=State.UNKNOWN, wake_at=tx.now(), maybe_executed=True)
    if settlement.state is task.state:
        wake_at = settlement.wake_at if settlement.wake_at is not None else tx.now()
        return moves.linger(
            tx,
            current,
            mover,
            wake_at=wake_at,
            tries=task.tries + 1,
            reason=settlement.reason,
            needs_operator=settlement.needs_operator,
        )
    planned = pipeline.settled_move(current, call, settlement, mover)
    return not moves.move(tx, [replace(planned, actor=actor or mover.value.lower())]).lost
