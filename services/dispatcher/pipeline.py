"""One value through a pipeline: claim, execute, settle; each step one transaction or none.

Receives pools with free places. Hands on settled tasks. These are the dispatcher's store
functions: they take the transaction first, ask the rules, and write through `moves.move`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel.attempt import CallOutcome, Outcome, Settlement, WaitRules, after_call
from kernel.environment import micros
from kernel.fairness import Priority
from kernel.lifecycle import Mover, State
from kernel.receipt import ReceiptState
from kernel.store import closures, moves, receipts, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Tx

CANCEL_REQUESTED = "CANCEL_REQUESTED"
DEADLINE_PASSED = "DEADLINE_PASSED"
LEASE_EXPIRED = "LEASE_EXPIRED"


@dataclass(frozen=True, slots=True)
class Finished:
    """A held task and what came back for it."""

    task: Task
    call: CallOutcome


@dataclass(frozen=True, slots=True)
class Settled:
    """Counts of one settle: rows changed, fences lost."""

    changed: int
    fenced: int


def claim(tx: Tx, pool: str, most: int, owner: str, lease_micros: int) -> list[Task]:
    """Lease up to `most` READY tasks of a pool, in order; returns them as now held.

    Tombstoned tasks are cancelled here instead, or become UNKNOWN where a call of theirs
    may have executed.
    """
    if pool in closures.closed(tx):
        return []
    ready: list[Task] = []
    for priority in Priority:
        if len(ready) < most:
            ready += tasks.next_ready(tx, pool, priority, most - len(ready))
    if not ready:
        return []
    unwanted = tasks.unwanted_parents(tx, (task.parent_id for task in ready))
    now = tx.now()
    held: list[Task] = []
    planned: list[moves.TaskMove] = []
    for task in ready:
        if task.parent_id in unwanted:
            planned.append(_unwanted(task, Mover.CLAIM, now))
        else:
            planned.append(_leased(task, Mover.CLAIM, owner, now + lease_micros, ""))
            held.append(_held(task, owner, now, lease_micros))
    moves.move(tx, planned)
    return held


def take_over(tx: Tx, task: Task, owner: str, lease_micros: int) -> Task | None:
    """Replace the owner of a task whose lease ran out; None when somebody was faster.

    The replaced attempt may have executed, so the task says so from here on.
    """
    now = tx.now()
    planned = replace(
        _leased(task, Mover.TAKEOVER, owner, now + lease_micros, LEASE_EXPIRED),
        maybe_executed=True,
        outcome=LEASE_EXPIRED,
    )
    if moves.move(tx, [planned]).lost:
        return None
    return replace(_held(task, owner, now, lease_micros), maybe_executed=True)


def has_waiting_receipt(tx: Tx, task: Task) -> bool:
    """Whether a stored receipt waits for this task: then nothing may be sent again."""
    return bool(receipts.waiting(tx, [task.key]))


def settle(tx: Tx, finished: Sequence[Finished], waits: WaitRules) -> Settled:
    """Write what came back, fenced by (owner, attempt), then apply stored receipts.

    A settle that lost its fence changes no task: its result is stored as a receipt of
    source `late_attempt`, with its cost, and is adopted on that path.
    """
    now = tx.now()
    planned = [
        settled_move(each.task, each.call, after_call(each.call, each.task.facts(), now, waits))
        for each in finished
    ]
    for each in finished:
        _close_pool(tx, each)
    moved = moves.move(tx, planned)
    lost = {_fence(each.task) for each in moved.lost}
    receipts.take(tx, [late_receipt(e, now) for e in finished if _fence(e.task) in lost])
    kept = receipts.waiting(tx, [e.task.key for e in finished if _fence(e.task) not in lost])
    if kept:
        receipts.apply(tx, tasks.lock(tx, kept))
    return Settled(moved.changed, len(moved.lost))


def settled_move(
    task: Task, call: CallOutcome, settlement: Settlement, mover: Mover = Mover.SETTLE
) -> moves.TaskMove:
    """The move that writes a settlement, with the evidence of the call that led to it."""
    # A retry that failed again waits longer; asking about a call in doubt starts afresh.
    failed_again = settlement.state is State.RETRY_WAIT and task.state is State.IN_FLIGHT
    given_back = settlement.state is State.READY
    return moves.TaskMove(
        task=task,
        mover=mover,
        to_state=settlement.state,
        reason=settlement.reason,
        wake_at=settlement.wake_at,
        maybe_executed=settlement.maybe_executed,
        outcome=call.outcome,
        tries=task.tries + failed_again if failed_again or given_back else 0,
        needs_operator=settlement.needs_operator,
        scores=settlement.scores,
        external_id=settlement.external_id or call.external_id,
        sends=call.sends,
        possible_duplicates=call.possible_duplicates,
        cost_micros=call.cost_micros,
    )


def late_receipt(finished: Finished, now: int) -> receipts.NewReceipt:
    """The result of an attempt that lost its fence, as evidence."""
    task, call = finished.task, finished.call
    # The key's cost is told with every answer; it belongs to the attempt that sent.
    sent = not call.replayed and call.outcome is not Outcome.STALE_ATTEMPT
    state = {
        Outcome.COMPLETED: ReceiptState.SUCCEEDED,
        Outcome.ACCEPTED: ReceiptState.ACCEPTED,
    }.get(call.outcome, ReceiptState.UNMAPPED)
    return receipts.NewReceipt(
        receipt_id=f"late:{task.task_id}:{task.attempt}",
        parent_id=task.parent_id,
        n=task.n,
        source=receipts.LATE_ATTEMPT,
        attempt=task.attempt,
        state=state,
        vendor_status=call.outcome,
        external_id=call.external_id,
        reason=call.reason,
        scores=call.scores,
        cost_micros=call.cost_micros if sent else 0,
        occurred_at=now,
    )


def _fence(task: Task) -> tuple[str, int, int, str]:
    return (task.parent_id, task.n, task.attempt, task.owner)


def _close_pool(tx: Tx, each: Finished) -> None:
    asked = each.call.retry_after_seconds
    if each.call.outcome is Outcome.THROTTLED and asked:
        closures.close(tx, each.task.pool, micros(asked))


def _leased(task: Task, mover: Mover, owner: str, wake_at: int, reason: str) -> moves.TaskMove:
    return moves.TaskMove(
        task=task,
        mover=mover,
        to_state=State.IN_FLIGHT,
        reason=reason,
        wake_at=wake_at,
        maybe_executed=task.maybe_executed,
        new_owner=owner,
        new_attempt=task.attempt + 1,
        tries=task.tries,
    )


def _held(task: Task, owner: str, now: int, lease_micros: int) -> Task:
    return replace(
        task,
        state=State.IN_FLIGHT,
        owner=owner,
        attempt=task.attempt + 1,
        revision=task.revision + 1,
        claimed_at=now,
        wake_at=now + lease_micros,
    )


def _unwanted(task: Task, mover: Mover, now: int) -> moves.TaskMove:
    if task.maybe_executed:
        return moves.TaskMove(task, mover, State.UNKNOWN, CANCEL_REQUESTED, now, True)
    return moves.TaskMove(task, mover, State.CANCELLED, CANCEL_REQUESTED, None, False)


def expire(task: Task, now: int) -> moves.TaskMove:
    """The timer's move for a waiting task whose deadline passed."""
    if task.maybe_executed:
        return moves.TaskMove(task, Mover.TIMER, State.UNKNOWN, DEADLINE_PASSED, now, True)
    return moves.TaskMove(task, Mover.TIMER, State.EXPIRED, DEADLINE_PASSED, None, False)
