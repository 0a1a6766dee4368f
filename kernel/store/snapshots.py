"""Reads of whole sets: the children of many parents as a decision needs them, and probes.

Receives the open transaction and parent ids. Hands on narrow rows of tasks, and cheap answers
that spare a large set from being read at each change. Statements of `tasks` that write or
move rows are elsewhere. Source: DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.decision import Child, Requirement
from kernel.identity import task_id
from kernel.lifecycle import State
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A child with its number and when its result was stored (microseconds; None: none)."""

    n: int
    child: Child
    result_at: int | None


_COLUMNS = """t.parent_id, t.n, t.requirement, t.state, t.model_id, t.model_version,
       t.input_digest, t.attempt, t.reason, t.scores, t.result_at"""
_BY_PARENT = {"parent_id": "text"}

_CHILDREN = Statement(
    f"""select {_COLUMNS} from {{batch}} b join tasks t on t.parent_id = b.parent_id
        order by t.parent_id, t.n""",  # noqa: S608
    _BY_PARENT,
)
# Children are numbered from 1 without gaps, so the highest number is the size of the set.
_SIZES = Statement(
    """select b.parent_id, (select max(t.n) from tasks t where t.parent_id = b.parent_id) as size
       from {batch} b""",
    _BY_PARENT,
)
# The last ones are served last, so an open one is found at once while there is one.
_OPEN_REQUIRED = Statement(
    """select n from tasks
       where parent_id = :parent_id and requirement = 'REQUIRED' and wake_at is not null
       order by n desc limit 1"""
)
_RESULTS_SINCE = Statement(
    f"""select {_COLUMNS} from tasks t
        where t.parent_id = :parent_id and t.state = 'SUCCEEDED' and t.result_at >= :since
        order by t.n"""  # noqa: S608
)
# Results of decided parents that are not kept as late ones yet; shadow results never are.
_RESULTS_NOT_KEPT = Statement(
    f"""select {_COLUMNS} from {{batch}} b join tasks t on t.parent_id = b.parent_id
        where t.state = 'SUCCEEDED' and t.requirement <> 'SHADOW' and t.scores is not null
          and t.result_at >= b.since
          and not exists (select 1 from late_results l
            where l.parent_id = t.parent_id and l.n = t.n)
        order by t.parent_id, t.n""",  # noqa: S608
    {"parent_id": "text", "since": "int"},
)
# Everything that changes what is shown of a case raises one of these.
_MARK = Statement(
    """select p.version,
         (select coalesce(sum(t.revision), 0) from tasks t where t.parent_id = p.id) as revisions,
         (select count(*) from late_results l where l.parent_id = p.id) as late
       from parents p where p.id = :parent_id"""
)

Mark = tuple[int, int, int]


def children(tx: Tx, parent_ids: Iterable[str]) -> dict[str, list[ChildRow]]:
    """The whole sets of these parents, in one statement."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    found: dict[str, list[ChildRow]] = {row[0]: [] for row in rows}
    for row in tx.query(_CHILDREN, rows) if rows else []:
        found[row.parent_id].append(_child(row))
    return found


def sizes(tx: Tx, parent_ids: Iterable[str]) -> dict[str, int]:
    """How many children each of these parents has, without reading them."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    return {row.parent_id: row.size or 0 for row in tx.query(_SIZES, rows)} if rows else {}


def has_open_required(tx: Tx, parent_id: str) -> bool:
    """Whether a required child is still open."""
    return tx.one(_OPEN_REQUIRED, parent_id=parent_id) is not None


def results_since(tx: Tx, parent_id: str, since: int) -> list[ChildRow]:
    """The children that succeeded, with a result stored at `since` (microseconds) or later."""
    return [_child(row) for row in tx.query(_RESULTS_SINCE, parent_id=parent_id, since=since)]


def results_not_kept(tx: Tx, since: Mapping[str, int]) -> dict[str, list[ChildRow]]:
    """Results stored at `since[parent id]` (microseconds) or later that are not kept as late."""
    found: dict[str, list[ChildRow]] = {}
    for row in tx.query(_RESULTS_NOT_KEPT, sorted(since.items())) if since else []:
        found.setdefault(row.parent_id, []).append(_child(row))
    return found


def mark(tx: Tx, parent_id: str) -> Mark | None:
    """Three numbers, one of which rises with every change of the case; None: no such case."""
    row = tx.one(_MARK, parent_id=parent_id)
    return (int(row.version), int(row.revisions), int(row.late)) if row else None


def _child(row: Row[Any]) -> ChildRow:
    return ChildRow(
        row.n,
        Child(
            task_id=task_id(row.parent_id, row.n),
            requirement=Requirement(row.requirement),
            state=State(row.state),
            model_id=row.model_id,
            model_version=row.model_version,
            input_digest=row.input_digest,
            attempt=row.attempt,
            reason=row.reason,
            scores=orjson.loads(row.scores) if row.scores else None,
        ),
        row.result_at,
    )
