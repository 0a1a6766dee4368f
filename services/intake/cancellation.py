"""The wish to cancel a case, in one transaction: a tombstone, and what waits is stopped.

Receives the open transaction and a case id. Hands on what became of each task, truthfully:
what is, or was, at the vendor is not revocable. Source: DESIGN section 2 (moves by intake),
I9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kernel.errors import NotAllowedInState, NotFound
from kernel.lifecycle import CaseState, Mover, State
from kernel.store import markers, moves, parents, tasks
from kernel.store.tasks import Task
from kernel.store.transaction import Tx
from services.intake.sameness import KIND

CANCEL_REQUESTED = "CANCEL_REQUESTED"


class CancelAnswer(StrEnum):
    """What cancelling did to one task."""

    CANCELLED = "CANCELLED"  # never to be seen by the vendor
    TOO_LATE = "TOO_LATE"  # the call is at the vendor, or was
    UNKNOWN = "UNKNOWN"  # it may have executed; evidence will settle it


@dataclass(frozen=True, slots=True)
class CancelledTask:
    """One task after the wish was recorded."""

    task_id: str
    answer: CancelAnswer
    state: State


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The case's state when the wish was recorded, and its tasks."""

    state: CaseState
    tasks: tuple[CancelledTask, ...]


_WAITING = frozenset({State.PLANNED, State.READY, State.RETRY_WAIT})
_ANSWERS = {State.CANCELLED: CancelAnswer.CANCELLED, State.UNKNOWN: CancelAnswer.UNKNOWN}


def cancel_case(tx: Tx, case_id: str, allow: Callable[[str], bool]) -> Cancelled:
    """Record the wish to cancel, and move every task that waits. May be repeated.

    Raises NotFound, also for a case of a tenant that `allow` refuses, so that ids of others
    cannot be told from ids of nobody; NotAllowedInState when the case has a verdict.
    """
    case = parents.lock(tx, case_id)
    if case is None or case.kind != KIND or not allow(case.tenant_id):
        raise NotFound("There is no case with this id; check case_id.")
    if case.state not in (CaseState.PENDING, CaseState.CANCELLED):
        raise NotAllowedInState(
            f"The case is already {case.state}; nothing was cancelled.", state=case.state.value
        )
    if parents.request_cancel(tx, case_id):
        markers.append(tx, [case_id])
    children = tasks.lock(tx, [child.key for child in tasks.children(tx, case_id)])
    now = tx.now()
    moves.move(tx, [_stop(task, now) for task in children.values() if task.state in _WAITING])
    # A vendor that can cancel is asked to, as soon as the resolver looks.
    moves.hasten(tx, case_id)
    return Cancelled(
        case.state,
        tuple(
            CancelledTask(task.task_id, _ANSWERS.get(task.state, CancelAnswer.TOO_LATE), task.state)
            for task in tasks.children(tx, case_id)
        ),
    )


def _stop(task: Task, now: int) -> moves.TaskMove:
    """CANCELLED, or at once to the resolver when an earlier send may have executed."""
    return moves.TaskMove(
        task,
        Mover.INTAKE,
        State.UNKNOWN if task.maybe_executed else State.CANCELLED,
        CANCEL_REQUESTED,
        now if task.maybe_executed else None,
        task.maybe_executed,
    )
