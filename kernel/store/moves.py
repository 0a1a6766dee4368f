"""The one function that moves tasks: fenced, checked against the move table, and recorded.

Receives moves decided by rules. Hands on how many rows each fence let through; a move
that lost its fence changes nothing. Every winning move appends one attempt row, and a
change marker for the parent where a verdict can depend on it. Source: DESIGN sections 2, 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.lifecycle import CLOSED, Mover, State, allowed
from kernel.store import markers
from kernel.store.dialect import Statement, joined_update
from kernel.store.tasks import Task
from kernel.store.transaction import Tx


class ForbiddenMoveError(AssertionError):
    """A rule asked for a move that the table does not have: a bug, nothing was written."""


@dataclass(frozen=True, slots=True)
class TaskMove:
    """One move of `task`, the image that the mover saw: state, attempt and owner are its fence.

    Scores, attempt and external id keep what the row has where none is given; sends,
    possible duplicates and cost only rise. Times in microseconds.
    """

    task: Task
    mover: Mover
    to_state: State
    reason: str
    wake_at: int | None
    maybe_executed: bool
    outcome: str = ""
    actor: str = ""  # who is recorded; the task's owner where empty
    new_owner: str = ""
    new_attempt: int | None = None
    tries: int = 0
    needs_operator: bool = False
    scores: Mapping[str, float] | None = None
    external_id: str = ""
    sends: int = 0
    possible_duplicates: int = 0
    cost_micros: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """`changed`: rows that the fenced update matched. `lost`: moves whose fence did not hold."""

    changed: int
    lost: tuple[TaskMove, ...]


_MOVE = joined_update(
    "tasks",
    {
        "parent_id": "text",
        "n": "int",
        "fence_state": "text",
        "fence_attempt": "int",
        "fence_owner": "text",
        "to_state": "text",
        "new_attempt": "int",
        "new_owner": "text",
        "new_tries": "int",
        "new_reason": "text",
        "new_wake": "int",
        "new_maybe": "int",
        "new_operator": "int",
        "new_scores": "text",
        "new_external": "text",
        "new_sends": "int",
        "new_duplicates": "int",
        "new_cost": "int",
        "stamp": "int",
    },
    assign="""unknown_since = case when b.to_state <> 'UNKNOWN' then null
           when unknown_since is null then b.stamp else unknown_since end,
         claimed_at = case when b.to_state = 'IN_FLIGHT' then b.stamp else claimed_at end,
         result_at = case when b.new_scores is null then result_at else b.stamp end,
         state = b.to_state, attempt = b.new_attempt, owner = b.new_owner, tries = b.new_tries,
         revision = revision + 1, reason = b.new_reason, wake_at = b.new_wake,
         maybe_executed = b.new_maybe, needs_operator = b.new_operator,
         scores = coalesce(b.new_scores, scores),
         external_id = case when b.new_external = '' then external_id else b.new_external end,
         sends = case when b.new_sends > sends then b.new_sends else sends end,
         possible_duplicates = case when b.new_duplicates > possible_duplicates
           then b.new_duplicates else possible_duplicates end,
         cost_micros = case when b.new_cost > cost_micros then b.new_cost else cost_micros end""",
    where="""t.parent_id = b.parent_id and t.n = b.n and t.state = b.fence_state
         and t.attempt = b.fence_attempt and t.owner = b.fence_owner""",
)
_FENCES = Statement(
    """select t.parent_id, t.n, t.state, t.attempt, t.owner, t.revision
       from {batch} b join tasks t on t.parent_id = b.parent_id and t.n = b.n""",
    {"parent_id": "text", "n": "int"},
    mysql="""select t.parent_id, t.n, t.state, t.attempt, t.owner, t.revision
       from {batch} b join tasks t on t.parent_id = b.parent_id and t.n = b.n for update""",
)
_RECORD = Statement(
    """insert into attempts (parent_id, n, revision, attempt, mover, from_state, to_state,
         outcome, reason, owner, idempotency_key, vendor, external_id, cost_micros, started_at, at)
       select parent_id, n, revision, attempt, mover, from_state, to_state, outcome, reason,
         owner, idempotency_key, vendor, external_id, cost_micros, started_at, {now}
       from {batch} b""",
    {
        "parent_id": "text",
        "n": "int",
        "revision": "int",
        "attempt": "int",
        "mover": "text",
        "from_state": "text",
        "to_state": "text",
        "outcome": "text",
        "reason": "text",
        "owner": "text",
        "idempotency_key": "text",
        "vendor": "text",
        "external_id": "text",
        "cost_micros": "int",
        "started_at": "int",
    },
)
# A lease goes on while the call runs, under the same fence.
_RENEW = joined_update(
    "tasks",
    {"parent_id": "text", "n": "int", "fence_attempt": "int", "fence_owner": "text"},
    assign="wake_at = {now} + :lease",
    where="""t.parent_id = b.parent_id and t.n = b.n and t.state = 'IN_FLIGHT'
         and t.attempt = b.fence_attempt and t.owner = b.fence_owner""",
)
_STILL_HELD = Statement(
    """select t.parent_id, t.n, t.attempt from {batch} b join tasks t
       on t.parent_id = b.parent_id and t.n = b.n and t.state = 'IN_FLIGHT'
         and t.attempt = b.fence_attempt and t.owner = b.fence_owner""",
    {"parent_id": "text", "n": "int", "fence_attempt": "int", "fence_owner": "text"},
)
# Whoever works a due row moves its next event on first, so that others leave it alone.
_RESERVE = joined_update(
    "tasks",
    {"parent_id": "text", "n": "int", "fence_state": "text", "seen_wake": "int"},
    assign="wake_at = {now} + :wait",
    where="""t.parent_id = b.parent_id and t.n = b.n and t.state = b.fence_state
         and t.wake_at = b.seen_wake""",
)
_HASTEN = Statement(
    """update tasks set wake_at = {now}
       where parent_id = :parent_id and state in ('ACCEPTED', 'UNKNOWN')"""
)
# An open task stays where it is and is looked at again later.
_LINGER = joined_update(
    "tasks",
    {
        "parent_id": "text",
        "n": "int",
        "fence_state": "text",
        "fence_attempt": "int",
        "new_wake": "int",
        "new_tries": "int",
        "new_reason": "text",
        "new_operator": "int",
        "rise": "int",
    },
    assign="""wake_at = b.new_wake, tries = b.new_tries, reason = b.new_reason,
         needs_operator = b.new_operator, revision = revision + b.rise""",
    where="""t.parent_id = b.parent_id and t.n = b.n and t.state = b.fence_state
         and t.attempt = b.fence_attempt""",
)
# Of two successes the one that the vendor dates first is shown, whenever it arrives.
_REVISE_SCORES = Statement(
    """update tasks set scores = :scores, revision = revision + 1
       where parent_id = :parent_id and n = :n and state = 'SUCCEEDED'"""
)
# The operator grants one more send; the ledger marks it when it is made.
_GRANT_RESEND = Statement(
    """update tasks set granted_sends = granted_sends + 1,
         max_sends = case when max_sends > sends then max_sends else sends + 1 end
       where parent_id = :parent_id and n = :n and state = 'UNKNOWN' and attempt = :attempt"""
)
_ATTEMPTS = Statement(
    """select parent_id, n, revision, attempt, mover, from_state, to_state, outcome, reason,
         owner, idempotency_key, vendor, external_id, cost_micros, started_at, at
       from attempts where parent_id = :parent_id and (:n = 0 or n = :n)
       order by at, n, revision"""
)

# A verdict, or what is shown of a case, can depend on these.
_TELLS_PARENT = CLOSED | {State.UNKNOWN, State.ACCEPTED}


def move(tx: Tx, moves: Sequence[TaskMove]) -> Moved:
    """Write moves in one fenced statement.

    Raises ForbiddenMoveError when a move is not in the table. The fence of each is
    (state, attempt, owner) as its mover saw them; which ones lost is read under the same
    locks that the update takes.
    """
    if not moves:
        return Moved(0, ())
    for each in moves:
        _check(each)
    keys = [each.task.key for each in moves]
    fences = {(row.parent_id, row.n): row for row in tx.query(_FENCES, sorted(keys))}
    stamp = tx.now()
    changed = tx.changed(_MOVE, [_row(each, stamp) for each in moves])
    won = [each for each in moves if _holds(each, fences.get(each.task.key))]
    if changed != len(won):
        raise ForbiddenMoveError(f"{changed} rows changed, {len(won)} fences held")
    if won:
        revisions = {key: row.revision for key, row in fences.items()}
        tx.execute(_RECORD, [_record(each, revisions[each.task.key] + 1) for each in won])
        markers.append(tx, [each.task.parent_id for each in won if each.to_state in _TELLS_PARENT])
    lost = tuple(each for each in moves if not _holds(each, fences.get(each.task.key)))
    return Moved(changed, lost)


def renew(tx: Tx, held: Sequence[Task], lease_micros: int) -> set[tuple[str, int, int]]:
    """Renew leases under their fence; returns (parent, n, attempt) of those still held."""
    rows = [(task.parent_id, task.n, task.attempt, task.owner) for task in held]
    if not rows or tx.changed(_RENEW, rows, lease=lease_micros) == len(rows):
        return {(task.parent_id, task.n, task.attempt) for task in held}
    return {(row.parent_id, row.n, row.attempt) for row in tx.query(_STILL_HELD, rows)}


def hasten(tx: Tx, parent_id: str) -> None:
    """Have what is at a vendor, or may be, looked at now: its parent is no longer wanted."""
    tx.changed(_HASTEN, parent_id=parent_id)


def reserve(tx: Tx, due: Iterable[Task], wait_micros: int) -> None:
    """Move the next event of due rows on by `wait_micros`, unless somebody else did."""
    rows = [(task.parent_id, task.n, task.state, task.wake_at) for task in due]
    if rows:
        tx.changed(_RESERVE, rows, wait=wait_micros)


def linger(
    tx: Tx,
    task: Task,
    mover: Mover,
    *,
    wake_at: int,
    tries: int,
    reason: str,
    needs_operator: bool = False,
) -> bool:
    """Keep an open task where it is until `wake_at`; False when it moved since it was read.

    `task` is the locked row. What people see changes with it (the reason, or that a person is
    needed) is recorded like a move.
    """
    seen = (task.reason, task.needs_operator) != (reason[:128], needs_operator)
    row = (
        task.parent_id,
        task.n,
        task.state,
        task.attempt,
        wake_at,
        tries,
        reason[:128],
        int(needs_operator),
        int(seen),
    )
    if tx.changed(_LINGER, [row]) != 1:
        return False
    if seen:
        stays = TaskMove(task, mover, task.state, reason, wake_at, task.maybe_executed)
        tx.execute(_RECORD, [_record(stays, task.revision + 1)])
    return True


def revise_scores(tx: Tx, task: Task, scores: Mapping[str, float] | None) -> None:
    """Show other scores of a SUCCEEDED task; what was decided from the old ones stands."""
    told = None if scores is None else orjson.dumps(dict(scores)).decode()
    tx.changed(_REVISE_SCORES, parent_id=task.parent_id, n=task.n, scores=told)


def grant_resend(tx: Tx, task: Task) -> None:
    """Let an UNKNOWN task be sent once more, beyond what the rules allow."""
    tx.changed(_GRANT_RESEND, parent_id=task.parent_id, n=task.n, attempt=task.attempt)


def recorded(tx: Tx, parent_id: str, n: int = 0) -> list[Row[Any]]:
    """The recorded moves of a parent's tasks, or of one, the oldest first."""
    return tx.query(_ATTEMPTS, parent_id=parent_id, n=n)


