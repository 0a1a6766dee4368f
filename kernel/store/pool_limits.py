"""Pools' limits as operators set them, and until when a vendor asked for silence.

Receives the open transaction. Hands on what overrides the settings, by pool. Written by any
replica, read by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel.environment import MICROS_PER_SECOND
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class StoredLimit:
    """One pool's row; `concurrency` None: as the settings say. `closed_until` in microseconds."""

    pool: str
    concurrency: int | None
    closed_until: int


# Set a pool's limit.
_SET = Statement(
    """insert into pool_limits (pool, concurrency, set_at, closed_until)
       values (:pool, :concurrency, {now}, 0)
       on conflict (pool) do update set concurrency = excluded.concurrency,
         set_at = excluded.set_at""",
    mysql="""insert into pool_limits (pool, concurrency, set_at, closed_until)
       values (:pool, :concurrency, {now}, 0)
       on duplicate key update concurrency = :concurrency, set_at = {now}""",
)
# Close a pool for so long; an earlier end never shortens a later one.
_CLOSE = Statement(
    """insert into pool_limits (pool, concurrency, set_at, closed_until)
       select b.closed_pool, null, 0, {now} + b.micros from {batch} b where true
       on conflict (pool) do update set
         closed_until = max(pool_limits.closed_until, excluded.closed_until)""",
    {"closed_pool": "text", "micros": "int"},
    mysql="""insert into pool_limits (pool, concurrency, set_at, closed_until)
       select b.closed_pool, null, 0, {now} + b.micros from {batch} b
       on duplicate key update
         closed_until = greatest(pool_limits.closed_until, {now} + b.micros)""",
)
_ALL = Statement("select pool, concurrency, closed_until from pool_limits")


def set_concurrency(tx: Tx, pool: str, concurrency: int) -> None:
    """Let `pool` have `concurrency` calls at once."""
    tx.execute(_SET, pool=pool, concurrency=concurrency)


def close(tx: Tx, closures: Iterable[tuple[str, float]]) -> None:
    """Close pools for the given seconds, as a vendor's Retry-After asks."""
    rows = [(pool, int(seconds * MICROS_PER_SECOND)) for pool, seconds in closures]
    if rows:
        tx.execute(_CLOSE, rows)


def all_limits(tx: Tx) -> list[StoredLimit]:
    """Every pool that has a row."""
    return [StoredLimit(row.pool, row.concurrency, row.closed_until) for row in tx.query(_ALL)]
