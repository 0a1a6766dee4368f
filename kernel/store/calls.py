"""The call ledger as rows: read by key, by vendor reference, and those that hold a permit.

Receives the open transaction. Hands on `StoredCall`s. Rows are written in `call_sends`
and `call_evidence`. A PREPARED row whose owner's lease and write time are over is handed on
as UNKNOWN: its last byte cannot leave later than that (DESIGN section 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.attempt import CallOutcome, OnUnknown, OnUnknownMode, Outcome
from kernel.environment import MICROS_PER_SECOND
from kernel.idempotency import CallState, LedgerRow
from kernel.store import incarnations
from kernel.store.dialect import Statement
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx

OWNER_LOST = "PROXY_LOST"  # the reason of a row that its owner never settled


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of a call: two callers' equal keys never meet."""

    caller: str
    vendor: str
    idempotency_key: str

    def params(self) -> dict[str, str]:
        """The values of a statement that asks for `KEY_IS`."""
        return {"caller": self.caller, "vendor": self.vendor, "key": self.idempotency_key}


@dataclass(frozen=True, slots=True)
class StoredCall:
    """One row. Times in microseconds since the epoch, costs in millionths.

    `ledger` is what the rules read. `reference` is the key as the vendor sees it.
    `doubted_sends`: earlier sends that may have executed beside the latest one.
    """

    key: CallKey
    ledger: LedgerRow
    reference: str
    task_id: str
    tenant_id: str
    pool: str
    incarnation: str
    send_number: int
    on_unknown: OnUnknown
    cost_micros: int
    doubted_sends: int
    doubted_until: int
    begun_at: int | None
    settled_at: int | None
    occupied_until: int | None
    last_query_answer: str
    last_query_at: int | None

    @property
    def outcome(self) -> CallOutcome | None:
        """The stored outcome of the latest send."""
        return self.ledger.outcome

    def lost_by_owner(self) -> bool:
        """Whether the latest send's owner vanished without settling it."""
        lost = self.ledger.outcome
        return self.ledger.state is CallState.UNKNOWN and (
            lost is not None and lost.reason == OWNER_LOST
        )


@dataclass(frozen=True, slots=True)
class OccupiedCall:
    """A row that holds permits: `permits` of `pool`, each until `until` (microseconds)."""

    key: CallKey
    pool: str
    permits: int
    until: int


KEY_IS = "caller = :caller and vendor = :vendor and idempotency_key = :key"

_NAMES = (
    "caller, vendor, idempotency_key, reference, task_id, tenant_id, pool, state, attempt, "
    "fenced_attempt, fingerprint, incarnation, send_number, sends, max_sends, granted_sends, "
    "on_unknown, max_duplicates, max_cost_micros, outcome, reason, retryable, retry_after_seconds, "
    "receipt_due_seconds, external_id, scores, possible_duplicates, cost_micros, doubted_sends, "
    "doubted_until, first_send_at, begun_at, last_byte_at, settled_at, occupied_until, "
    "not_found_asked_at, last_query_answer, last_query_at"
)
_BY_KEY = f"select {_NAMES} from calls where {KEY_IS}"  # noqa: S608
# Read a row by key; for a write it is locked where the database locks rows.
_LOOK_UP = Statement(_BY_KEY)
_LOCK = Statement(_BY_KEY, mysql=_BY_KEY + " for update")
# Whose call the vendor knows by a reference.
_BY_REFERENCE = Statement(
    """select caller, vendor, idempotency_key from calls
       where vendor = :vendor and reference = :reference"""
)
_BY_EXTERNAL = Statement(
    """select caller, vendor, idempotency_key from calls
       where vendor = :vendor and external_id = :external_id"""
)
# Every row that may still occupy its vendor, with its owner's lease end.
_OCCUPIED = Statement(
    """select t.caller, t.vendor, t.idempotency_key, t.pool, t.occupied_until, t.doubted_sends,
         t.doubted_until, coalesce(i.lease_until, 0) as lease_until, {now} as now
       from calls t left join incarnations i on i.id = t.incarnation
       where t.occupied_until > {now}"""
)


def scores_text(outcome: CallOutcome) -> str | None:
    """The stored form of an outcome's scores."""
    return None if outcome.scores is None else orjson.dumps(dict(outcome.scores)).decode()


