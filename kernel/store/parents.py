"""Statements of parents: accepted once by their logical key, moved by compare-and-set.

Receives the open transaction and a parent's facts. Hands on rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.lifecycle import CaseState
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class NewParent:
    """A parent about to be accepted. Times in microseconds since the epoch."""

    id: str
    kind: str
    tenant_id: str
    logical_key: str
    fingerprint: dict[str, str]
    policy_id: str
    policy_version: int
    priority: str
    labels: dict[str, str]
    root_span_id: str
    deadline: int


@dataclass(frozen=True, slots=True)
class Parent:
    """A stored parent. Times in microseconds since the epoch."""

    id: str
    kind: str
    tenant_id: str
    logical_key: str
    fingerprint: dict[str, str]
    state: CaseState
    version: int
    policy_id: str
    policy_version: int
    priority: str
    labels: dict[str, str]
    root_span_id: str
    created_at: int
    deadline: int
    decided_at: int | None
    cancel_requested_at: int | None
    wake_at: int | None

    @classmethod
    def of(cls, row: Row[Any]) -> Parent:
        """From a row of `_COLUMNS`."""
        values = dict(row._mapping)
        values["fingerprint"] = orjson.loads(values["fingerprint"])
        values["labels"] = orjson.loads(values["labels"])
        values["state"] = CaseState(values["state"])
        return cls(**values)


_COLUMNS = (
    "id, kind, tenant_id, logical_key, fingerprint, state, version, policy_id, policy_version, "
    "priority, labels, root_span_id, created_at, deadline, decided_at, cancel_requested_at, "
    "wake_at"
)

# Accept a parent. Its unique logical key refuses a second one.
_INSERT = Statement(
    """insert into parents (id, kind, tenant_id, logical_key, fingerprint, state, version,
         policy_id, policy_version, priority, labels, root_span_id, created_at, deadline, wake_at)
       select id, kind, tenant_id, logical_key, fingerprint, 'PENDING', 1, policy_id,
         policy_version, priority, labels, root_span_id, {now}, deadline, deadline
       from {batch} b""",
    {
        "id": "text",
        "kind": "text",
        "tenant_id": "text",
        "logical_key": "text",
        "fingerprint": "text",
        "policy_id": "text",
        "policy_version": "int",
        "priority": "text",
        "labels": "text",
        "root_span_id": "text",
        "deadline": "int",
    },
)
_BY_KEY = Statement(
    f"""select {_COLUMNS} from parents
        where tenant_id = :tenant_id and kind = :kind and logical_key = :logical_key"""  # noqa: S608
)
_BY_ID = Statement(f"select {_COLUMNS} from parents where id = :id")  # noqa: S608
_SEVERAL = Statement(
    f"select {_COLUMNS} from {{batch}} b join parents p on p.id = b.parent_id",  # noqa: S608
    {"parent_id": "text"},
)
_LOCK = Statement(
    f"select {_COLUMNS} from parents where id = :id",  # noqa: S608
    mysql=f"select {_COLUMNS} from parents where id = :id for update",  # noqa: S608
)
# Tombstone: the wish to cancel, once.
_REQUEST_CANCEL = Statement(
    """update parents set cancel_requested_at = {now}, version = version + 1
       where id = :id and state = 'PENDING' and cancel_requested_at is null"""
)
# Decide: by version, and for an automatic verdict only before the deadline.
_DECIDE = Statement(
    """update parents set state = :state, version = version + 1, decided_at = {now},
         wake_at = null, policy_version = :policy_version
       where id = :id and version = :version and state = :from_state
         and (:any_time = 1 or {now} < deadline)"""
)
# Parents whose deadline has come.
_DUE = Statement("""select id from parents where wake_at <= {now} order by wake_at limit :most""")
# The aggregator looks again at a parent whose deadline it could not settle yet.
_POSTPONE = Statement(
    """update parents set wake_at = {now} + :wait where id = :id and wake_at is not null"""
)


def insert(tx: Tx, parents: list[NewParent]) -> None:
    """Accept parents; raises IntegrityError when a logical key is taken."""
    tx.execute(
        _INSERT,
        [
            (
                p.id,
                p.kind,
                p.tenant_id,
                p.logical_key,
                orjson.dumps(p.fingerprint).decode(),
                p.policy_id,
                p.policy_version,
                p.priority,
                orjson.dumps(p.labels).decode(),
                p.root_span_id,
                p.deadline,
            )
            for p in parents
        ],
    )


def by_logical_key(tx: Tx, tenant_id: str, kind: str, logical_key: str) -> Parent | None:
    """The parent accepted under a caller's key."""
    row = tx.one(_BY_KEY, tenant_id=tenant_id, kind=kind, logical_key=logical_key)
    return Parent.of(row) if row else None


def get(tx: Tx, parent_id: str) -> Parent | None:
    """The parent with this id."""
    row = tx.one(_BY_ID, id=parent_id)
    return Parent.of(row) if row else None


def several(tx: Tx, parent_ids: Iterable[str]) -> dict[str, Parent]:
    """The parents with these ids, by id."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    found = [Parent.of(row) for row in tx.query(_SEVERAL, rows)] if rows else []
    return {parent.id: parent for parent in found}


def lock(tx: Tx, parent_id: str) -> Parent | None:
    """The parent with this id, locked until the transaction ends."""
    row = tx.one(_LOCK, id=parent_id)
    return Parent.of(row) if row else None


def request_cancel(tx: Tx, parent_id: str) -> bool:
    """Record the wish to cancel; False when it was recorded before, or it is too late."""
    return tx.changed(_REQUEST_CANCEL, id=parent_id) == 1


def decide(
    tx: Tx,
    parent: Parent,
    state: CaseState,
    *,
    policy_version: int | None = None,
    any_time: bool = False,
) -> bool:
    """Move a parent by compare-and-set on the version that was read.

    Unless `any_time`, only before its deadline by the database's clock (I5).
    """
    return (
        tx.changed(
            _DECIDE,
            id=parent.id,
            version=parent.version,
            from_state=parent.state,
            state=state,
            policy_version=parent.policy_version if policy_version is None else policy_version,
            any_time=int(any_time),
        )
        == 1
    )


def due(tx: Tx, most: int) -> list[str]:
    """Ids of parents whose deadline has come, at most `most`."""
    return [row.id for row in tx.query(_DUE, most=most)]


def postpone(tx: Tx, parent_id: str, wait_micros: int) -> None:
    """Look at an undecided parent again after `wait_micros`."""
    tx.changed(_POSTPONE, id=parent_id, wait=wait_micros)
