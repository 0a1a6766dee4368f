"""Receipts of the mesh: stored once, then applied to tasks that nobody holds.

Receives verified receipts, and late results of settles that lost their fence: one path of
adoption for both. Hands on one disposition each. What a task shows is a function of the set
of its receipts, never of their order. Source: DESIGN sections 1 and 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.environment import MICROS_PER_SECOND
from kernel.lifecycle import CLOSED, Mover, State
from kernel.receipt import Disposition, ReceiptFact, ReceiptState, Shown, after_receipts
from kernel.store import markers, moves, tasks
from kernel.store.dialect import Statement, joined_update
from kernel.store.tasks import Task, TaskKey
from kernel.store.transaction import Tx

RECEIPT, LATE_ATTEMPT = "receipt", "late_attempt"


@dataclass(frozen=True, slots=True)
class NewReceipt:
    """A receipt to be stored; `occurred_at` is the vendor's own time in microseconds.

    `vendor` and `idempotency_key` are those of the call it speaks of; where they are given
    they must be the task's own.
    """

    receipt_id: str
    parent_id: str
    n: int
    state: ReceiptState
    source: str = RECEIPT
    attempt: int = 0
    vendor_status: str = ""
    external_id: str = ""
    reason: str = ""
    scores: Mapping[str, float] | None = None
    cost_micros: int = 0
    occurred_at: int = 0
    vendor: str = ""
    idempotency_key: str = ""

    def speaks_of(self, task: Task | None) -> bool:
        """Whether it can be about this task, as far as is known."""
        return task is None or (
            self.vendor in ("", task.vendor) and self.idempotency_key in ("", task.idempotency_key)
        )


_STORED_BEFORE = Statement(
    "select r.receipt_id from {batch} b join receipts r on r.receipt_id = b.receipt_id",
    {"receipt_id": "text"},
)
_COLUMNS = """receipt_id, parent_id, n, source, attempt, state, vendor_status, external_id, reason,
         scores, cost_micros, occurred_at"""
# Store receipts; the primary key lets the first one in.
_INSERT = Statement(
    f"""insert or ignore into receipts ({_COLUMNS}, received_at, disposition)
       select {_COLUMNS}, {{now}}, 'STORED' from {{batch}} b""",  # noqa: S608
    {
        "receipt_id": "text",
        "parent_id": "text",
        "n": "int",
        "source": "text",
        "attempt": "int",
        "state": "text",
        "vendor_status": "text",
        "external_id": "text",
        "reason": "text",
        "scores": "text",
        "cost_micros": "int",
        "occurred_at": "int",
    },
    mysql=f"""insert ignore into receipts ({_COLUMNS}, received_at, disposition)
       select {_COLUMNS}, {{now}}, 'STORED' from {{batch}} b""",  # noqa: S608
)
_OF_TASKS = Statement(
    """select r.receipt_id, r.parent_id, r.n, r.source, r.attempt, r.state, r.external_id,
         r.reason, r.scores, r.cost_micros, r.occurred_at, r.disposition
       from {batch} b join receipts r on r.parent_id = b.parent_id and r.n = b.n""",
    {"parent_id": "text", "n": "int"},
)
_DISPOSE = joined_update(
    "receipts",
    {"rid": "text", "new_disposition": "text"},
    assign="disposition = b.new_disposition",
    where="t.receipt_id = b.rid",
)
_LISTED = Statement(
    """select receipt_id, parent_id, n, source, attempt, state, vendor_status, external_id,
         reason, scores, cost_micros, occurred_at, received_at, disposition
       from receipts where parent_id = :parent_id and (:n = 0 or n = :n)
       order by received_at, receipt_id"""
)

# Results for tasks that are closed otherwise, by the vendor's time; not kept as late ones yet.
_LATE_SUCCESSES = Statement(
    """select r.parent_id, r.n, r.source, r.scores, r.received_at from {batch} b
       join receipts r on r.parent_id = b.parent_id
       join tasks t on t.parent_id = r.parent_id and t.n = r.n
       where r.disposition = 'LATE' and r.state = 'SUCCEEDED' and r.scores is not null
         and t.requirement <> 'SHADOW'
         and not exists (select 1 from late_results l
           where l.parent_id = r.parent_id and l.n = r.n)
       order by r.parent_id, r.n, r.occurred_at, r.receipt_id""",
    {"parent_id": "text"},
)

# How long after an ACCEPTED receipt the final one may take before the vendor is asked.
_DUE_SECONDS = 60.0  # where the vendor declares nothing
_NOTHING_DECLARED: Mapping[str, float] = {}


def take(
    tx: Tx, arrived: Sequence[NewReceipt], due_seconds: Mapping[str, float] = _NOTHING_DECLARED
) -> list[str]:
    """Store receipts and apply them; one disposition each, in order.

    Idempotent by receipt id. A receipt of a held task is stored, and its settle applies it.
    `due_seconds`: by vendor, how long after "accepted" the final receipt may take.
    """
    if not arrived:
        return []
    known = {row.receipt_id for row in tx.query(_STORED_BEFORE, [(r.receipt_id,) for r in arrived])}
    fresh: dict[str, NewReceipt] = {}
    for receipt in arrived:
        if receipt.receipt_id not in known:
            fresh.setdefault(receipt.receipt_id, receipt)
    dispositions: dict[str, str] = {}
    if fresh:
        locked = tasks.lock(tx, {(r.parent_id, r.n) for r in fresh.values()})
        # What names a task that it cannot be about is no evidence for it.
        strays = [
            each.receipt_id
            for each in fresh.values()
            if not each.speaks_of(locked.get((each.parent_id, each.n)))
        ]
        for receipt_id in strays:
            del fresh[receipt_id]
        if fresh:
            tx.execute(_INSERT, [_row(receipt) for receipt in fresh.values()])
            dispositions = apply(tx, locked, fresh.keys(), due_seconds)
        dispositions |= dict.fromkeys(strays, Disposition.UNMATCHED)
    # The first copy in the batch is told what became of it, any other that it is one.
    return [dispositions.pop(each.receipt_id, Disposition.DUPLICATE) for each in arrived]


def apply(
    tx: Tx,
    locked: Mapping[TaskKey, Task],
    new_ids: Iterable[str] | None = None,
    due_seconds: Mapping[str, float] = _NOTHING_DECLARED,
) -> dict[str, str]:
    """Apply the stored receipts of locked tasks; dispositions by receipt id.

    `new_ids` are those to be disposed of now; None means those that waited for a settle.
    """
    new = None if new_ids is None else set(new_ids)
    by_task: dict[TaskKey, list[Row[Any]]] = {}
    for row in tx.query(_OF_TASKS, sorted(locked)) if locked else []:
        by_task.setdefault((row.parent_id, row.n), []).append(row)
    now = tx.now()
    planned: list[moves.TaskMove] = []
    told: dict[str, str] = {}
    listed_again: dict[str, str] = {}
    changed_parents: set[str] = set()
    for key, rows in by_task.items():
        task = locked[key]
        facts = [_fact(row) for row in rows]
        shown = after_receipts(task.state, task.scores, task.possible_duplicates, facts)
        due = due_seconds.get(task.vendor, _DUE_SECONDS)
        if shown.state is not task.state:
            planned.append(_move(task, shown, now + int(due * MICROS_PER_SECOND)))
        elif shown.scores != task.scores:
            moves.revise_scores(tx, task, shown.scores)
            changed_parents.add(task.parent_id)
        for row in rows:
            disposition = shown.dispositions[row.receipt_id]
            waits = row.disposition == Disposition.STORED
            if waits if new is None else row.receipt_id in new:
                told[row.receipt_id] = disposition
            elif waits or disposition is Disposition.CONFLICT:
                # One that waited for others may count now, and a contradiction is listed
                # whichever of the two came first.
                listed_again[row.receipt_id] = disposition
            if disposition in (Disposition.LATE, Disposition.CONFLICT):
                changed_parents.add(task.parent_id)
    moves.move(tx, planned)
    markers.append(tx, changed_parents)
    for receipt_id in new or ():
        told.setdefault(receipt_id, Disposition.UNMATCHED)
    if told or listed_again:
        tx.changed(_DISPOSE, sorted((told | listed_again).items()))
    return told


def waiting(tx: Tx, keys: Iterable[TaskKey]) -> set[TaskKey]:
    """Those of these tasks that have a stored receipt which waits to be applied."""
    rows = tx.query(_OF_TASKS, sorted(set(keys)))
    return {(row.parent_id, row.n) for row in rows if row.disposition == Disposition.STORED}


def listed(tx: Tx, parent_id: str, n: int = 0) -> list[Row[Any]]:
    """All receipts of a parent's tasks, or of one, in order of arrival."""
    return tx.query(_LISTED, parent_id=parent_id, n=n)


