"""Change markers: the durable record that a parent's children changed.

Receives parent ids from every transaction that closes a task, makes it UNKNOWN or ACCEPTED,
or stores late evidence. Hands on marker ids to the aggregator, which reads them first, then
the children, and deletes exactly those ids in the transaction that writes its decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel.store.dialect import Statement
from kernel.store.transaction import Tx

_APPEND = Statement(
    "insert into change_markers (parent_id) select parent_id from {batch} b",
    {"parent_id": "text"},
)
_OLDEST = Statement(
    "select id, parent_id from change_markers where id > :after order by id limit :most"
)
_OF_PARENT = Statement("select id from change_markers where parent_id = :parent_id")
_DELETE = Statement(
    "delete from change_markers where id in (select id from {batch} b)", {"id": "int"}
)


def append(tx: Tx, parent_ids: Iterable[str]) -> None:
    """Mark parents as changed, one marker a parent and call."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    if rows:
        tx.execute(_APPEND, rows)


def oldest(tx: Tx, most: int, after: int = 0) -> dict[str, list[int]]:
    """Marker ids by parent, oldest first, of at most `most` markers with ids above `after`."""
    found: dict[str, list[int]] = {}
    for row in tx.query(_OLDEST, most=most, after=after):
        found.setdefault(row.parent_id, []).append(row.id)
    return found


def of_parent(tx: Tx, parent_id: str) -> list[int]:
    """Marker ids of one parent."""
    return [row.id for row in tx.query(_OF_PARENT, parent_id=parent_id)]


def delete(tx: Tx, ids: Iterable[int]) -> None:
    """Forget exactly these markers; one that came since then stays."""
    rows = [(marker_id,) for marker_id in ids]
    if rows:
        tx.execute(_DELETE, rows)
