"""Pools whose vendor asked for silence: a fact for every replica.

Receives a pool and how long. Hands on until when it is closed.
"""

from __future__ import annotations

from kernel.store.dialect import Statement
from kernel.store.transaction import Tx

_CLOSE = Statement(
    """insert into pool_closures (pool, closed_until) values (:pool, {now} + :wait)
       on conflict (pool) do update
       set closed_until = max(closed_until, excluded.closed_until)""",
    mysql="""insert into pool_closures (pool, closed_until) values (:pool, {now} + :wait)
       on duplicate key update closed_until = greatest(closed_until, values(closed_until))""",
)
_CLOSED = Statement("select pool, closed_until from pool_closures where closed_until > {now}")


def close(tx: Tx, pool: str, wait_micros: int) -> None:
    """Close a pool for `wait_micros` from now; never shortens a closure."""
    tx.execute(_CLOSE, pool=pool, wait=wait_micros)


def closed(tx: Tx) -> dict[str, int]:
    """Closed pools with the end of their closure, in microseconds since the epoch."""
    return {row.pool: row.closed_until for row in tx.query(_CLOSED)}