def late_successes(tx: Tx, parent_ids: Iterable[str]) -> list[Row[Any]]:
    """Results that came when their task was closed otherwise, and are not kept as late yet."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    return tx.query(_LATE_SUCCESSES, rows) if rows else []


def _move(task: Task, shown: Shown, due_at: int) -> moves.TaskMove:
    closes = shown.state in CLOSED
    return moves.TaskMove(
        task=task,
        mover=Mover.RECEIPT,
        to_state=shown.state,
        reason=shown.reason,
        wake_at=None if closes else due_at,
        maybe_executed=not closes,
        outcome="RECEIPT",
        actor=task.vendor,
        scores=shown.scores if shown.state is State.SUCCEEDED else None,
        external_id=shown.merged.external_id,
        cost_micros=shown.merged.cost_micros,
    )


def _fact(row: Row[Any]) -> ReceiptFact:
    return ReceiptFact(
        receipt_id=row.receipt_id,
        state=ReceiptState(row.state),
        occurred_at=row.occurred_at,
        scores=orjson.loads(row.scores) if row.scores else None,
        external_id=row.external_id,
        reason=row.reason,
        cost_micros=row.cost_micros,
    )


def _row(receipt: NewReceipt) -> tuple[object, ...]:
    return (
        receipt.receipt_id,
        receipt.parent_id,
        receipt.n,
        receipt.source,
        receipt.attempt,
        receipt.state,
        receipt.vendor_status[:128],
        receipt.external_id[:128],
        receipt.reason[:128],
        None if receipt.scores is None else orjson.dumps(dict(receipt.scores)).decode(),
        receipt.cost_micros,
        receipt.occurred_at,
    )