def _check(each: TaskMove) -> None:
    # The flag that the table asks about is the one after this move's evidence.
    flag = each.maybe_executed
    if not allowed(each.task.state, each.to_state, each.mover, maybe_executed=flag):
        raise ForbiddenMoveError(
            f"{each.mover} may not take a task from {each.task.state} to {each.to_state} "
            f"with maybe_executed={flag}"
        )


def _holds(each: TaskMove, row: Row[Any] | None) -> bool:
    return row is not None and (row.state, row.attempt, row.owner) == (
        each.task.state,
        each.task.attempt,
        each.task.owner,
    )


def _row(each: TaskMove, stamp: int) -> tuple[object, ...]:
    return (
        each.task.parent_id,
        each.task.n,
        each.task.state,
        each.task.attempt,
        each.task.owner,
        each.to_state,
        each.task.attempt if each.new_attempt is None else each.new_attempt,
        each.new_owner,
        each.tries,
        each.reason[:128],
        each.wake_at,
        int(each.maybe_executed),
        int(each.needs_operator),
        None if each.scores is None else orjson.dumps(dict(each.scores)).decode(),
        each.external_id[:128],
        each.sends,
        each.possible_duplicates,
        each.cost_micros,
        stamp,
    )


def _record(each: TaskMove, revision: int) -> tuple[object, ...]:
    return (
        each.task.parent_id,
        each.task.n,
        revision,
        each.task.attempt if each.new_attempt is None else each.new_attempt,
        each.mover,
        each.task.state,
        each.to_state,
        each.outcome,
        each.reason[:128],
        each.actor or each.new_owner or each.task.owner,
        each.task.idempotency_key,
        each.task.vendor,
        each.external_id[:128],
        each.cost_micros,
        each.task.claimed_at,
    )
