"""The timer: all recovery is one index range scan, `wake_at <= now`, dispatched by state.

Receives the due rows. Hands on READY tasks to the claimer, expired leases to the takeover,
and UNKNOWN or overdue ACCEPTED ones to the resolver. A stuck row is one that this scan
does not find, and there is no such row: an open row always has its next event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kernel.attempt import WaitRules
from kernel.environment import micros
from kernel.lifecycle import Mover, State
from kernel.store import moves, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Tx
from services.dispatcher import pipeline

_BATCH = 500
_RESERVE_MICROS = 5_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """What one scan found, by what is to be done with it."""

    found: int
    pools_ready: frozenset[str]
    ended_leases: tuple[Task, ...]
    unsettled: tuple[Task, ...]
    unwanted: frozenset[str]
    retries: Mapping[str, int]


def scan(tx: Tx, retries: Mapping[str, int], waits: WaitRules) -> Due:
    """One transaction: move what only time moves, and reserve what needs an answer first.

    `retries`: by pool, how many may go now; the answer says how many went.
    """
    due = tasks.due(tx, _BATCH)
    if not due:
        return Due(0, frozenset(), (), (), frozenset(), {})
    now = tx.now()
    planned: list[moves.TaskMove] = []
    asked: list[Task] = []
    went: Counter[str] = Counter()
    for task in due:
        if task.state in (State.IN_FLIGHT, State.UNKNOWN, State.ACCEPTED):
            asked.append(task)
        elif now >= task.deadline:
            planned.append(pipeline.expire(task, now))
        elif not _is_retry(task) or went[task.pool] < retries.get(task.pool, len(due)):
            went[task.pool] += _is_retry(task)
            planned.append(_ready(task))
        else:
            wait = micros(waits.backoff.seconds(task.tries, waits.draw)) + 1
            moves.linger(
                tx,
                task,
                Mover.TIMER,
                wake_at=min(now + wait, task.deadline),
                tries=task.tries,
                reason="RETRY_BUDGET",
            )
    moves.move(tx, planned)
    moves.reserve(tx, asked, _RESERVE_MICROS)
    return Due(
        len(due),
        frozenset(m.task.pool for m in planned if m.to_state is State.READY),
        tuple(task for task in asked if task.state is State.IN_FLIGHT),
        tuple(task for task in asked if task.state is not State.IN_FLIGHT),
        frozenset(tasks.unwanted_parents(tx, (task.parent_id for task in asked))),
        went,
    )


def _is_retry(task: Task) -> bool:
    """Something that was sent before: it spends from its pool's retry budget."""
    return task.state is State.RETRY_WAIT and task.sends > 0


def _ready(task: Task) -> moves.TaskMove:
    return moves.TaskMove(
        task=task,
        mover=Mover.TIMER,
        to_state=State.READY,
        reason=task.reason,
        wake_at=task.deadline,
        maybe_executed=task.maybe_executed,
        tries=task.tries,
    )
