"""Incarnations: a proxy's leased right to send, renewed while it lives and never revived.

Receives the open transaction. Hands on lease ends by the database's clock. A call that is
PREPARED belongs to the incarnation that began it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel.environment import MICROS_PER_SECOND
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the database granted it: its end, and the database's now, in microseconds."""

    until: int
    now: int


# Begin an incarnation; its lease runs from now.
_START = Statement(
    "insert into incarnations (id, started_at, lease_until) values (:id, {now}, {now} + :lease)"
)
# Renew; a lease that ran out stays out, since others may have adopted its calls.
_RENEW = Statement(
    "update incarnations set lease_until = {now} + :lease where id = :id and lease_until > {now}"
)
# Give the lease up, so that nobody waits for its end.
_RELEASE = Statement(
    "update incarnations set lease_until = {now} where id = :id and lease_until > {now}"
)
_READ = Statement("select lease_until, {now} as now from incarnations where id = :id")
_LEASES = Statement(
    """select i.id, i.lease_until from {batch} b join incarnations i on i.id = b.wanted""",
    {"wanted": "text"},
)


def start(tx: Tx, incarnation: str, lease_seconds: float) -> Lease:
    """Begin `incarnation` with a lease of `lease_seconds`."""
    tx.execute(_START, id=incarnation, lease=int(lease_seconds * MICROS_PER_SECOND))
    return _read(tx, incarnation)


def renew(tx: Tx, incarnation: str, lease_seconds: float) -> Lease | None:
    """A new lease of `lease_seconds` from now, None when the old one had run out."""
    lease = int(lease_seconds * MICROS_PER_SECOND)
    if not tx.changed(_RENEW, id=incarnation, lease=lease):
        return None
    return _read(tx, incarnation)


def release(tx: Tx, incarnation: str) -> None:
    """End the lease now; called when nothing of the incarnation is open."""
    tx.execute(_RELEASE, id=incarnation)


def lease_ends(tx: Tx, incarnations: Iterable[str]) -> dict[str, int]:
    """Lease ends by incarnation, in microseconds; one that is not known is left out."""
    wanted = sorted(set(incarnations))
    if not wanted:
        return {}
    return {row.id: row.lease_until for row in tx.query(_LEASES, [[each] for each in wanted])}


def _read(tx: Tx, incarnation: str) -> Lease:
    row = tx.one(_READ, id=incarnation)
    assert row is not None  # noqa: S101 - written by this transaction
    return Lease(row.lease_until, row.now)
