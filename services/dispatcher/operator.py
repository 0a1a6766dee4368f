"""What an operator may do to an UNKNOWN task, with evidence from outside.

Receives a resolution and who gave it. Hands on the moved task. Every action is recorded.
Source: DESIGN section 6 ("What cannot be settled goes to the operator's queue").
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from kernel.attempt import RESULT_LOST, CallOutcome, Outcome, Settlement, WaitRules
from kernel.attempt import after_fence_never_begun as after_proof
from kernel.errors import LostRace, NotAllowedInState, NotFound
from kernel.lifecycle import Mover, State
from kernel.store import decisions, moves, tasks
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Tx
from services.dispatcher.resolver import write_settlement


class Resolution(StrEnum):
    """What the operator found out, or wants."""

    EXECUTED = "EXECUTED"
    NOT_EXECUTED = "NOT_EXECUTED"
    RETRY = "RETRY"


def resolve(
    tx: Tx, key: TaskKey, resolution: Resolution, operator: str, note: str, waits: WaitRules
) -> Task:
    """Settle one UNKNOWN task; raises NotFound, NotAllowedInState or LostRace.

    A model's task that was executed and whose result nobody has is FAILED with
    RESULT_LOST. A resend needs the ledger's leave: it is granted one more send, marked as a
    possible duplicate, since the operator's word is no proof that a vendor can be held to.
    """
    task = tasks.lock(tx, [key]).get(key)
    if task is None:
        raise NotFound("No such task.")
    if task.state is not State.UNKNOWN:
        raise NotAllowedInState(
            f"The task is {task.state}, not UNKNOWN; nothing was changed.", state=task.state
        )
    wanted = task.parent_id not in tasks.unwanted_parents(tx, [task.parent_id])
    now = tx.now()
    match resolution:
        case Resolution.EXECUTED:
            settlement = Settlement(State.FAILED, RESULT_LOST, None, False)
        case Resolution.NOT_EXECUTED:
            settlement = after_proof(task.facts(wanted=wanted), now, waits)
        case Resolution.RETRY:
            if not wanted or now >= task.deadline:
                raise NotAllowedInState(
                    "The task is no longer wanted, or its deadline has passed; it is not sent "
                    "again. Resolve it as executed or not-executed.",
                    state=task.state,
                )
            settlement = Settlement(State.RETRY_WAIT, "OPERATOR_RETRY", now, True)
    call = CallOutcome(Outcome.UNKNOWN)
    if settlement.state is State.RETRY_WAIT:
        moves.grant_resend(tx, task)
        # Marked before the send: a receipt may close the task before its outcome comes.
        call = replace(call, possible_duplicates=task.possible_duplicates + 1)
    if not write_settlement(tx, task, settlement, call, Mover.OPERATOR, operator):
        raise LostRace("The task moved meanwhile; look at it again.")
    decisions.record_action(tx, task.parent_id, task.n, operator, f"RESOLVE_{resolution}", note)
    moved = tasks.get(tx, key)
    if moved is None:
        raise NotFound("No such task.")
    return moved
