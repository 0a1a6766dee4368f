"""Incarnations: a proxy's leased right to send, renewed while it lives and never revived.

Receives the open transaction. Hands on lease ends by the database's clock. A call that is
PREPARED belongs to the incarnation that began it.
"""

from __future__ import annotations

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
_START = Statement("insert into incarnations (id, lease_until) values (:id, {now} + :lease)")
# Renew; a lease that ran out stays out, since others may have taken over its calls.
_RENEW = Statement(
    "update incarnations set lease_until = {now} + :lease where id = :id and lease_until > {now}"
)
# Give the lease up, so that nobody waits for its end.
_RELEASE = Statement(
    "update incarnations set lease_until = {now} where id = :id and lease_until > {now}"
)
_READ = Statement("select lease_until, {now} as now from incarnations where id = :id")


def start(tx: Tx, incarnation: str, lease_seconds: float) -> Lease:
    """Begin `incarnation` with a lease of `lease_seconds`."""
    tx.execute(_START, id=incarnation, lease=int(lease_seconds * MICROS_PER_SECOND))
    return read(tx, incarnation)


def renew(tx: Tx, incarnation: str, lease_seconds: float) -> Lease | None:
    """A new lease of `lease_seconds` from now, None when the old one had run out."""
    lease = int(lease_seconds * MICROS_PER_SECOND)
    if not tx.changed(_RENEW, id=incarnation, lease=lease):
        return None
    return read(tx, incarnation)


def release(tx: Tx, incarnation: str) -> None:
    """End the lease now; called when nothing of the incarnation is open."""
    tx.execute(_RELEASE, id=incarnation)


def read(tx: Tx, incarnation: str) -> Lease:
    """Its lease as it stands; one that was never begun ended at 0."""
    row = tx.one(_READ, id=incarnation)
    return Lease(row.lease_until, row.now) if row is not None else Lease(0, tx.now())
