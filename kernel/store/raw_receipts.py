"""Raw receipts: what vendors said, stored once by content, before they are answered.

Receives the open transaction and verified receipts. Hands on whether one is new, the orphans
that wait for their call, and what is still to be told to the mesh. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.environment import MICROS_PER_SECOND
from kernel.receipt import ReceiptState
from kernel.store.calls import CallKey
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class NewReceipt:
    """A verified receipt. `receipt_id` is the digest of account and content.

    `occurred_at` is the vendor's own time in microseconds; `cost_micros` None: it named none.
    """

    receipt_id: str
    vendor: str
    event_id: str
    reference: str
    external_id: str
    state: ReceiptState
    vendor_status: str
    status_map_version: int
    status_map_reviewer: str
    occurred_at: int
    scores: Mapping[str, float] | None
    cost_micros: int | None
    reason: str
    sealed_body: bytes


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A stored receipt without its body. Times in microseconds since the epoch.

    `cost_micros`: the vendor's figure; for a success without one, what the ledger charged.
    """

    receipt_id: str
    vendor: str
    idempotency_key: str
    task_id: str
    external_id: str
    state: ReceiptState
    vendor_status: str
    occurred_at: int
    received_at: int
    scores: Mapping[str, float] | None
    cost_micros: int | None
    reason: str
    forward_tries: int


_INSERT_SQL = """insert into raw_receipts (receipt_id, vendor, event_id, reference, external_id,
    caller, idempotency_key, task_id, state, vendor_status, status_map_version,
    status_map_reviewer, occurred_at, received_at, scores, cost_micros, reason, sealed_body,
    copies, forward, forward_tries, disposition)
  values (:receipt_id, :vendor, :event_id, :reference, :external_id, '', '', '', :state,
    :vendor_status, :status_map_version, :status_map_reviewer, :occurred_at, {now}, :scores,
    :cost_micros, :reason, :sealed_body, 1, 'NONE', 0, '')"""
# Store a receipt, or count one more copy of it.
_INSERT = Statement(
    _INSERT_SQL + " on conflict (receipt_id) do update set copies = raw_receipts.copies + 1",
    mysql=_INSERT_SQL + " on duplicate key update copies = copies + 1",
)
_COPIES = Statement("select copies from raw_receipts where receipt_id = :receipt_id")
# A receipt's call is known: it belongs to it, and the mesh is told where a task waits.
_MATCH = Statement(
    """update raw_receipts set caller = :caller, idempotency_key = :key, task_id = :task_id,
         forward = :forward, cost_micros = coalesce(cost_micros, :charged),
         forward_at = case when :forward = 'PENDING' then {now} else null end
       where receipt_id = :receipt_id and caller = ''"""
)
_COLUMNS = """r.receipt_id, r.vendor, r.idempotency_key, r.task_id, r.external_id, r.state,
  r.vendor_status, r.occurred_at, r.received_at, r.scores, r.cost_micros, r.reason,
  r.forward_tries"""
_ORPHANS_BY_REFERENCE = Statement(
    f"""select {_COLUMNS} from raw_receipts r
        where r.vendor = :vendor and r.reference = :name and r.caller = ''
        order by r.occurred_at, r.receipt_id"""  # noqa: S608
)
_ORPHANS_BY_EXTERNAL_ID = Statement(
    f"""select {_COLUMNS} from raw_receipts r
        where r.vendor = :vendor and r.external_id = :name and r.caller = ''
        order by r.occurred_at, r.receipt_id"""  # noqa: S608
)
_DUE = Statement(
    f"""select {_COLUMNS} from raw_receipts r where r.forward_at <= {{now}}
        order by r.forward_at limit :most"""  # noqa: S608
)
_NEXT = Statement("select min(forward_at) as at, {now} as now from raw_receipts")
_IDS = {"wanted": "text"}
_TOLD = Statement(
    """update raw_receipts set forward = 'DONE', forward_at = null, disposition = (
         select b.word from {batch} b where b.wanted = raw_receipts.receipt_id)
       where receipt_id in (select b.wanted from {batch} b)""",
    {"wanted": "text", "word": "text"},
    mysql="""update raw_receipts r join {batch} b on r.receipt_id = b.wanted
       set r.forward = 'DONE', r.forward_at = null, r.disposition = b.word""",
)
_POSTPONE = Statement(
    """update raw_receipts set forward_at = {now} + :wait, forward_tries = forward_tries + 1
       where forward = 'PENDING' and receipt_id in (select b.wanted from {batch} b)""",
    _IDS,
    mysql="""update raw_receipts r join {batch} b on r.receipt_id = b.wanted
       set r.forward_at = {now} + :wait, r.forward_tries = r.forward_tries + 1
       where r.forward = 'PENDING'""",
)


