"""Sends in the call ledger: made durable before the wire, settled after it.

Receives the open transaction and a row decided by the ledger's rules. Hands on whether its
fence held. A settle is fenced by incarnation and send number: a number is given once, so a
late settle can never touch a newer send. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from kernel.attempt import CallOutcome, OnUnknown
from kernel.environment import MICROS_PER_SECOND
from kernel.idempotency import CallState
from kernel.store.calls import KEY_IS, OWNER_LOST, CallKey, StoredCall, scores_text
from kernel.store.dialect import Statement
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Begin:
    """A send about to be made durable. `seen`: the row that the decision was made on.

    `granted_sends`: an operator's grants that are used with this send, over all attempts.
    `marked`: it may be executed beside another. `doubted_*`: what earlier sends leave open.
    `fresh`: no earlier send can have executed, so the vendor's key window starts anew.
    """

    key: CallKey
    reference: str
    task_id: str
    tenant_id: str
    pool: str
    attempt: int
    fingerprint: Mapping[str, str]
    incarnation: str
    max_sends: int
    on_unknown: OnUnknown
    seen: StoredCall | None
    granted_sends: int = 0
    marked: bool = False
    doubted_sends: int = 0
    doubted_until: int = 0
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Settle:
    """The end of a send. `occupied_seconds`: how long its vendor may go on working; None: not.

    `sends_back`, `marks_back` and `grants_back` undo what the begin charged where nothing was
    executed. `doubt_over`: nothing of earlier sends can occupy the vendor any more.
    """

    key: CallKey
    incarnation: str
    send_number: int
    state: CallState
    outcome: CallOutcome
    occupied_seconds: float | None = None
    sends_back: int = 0
    marks_back: int = 0
    grants_back: int = 0
    doubt_over: bool = False


_INSERT_SQL = f"""insert into calls (caller, vendor, idempotency_key, reference, task_id,
    tenant_id, pool, state, attempt, fenced_attempt, fingerprint, incarnation, send_number, sends,
    max_sends, granted_sends, on_unknown, max_duplicates, max_cost_micros, outcome, reason,
    retryable, receipt_due_seconds, external_id, possible_duplicates, cost_micros, doubted_sends,
    doubted_until, first_send_at, begun_at, last_byte_at, occupied_until, not_found_asked_at,
    last_query_answer)
  values (:caller, :vendor, :key, :reference, :task_id, :tenant_id, :pool, 'PREPARED', :attempt, 0,
    :fingerprint, :incarnation, 1, 1, :max_sends, :granted_sends, :mode, :max_duplicates,
    :max_cost, '', '', 0, 0, '', 0, 0, 0, 0, {{now}}, {{now}}, 0, {OPEN_END}, 0, '')"""  # noqa: S608
# Begin the first send of a new key; a key that is there already stays as it is.
_INSERT = Statement(
    _INSERT_SQL + " on conflict do nothing",
    mysql=_INSERT_SQL + " on duplicate key update attempt = calls.attempt",
)
# MySQL counts a key that somebody else inserted meanwhile as a match: read back whose it is.
_INSERTED = Statement(
    f"""select 1 from calls where {KEY_IS} and incarnation = :incarnation
        and send_number = 1"""  # noqa: S608
)
# Begin another send of a known key, if it is as it was seen.
_AGAIN = Statement(
    f"""update calls set state = 'PREPARED', outcome = '', reason = '', retryable = 0,
         retry_after_seconds = null, receipt_due_seconds = 0, scores = null, settled_at = null,
         reference = coalesce(reference, :reference), task_id = :task_id, tenant_id = :tenant_id,
         pool = :pool, attempt = :attempt, fingerprint = :fingerprint, incarnation = :incarnation,
         send_number = send_number + 1, sends = sends + 1, max_sends = :max_sends,
         granted_sends = :granted_sends, on_unknown = :mode, max_duplicates = :max_duplicates,
         max_cost_micros = :max_cost, possible_duplicates = possible_duplicates + :mark,
         doubted_sends = :doubted_sends, doubted_until = :doubted_until,
         first_send_at = case when :fresh = 1 then {{now}} else first_send_at end,
         begun_at = {{now}}, occupied_until = {OPEN_END}, not_found_asked_at = 0
       where {KEY_IS} and send_number = :seen_number and fenced_attempt < :attempt
         and (state = :seen_state or (state = 'PREPARED' and :seen_state = 'UNKNOWN'))"""  # noqa: S608
)
_OF_SEND = f"{KEY_IS} and incarnation = :incarnation and send_number = :send_number"
# What a send leaves of its permit: its own time at the vendor, else that of earlier ones.
_OCCUPIED = """case
    when :occupied is not null then {now} + :occupied
    when :doubt_over = 0 and doubted_until > {now} then doubted_until else null end"""
# Settle a send, by the incarnation that began it, once: what it gives back is given back once.
_SETTLE = Statement(
    f"""update calls set state = :state, outcome = :outcome, reason = :reason,
         retryable = :retryable, retry_after_seconds = :retry_after, receipt_due_seconds = :due,
         external_id = case when :external_id = '' then external_id else :external_id end,
         scores = :scores, cost_micros = cost_micros + :cost, sends = sends - :sends_back,
         granted_sends = granted_sends - :grants_back,
         possible_duplicates = possible_duplicates - :marks_back, settled_at = {{now}},
         last_byte_at = {{now}}, occupied_until = {_OCCUPIED}
       where {_OF_SEND} and (state = 'PREPARED'
         or (state = 'UNKNOWN' and outcome = 'UNKNOWN' and reason = '{OWNER_LOST}'))"""  # noqa: S608
)
# A settle that came too late: its permit is returned and its cost is not forgotten.
_VACATE = Statement(
    f"""update calls set cost_micros = cost_micros + :cost, occupied_until = {_OCCUPIED}
       where {_OF_SEND}"""  # noqa: S608
)
# The same for a send that is no longer the row's latest.
_ADD_COST = Statement(f"update calls set cost_micros = cost_micros + :cost where {KEY_IS}")  # noqa: S608


def begin(tx: Tx, row: Begin) -> bool:
    """Make a send PREPARED; False when the row is no longer as it was seen."""
    new = {
        **row.key.params(),
        "reference": row.reference,
        "task_id": row.task_id,
        "tenant_id": row.tenant_id,
        "pool": row.pool,
        "attempt": row.attempt,
        "fingerprint": orjson.dumps(dict(row.fingerprint)).decode(),
        "incarnation": row.incarnation,
        "max_sends": row.max_sends,
        "granted_sends": row.granted_sends,
        "mode": row.on_unknown.mode.value,
        "max_duplicates": row.on_unknown.max_duplicates,
        "max_cost": row.on_unknown.max_cost_micros,
    }
    if row.seen is None:
        inserted = tx.changed(_INSERT, None, **new) == 1
        if inserted and tx.dialect != "sqlite":
            ours = tx.one(_INSERTED, **row.key.params(), incarnation=row.incarnation)
            return ours is not None
        return inserted
    changed = tx.changed(
        _AGAIN,
        None,
        **new,
        seen_state=row.seen.ledger.state.value,
        seen_number=row.seen.send_number,
        mark=int(row.marked),
        doubted_sends=row.doubted_sends,
        doubted_until=row.doubted_until,
        fresh=int(row.fresh),
    )
    return changed == 1


def settle(tx: Tx, row: Settle) -> bool:
    """Settle a send; False when it is settled already, or no longer the latest."""
    changed = tx.changed(
        _SETTLE,
        None,
        **_fence(row),
        state=row.state.value,
        outcome=row.outcome.outcome.value,
        reason=row.outcome.reason,
        retryable=int(row.outcome.retryable),
        retry_after=row.outcome.retry_after_seconds,
        due=row.outcome.receipt_due_seconds,
        external_id=row.outcome.external_id,
        scores=scores_text(row.outcome),
        cost=row.outcome.cost_micros,
        sends_back=row.sends_back,
        marks_back=row.marks_back,
        grants_back=row.grants_back,
    )
    return changed == 1


def vacate(tx: Tx, row: Settle, cost_micros: int) -> None:
    """Return the permit of a settle that lost to evidence, and add `cost_micros`."""
    if not tx.changed(_VACATE, None, **_fence(row), cost=cost_micros) and cost_micros:
        tx.execute(_ADD_COST, **row.key.params(), cost=cost_micros)


def _fence(row: Settle) -> dict[str, object]:
    """Which send it is, and what it leaves of its permit."""
    occupied = row.occupied_seconds
    return {
        **row.key.params(),
        "incarnation": row.incarnation,
        "send_number": row.send_number,
        "occupied": None if occupied is None else int(occupied * MICROS_PER_SECOND),
        "doubt_over": int(row.doubt_over),
    }