def look_up(tx: Tx, key: CallKey, write_seconds: float, *, lock: bool = False) -> StoredCall | None:
    """The row as it stands now, if there is one; `write_seconds` is its owner's write time."""
    row = tx.one(_LOCK if lock else _LOOK_UP, **key.params())
    if row is None:
        return None
    if row.state != CallState.PREPARED:
        return _call(row, 0)
    lease = incarnations.read(tx, row.incarnation)
    owner_until = lease.until + int(write_seconds * MICROS_PER_SECOND)
    return _as_seen(_call(row, owner_until), lease.now)


def by_reference(tx: Tx, vendor: str, reference: str) -> CallKey | None:
    """The call that the vendor knows by our `reference`."""
    row = tx.one(_BY_REFERENCE, vendor=vendor, reference=reference)
    return None if row is None else _key(row)


def by_external_id(tx: Tx, vendor: str, external_id: str) -> CallKey | None:
    """The one call that the vendor knows by `external_id`; None where there is none, or two."""
    rows = tx.query(_BY_EXTERNAL, vendor=vendor, external_id=external_id)
    return _key(rows[0]) if len(rows) == 1 else None


def occupied(
    tx: Tx, write_seconds: float, max_execution_seconds: Mapping[str, float]
) -> tuple[int, list[OccupiedCall]]:
    """The database's now, and all rows that hold permits, by vendors' `max_execution_seconds`.

    The end of an open one is its owner's lease end + write time + `max_execution`.
    """
    held = []
    now = tx.now()
    for row in tx.query(_OCCUPIED):
        until = row.occupied_until
        if until == OPEN_END:
            longest = write_seconds + max_execution_seconds.get(row.vendor, 0.0)
            until = row.lease_until + int(longest * MICROS_PER_SECOND)
        until = max(until, row.doubted_until)
        if until > row.now:
            held.append(OccupiedCall(_key(row), row.pool, 1 + row.doubted_sends, until))
    return now, held


def _key(row: Row[Any]) -> CallKey:
    return CallKey(row.caller, row.vendor, row.idempotency_key)


def _call(row: Row[Any], owner_until: int) -> StoredCall:
    outcome = None
    if row.outcome:
        outcome = CallOutcome(
            Outcome(row.outcome),
            reason=row.reason,
            retryable=bool(row.retryable),
            scores=orjson.loads(row.scores) if row.scores else None,
            external_id=row.external_id,
            retry_after_seconds=row.retry_after_seconds,
            sends=row.sends,
            possible_duplicates=row.possible_duplicates,
            cost_micros=row.cost_micros,
            receipt_due_seconds=row.receipt_due_seconds,
        )
    ledger = LedgerRow(
        state=CallState(row.state),
        attempt=row.attempt,
        fenced_attempt=row.fenced_attempt,
        fingerprint=orjson.loads(row.fingerprint),
        sends=row.sends,
        max_sends=row.max_sends,
        outcome=outcome,
        external_id=row.external_id,
        possible_duplicates=row.possible_duplicates,
        first_send_at=row.first_send_at,
        last_byte_at=row.last_byte_at,
        owner_until=owner_until,
        not_found_asked_at=row.not_found_asked_at,
        granted_sends=row.granted_sends,
    )
    return StoredCall(
        key=_key(row),
        ledger=ledger,
        reference=row.reference or "",
        task_id=row.task_id,
        tenant_id=row.tenant_id,
        pool=row.pool,
        incarnation=row.incarnation,
        send_number=row.send_number,
        on_unknown=OnUnknown(
            OnUnknownMode(row.on_unknown), row.max_duplicates, row.max_cost_micros
        ),
        cost_micros=row.cost_micros,
        doubted_sends=row.doubted_sends,
        doubted_until=row.doubted_until,
        begun_at=row.begun_at,
        settled_at=row.settled_at,
        occupied_until=row.occupied_until,
        last_query_answer=row.last_query_answer,
        last_query_at=row.last_query_at,
    )


def _as_seen(call: StoredCall, now: int) -> StoredCall:
    row = call.ledger
    if row.state is not CallState.PREPARED or now < row.owner_until:
        return call
    lost = CallOutcome(
        Outcome.UNKNOWN,
        reason=OWNER_LOST,
        external_id=row.external_id,
        sends=row.sends,
        possible_duplicates=row.possible_duplicates,
        cost_micros=call.cost_micros,
    )
    return replace(
        call,
        ledger=replace(row, state=CallState.UNKNOWN, outcome=lost, last_byte_at=row.owner_until),
    )
