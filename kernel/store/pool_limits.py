"""Pools' limits as operators set them, and until when a vendor asked for silence.

Receives the open transaction. Hands on what overrides the settings, by pool. Written by any
replica, read by all of them.
"""

from __future__ import annotations

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
_SET_SQL = "insert into pool_limits (pool, concurrency, closed_until) values (:pool, :most, 0)"
_SET = Statement(
    _SET_SQL + " on conflict (pool) do update set concurrency = excluded.concurrency",
    mysql=_SET_SQL + " on duplicate key update concurrency = :most",
)
# Close a pool for so long; an earlier end never shortens a later one.
_CLOSE_SQL = """insert into pool_limits (pool, concurrency, closed_until)
  values (:pool, null, {now} + :wait)"""
_CLOSE = Statement(
    _CLOSE_SQL
    + """ on conflict (pool) do update set
       closed_until = max(pool_limits.closed_until, excluded.closed_until)""",
    mysql=_CLOSE_SQL
    + " on duplicate key update closed_until = greatest(closed_until, {now} + :wait)",
)
_ALL = Statement("select pool, concurrency, closed_until from pool_limits")


def set_concurrency(tx: Tx, pool: str, concurrency: int) -> None:
    """Let `pool` have `concurrency` calls at once."""
    tx.execute(_SET, pool=pool, most=concurrency)


def close(tx: Tx, pool: str, seconds: float) -> None:
    """Give no permit of `pool` for so long, as a vendor's Retry-After asks."""
    tx.execute(_CLOSE, pool=pool, wait=int(seconds * MICROS_PER_SECOND))


def all_limits(tx: Tx) -> list[StoredLimit]:
    """Every pool that has a row."""
    return [StoredLimit(row.pool, row.concurrency, row.closed_until) for row in tx.query(_ALL)]
