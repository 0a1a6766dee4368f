"""Lists of tasks: pages by key, the operator's queue, and counts by pool.

Receives the open transaction and filters. Hands on `Task`s without their scores: a list
reads no result. Source: DESIGN section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.lifecycle import State
from kernel.store.dialect import Statement
from kernel.store.tasks import COLUMNS, Task, TaskKey
from kernel.store.transaction import Tx

_LISTED = COLUMNS.replace("t.scores", "null as scores")

_PAGE = Statement(
    f"""select {_LISTED} from tasks t
        where t.parent_id >= :after_parent and t.parent_id <= :last_parent
          and (t.parent_id > :after_parent or t.n > :after_n)
          and (:tenant_id = '' or t.tenant_id = :tenant_id)
          and (:every_tenant = 1 or t.tenant_id in (select b.tenant from {{batch}} b))
          and (:state = '' or t.state = :state) and (:pool = '' or t.pool = :pool)
        order by t.parent_id, t.n limit :most""",  # noqa: S608
    {"tenant": "text"},
)
_UNKNOWN_PAGE = Statement(
    f"""select {_LISTED} from tasks t
        where t.state = 'UNKNOWN'
          and (:every_tenant = 1 or t.tenant_id in (select b.tenant from {{batch}} b))
          and t.unknown_since >= :after_at
          and (t.unknown_since > :after_at or (t.unknown_since = :after_at
            and (t.parent_id > :after_parent
              or (t.parent_id = :after_parent and t.n > :after_n))))
        order by t.unknown_since, t.parent_id, t.n limit :most""",  # noqa: S608
    {"tenant": "text"},
)
_POOL_COUNTS = Statement(
    """select pool, state, count(*) as amount, min(start_tag) as oldest from tasks
       where wake_at is not null group by pool, state"""
)


def page(
    tx: Tx,
    *,
    after: TaskKey = ("", 0),
    most: int = 100,
    parent_id: str = "",
    tenant_id: str = "",
    state: str = "",
    pool: str = "",
    tenants: frozenset[str] | None = None,
) -> list[Task]:
    """Tasks by key, after a key, without their scores; empty filters match everything.

    `tenants`: whose tasks may be seen at all; None: everybody's.
    """
    rows = tx.query(
        _PAGE,
        [(tenant,) for tenant in sorted(tenants or ())],
        every_tenant=int(tenants is None),
        after_parent=max(after[0], parent_id),
        after_n=after[1] if after[0] >= parent_id else 0,
        last_parent=parent_id or "g",  # after every hex digit
        tenant_id=tenant_id,
        state=state,
        pool=pool,
        most=most,
    )
    return [Task.of(row) for row in rows]


def unknown_page(
    tx: Tx,
    *,
    after: tuple[int, str, int] = (0, "", 0),
    most: int,
    tenants: frozenset[str] | None = None,
) -> list[Task]:
    """UNKNOWN tasks of `tenants` (None: all), oldest first, after (unknown_since, parent, n)."""
    rows = tx.query(
        _UNKNOWN_PAGE,
        [(tenant,) for tenant in sorted(tenants or ())],
        every_tenant=int(tenants is None),
        after_at=after[0],
        after_parent=after[1],
        after_n=after[2],
        most=most,
    )
    return [Task.of(row) for row in rows]


@dataclass(frozen=True, slots=True)
class PoolCount:
    """How many open tasks of a pool are in a state, and the oldest start tag among them."""

    pool: str
    state: State
    amount: int
    oldest: int


def pool_counts(tx: Tx) -> list[PoolCount]:
    """Open tasks by pool and state."""
    return [
        PoolCount(row.pool, State(row.state), row.amount, row.oldest)
        for row in tx.query(_POOL_COUNTS)
    ]
