"""What became of everything, read from the store: the figures of the demo and the labs.

Receives the open transaction. Hands on counts; no counter of a run takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts over the whole database.

    `decided` by state of the parent; `open_tasks` have a next event; `unknown_met` tasks
    were UNKNOWN at some time, `unknown_left` still are; `marked_duplicates` sends may have
    been executed twice; `fenced_writes` settles lost their fence.
    """

    contents: int
    tasks: int
    decided: dict[str, int]
    open_tasks: int
    expired: int
    unknown_met: int
    unknown_left: int
    marked_duplicates: int
    fenced_writes: int


_PARENTS = Statement("select state, count(*) as amount from parents group by state")
_TASKS = Statement(
    """select count(*) as tasks,
         coalesce(sum(case when wake_at is null then 0 else 1 end), 0) as open_tasks,
         coalesce(sum(case when state = 'EXPIRED' then 1 else 0 end), 0) as expired,
         coalesce(sum(case when state = 'UNKNOWN' then 1 else 0 end), 0) as unknown_left,
         coalesce(sum(possible_duplicates), 0) as marked from tasks"""
)
_UNKNOWN_MET = Statement(
    """select count(*) as amount from
         (select distinct parent_id, n from attempts where to_state = 'UNKNOWN') met"""
)
_FENCED = Statement("select count(*) as amount from receipts where source = 'late_attempt'")
_MARKS = Statement(
    """select idempotency_key, possible_duplicates from tasks where possible_duplicates > 0"""
)
_ONCE_UNKNOWN = Statement(
    """select a.parent_id, a.n from attempts a
       join tasks t on t.parent_id = a.parent_id and t.n = a.n
       where a.to_state = 'UNKNOWN' and t.state = 'SUCCEEDED' order by a.at limit 1"""
)
_ACCEPTED_IDS = Statement("select id from parents")


def read(tx: Tx) -> Outcome:
    """All counts, of one snapshot."""
    parents = {row.state: int(row.amount) for row in tx.query(_PARENTS)}
    row = tx.query(_TASKS)[0]
    return Outcome(
        contents=sum(parents.values()),
        tasks=int(row.tasks),
        decided=parents,
        open_tasks=int(row.open_tasks),
        expired=int(row.expired),
        unknown_met=int(tx.query(_UNKNOWN_MET)[0].amount),
        unknown_left=int(row.unknown_left),
        marked_duplicates=int(row.marked),
        fenced_writes=int(tx.query(_FENCED)[0].amount),
    )


def marks(tx: Tx) -> dict[str, int]:
    """Possible duplicates by idempotency key, where there are any."""
    return {row.idempotency_key: int(row.possible_duplicates) for row in tx.query(_MARKS)}


def once_unknown(tx: Tx) -> tuple[str, int] | None:
    """The key of a task that was UNKNOWN and then SUCCEEDED."""
    row = tx.one(_ONCE_UNKNOWN)
    return (row.parent_id, row.n) if row else None


def accepted_ids(tx: Tx) -> set[str]:
    """Every parent that was accepted."""
    return {row.id for row in tx.query(_ACCEPTED_IDS)}
