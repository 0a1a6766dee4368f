"""The outbox: what is to be told outside, written in the transaction that makes it true.

Receives topics with ids and versions only. Hands on rows leased by state, never by "id
greater than the last one seen", since a lower id can commit after a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One record to publish."""

    id: int
    topic: str
    key: str
    body: str


_APPEND = Statement(
    """insert into outbox (topic, record_key, body, leased_until, lease_owner, created_at)
       select topic, record_key, body, 0, '', {now} from {batch} b""",
    {"topic": "text", "record_key": "text", "body": "text"},
)
# Lease what is free or whose lease has run out, oldest first.
_FREE = Statement(
    "select id from outbox where leased_until <= {now} order by leased_until, id limit :most",
    mysql="""select id from outbox where leased_until <= {now}
             order by leased_until, id limit :most for update skip locked""",
)
_LEASE = Statement(
    """update outbox set leased_until = {now} + :lease, lease_owner = :owner
       where id in (select id from {batch} b)""",
    {"id": "int"},
)
_READ = Statement(
    """select id, topic, record_key, body from outbox
       where lease_owner = :owner and id in (select id from {batch} b) order by id""",
    {"id": "int"},
)
_DELETE = Statement(
    "delete from outbox where lease_owner = :owner and id in (select id from {batch} b)",
    {"id": "int"},
)


def append(tx: Tx, records: Iterable[tuple[str, str, Mapping[str, object]]]) -> None:
    """Write (topic, key, body) records; bodies hold ids and versions only."""
    rows = [(topic, key, orjson.dumps(body).decode()) for topic, key, body in records]
    if rows:
        tx.execute(_APPEND, rows)


def lease(tx: Tx, owner: str, most: int, lease_micros: int) -> list[OutboxRow]:
    """Take up to `most` rows for `lease_micros`."""
    ids = [(row.id,) for row in tx.query(_FREE, most=most)]
    if not ids:
        return []
    tx.execute(_LEASE, ids, owner=owner, lease=lease_micros)
    return [
        OutboxRow(row.id, row.topic, row.record_key, row.body)
        for row in tx.query(_READ, ids, owner=owner)
    ]


def delete(tx: Tx, owner: str, ids: Iterable[int]) -> None:
    """Forget what was published and acknowledged."""
    tx.execute(_DELETE, [(row_id,) for row_id in ids], owner=owner)