def store(tx: Tx, receipt: NewReceipt) -> bool:
    """Store a receipt; False when the same fact was stored before, under whatever event id."""
    tx.execute(
        _INSERT,
        receipt_id=receipt.receipt_id,
        vendor=receipt.vendor,
        event_id=receipt.event_id,
        reference=receipt.reference,
        external_id=receipt.external_id,
        state=receipt.state.value,
        vendor_status=receipt.vendor_status,
        status_map_version=receipt.status_map_version,
        status_map_reviewer=receipt.status_map_reviewer,
        occurred_at=receipt.occurred_at,
        scores=None if receipt.scores is None else orjson.dumps(dict(receipt.scores)).decode(),
        cost_micros=receipt.cost_micros,
        reason=receipt.reason,
        sealed_body=receipt.sealed_body,
    )
    row = tx.one(_COPIES, receipt_id=receipt.receipt_id)
    return row is not None and row.copies == 1


def match(tx: Tx, receipt_id: str, key: CallKey, task_id: str, charged_micros: int | None) -> None:
    """Give an orphan to its call; `charged_micros` is its cost where the vendor named none."""
    tx.execute(
        _MATCH,
        receipt_id=receipt_id,
        caller=key.caller,
        key=key.idempotency_key,
        task_id=task_id,
        forward="PENDING" if task_id else "NONE",
        charged=charged_micros,
    )


def orphans(tx: Tx, vendor: str, *, reference: str, external_id: str) -> list[StoredReceipt]:
    """Receipts that wait for the call with this reference or vendor's id; empty means neither."""
    found: dict[str, StoredReceipt] = {}
    for statement, name in (
        (_ORPHANS_BY_REFERENCE, reference),
        (_ORPHANS_BY_EXTERNAL_ID, external_id),
    ):
        if name:
            for row in tx.query(statement, vendor=vendor, name=name):
                found[row.receipt_id] = _stored(row)
    return list(found.values())


def due(tx: Tx, most: int) -> list[StoredReceipt]:
    """Up to `most` receipts that the mesh is to be told now."""
    return [_stored(row) for row in tx.query(_DUE, most=most)]


def seconds_to_next(tx: Tx) -> float | None:
    """How long until one is due, None when none waits."""
    row = tx.one(_NEXT)
    if row is None or row.at is None:
        return None
    return max(0.0, float(row.at - row.now) / MICROS_PER_SECOND)


def told(tx: Tx, dispositions: Iterable[tuple[str, str]]) -> None:
    """The mesh acknowledged these receipts; (receipt id, its word for it) each."""
    rows = list(dispositions)
    if rows:
        tx.execute(_TOLD, rows)


def postpone(tx: Tx, receipt_ids: Sequence[str], wait_seconds: float) -> None:
    """Try these again after `wait_seconds`."""
    if receipt_ids:
        rows = [[each] for each in receipt_ids]
        tx.execute(_POSTPONE, rows, wait=int(wait_seconds * MICROS_PER_SECOND))


def _stored(row: Row[Any]) -> StoredReceipt:
    return StoredReceipt(
        receipt_id=row.receipt_id,
        vendor=row.vendor,
        idempotency_key=row.idempotency_key,
        task_id=row.task_id,
        external_id=row.external_id,
        state=ReceiptState(row.state),
        vendor_status=row.vendor_status,
        occurred_at=row.occurred_at,
        received_at=row.received_at,
        scores=orjson.loads(row.scores) if row.scores else None,
        cost_micros=row.cost_micros,
        reason=row.reason,
        forward_tries=row.forward_tries,
    )
