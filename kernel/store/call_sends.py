"""Sends in the call ledger: made durable before the wire, settled after it.

Receives the open transaction and rows decided by the ledger's rules. Hands on how many rows
each fence let through. A settle is fenced by incarnation and send number: a number is given
once, so a late settle can never touch a newer send. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from kernel.attempt import CallOutcome, OnUnknown
from kernel.environment import MICROS_PER_SECOND
from kernel.idempotency import CallState
from kernel.store.calls import KEY_COLUMNS, KEY_MATCH, CallKey, StoredCall, scores_text
from kernel.store.dialect import Statement, joined_update
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class Begin:
    """A send about to be made durable. `seen`: the row that the decision was made on.

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
    marked: bool = False
    doubted_sends: int = 0
    doubted_until: int = 0
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Settle:
    """The end of a send. `occupied_seconds`: how long its vendor may go on working; None: not.

    `sends_back` and `marks_back` undo what the begin charged where nothing was executed.
    `doubt_over`: nothing of earlier sends can occupy the vendor any more.
    """

    key: CallKey
    incarnation: str
    send_number: int
    state: CallState
    outcome: CallOutcome
    occupied_seconds: float | None = None
    sends_back: int = 0
    marks_back: int = 0
    doubt_over: bool = False


_SET_ROW = """state = 'PREPARED', outcome = '', reason = '', retryable = 0,
  retry_after_seconds = null, receipt_due_seconds = 0, scores = null, settled_at = null"""

_NEW = {
    **KEY_COLUMNS,
    "new_reference": "text",
    "new_task": "text",
    "new_tenant": "text",
    "new_pool": "text",
    "new_attempt": "int",
    "new_fingerprint": "text",
    "new_incarnation": "text",
    "new_max_sends": "int",
    "new_mode": "text",
    "new_max_duplicates": "int",
    "new_max_cost": "int",
}
_INSERT_SQL = f"""insert into calls (caller, vendor, idempotency_key, reference, task_id,
    tenant_id, pool, state, attempt, fenced_attempt, fingerprint, incarnation, send_number, sends,
    max_sends, on_unknown, max_duplicates, max_cost_micros, outcome, reason, retryable,
    receipt_due_seconds, external_id, possible_duplicates, cost_micros, doubted_sends,
    doubted_until, first_send_at, begun_at, last_byte_at, occupied_until, not_found_asked_at,
    last_query_answer)
  select b.key_caller, b.key_vendor, b.key_key, b.new_reference, b.new_task, b.new_tenant,
    b.new_pool, 'PREPARED', b.new_attempt, 0, b.new_fingerprint, b.new_incarnation, 1, 1,
    b.new_max_sends, b.new_mode, b.new_max_duplicates, b.new_max_cost, '', '', 0, 0, '', 0, 0, 0,
    0, {{now}}, {{now}}, 0, {OPEN_END}, 0, ''
  from {{batch}} b"""  # noqa: S608
# Begin the first send of new keys; a key that is there already stays as it is.
_INSERT = Statement(
    _INSERT_SQL + " where true on conflict do nothing",
    dict(_NEW),
    mysql=_INSERT_SQL + " on duplicate key update calls.attempt = calls.attempt",
)
# Begin another send of known keys, if they are as they were seen.
_AGAIN = joined_update(
    "calls",
    {
        **_NEW,
        "seen_state": "text",
        "seen_number": "int",
        "new_mark": "int",
        "new_doubted": "int",
        "new_doubted_until": "int",
        "new_fresh": "int",
    },
    assign=f"""{_SET_ROW}, reference = coalesce(t.reference, b.new_reference),
      task_id = b.new_task, tenant_id = b.new_tenant, pool = b.new_pool, attempt = b.new_attempt,
      fingerprint = b.new_fingerprint, incarnation = b.new_incarnation,
      send_number = send_number + 1, sends = sends + 1, max_sends = b.new_max_sends,
      on_unknown = b.new_mode, max_duplicates = b.new_max_duplicates,
      max_cost_micros = b.new_max_cost,
      possible_duplicates = possible_duplicates + b.new_mark,
      doubted_sends = b.new_doubted, doubted_until = b.new_doubted_until,
      first_send_at = case when b.new_fresh = 1 then {{now}} else first_send_at end,
      begun_at = {{now}}, occupied_until = {OPEN_END}, not_found_asked_at = 0""",
    where=f"""{KEY_MATCH} and t.send_number = b.seen_number and t.fenced_attempt < b.new_attempt
      and (t.state = b.seen_state or (t.state = 'PREPARED' and b.seen_state = 'UNKNOWN'))""",
)
_FENCE_OF_SEND = f"""{KEY_MATCH} and t.incarnation = b.fence_incarnation
  and t.send_number = b.fence_number"""
_SEND = {**KEY_COLUMNS, "fence_incarnation": "text", "fence_number": "int"}
# Settle sends, each by the incarnation that began it.
_SETTLE = joined_update(
    "calls",
    {
        **_SEND,
        "to_state": "text",
        "new_outcome": "text",
        "new_reason": "text",
        "new_retryable": "int",
        "new_retry_after": "real",
        "new_due": "real",
        "new_external": "text",
        "new_scores": "text",
        "new_cost": "int",
        "sends_back": "int",
        "marks_back": "int",
        "occupied_micros": "int",
        "doubt_over": "int",
    },
    assign="""state = b.to_state, outcome = b.new_outcome, reason = b.new_reason,
      retryable = b.new_retryable, retry_after_seconds = b.new_retry_after,
      receipt_due_seconds = b.new_due,
      external_id = case when b.new_external = '' then external_id else b.new_external end,
      scores = b.new_scores, cost_micros = cost_micros + b.new_cost, sends = sends - b.sends_back,
      possible_duplicates = possible_duplicates - b.marks_back, settled_at = {now},
      last_byte_at = {now}, occupied_until = case
        when b.occupied_micros is not null then {now} + b.occupied_micros
        when b.doubt_over = 0 and doubted_until > {now} then doubted_until else null end""",
    where=_FENCE_OF_SEND + " and t.state in ('PREPARED', 'UNKNOWN')",
)
# A settle that came too late: its permit is returned and its cost is not forgotten.
_VACATE = joined_update(
    "calls",
    {**_SEND, "occupied_micros": "int", "new_cost": "int"},
    assign="""cost_micros = cost_micros + b.new_cost, occupied_until = case
        when b.occupied_micros is null then null else {now} + b.occupied_micros end""",
    where=_FENCE_OF_SEND,
)
# The same for a send that is no longer the row's latest.
_ADD_COST = joined_update(
    "calls",
    {**KEY_COLUMNS, "new_cost": "int"},
    assign="cost_micros = cost_micros + b.new_cost",
    where=KEY_MATCH,
)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * MICROS_PER_SECOND)


def _new(row: Begin) -> list[object]:
    return [
        *row.key.values(),
        row.reference,
        row.task_id,
        row.tenant_id,
        row.pool,
        row.attempt,
        orjson.dumps(dict(row.fingerprint)).decode(),
        row.incarnation,
        row.max_sends,
        row.on_unknown.mode.value,
        row.on_unknown.max_duplicates,
        row.on_unknown.max_cost_micros,
    ]


def begin(tx: Tx, rows: Sequence[Begin]) -> int:
    """Make sends PREPARED; returns how many rows took it, new ones first.

    On MySQL a key that somebody else inserted meanwhile is counted too: read back.
    """
    first = [_new(row) for row in rows if row.seen is None]
    changed = tx.changed(_INSERT, first) if first else 0
    again = [
        [
            *_new(row),
            row.seen.ledger.state.value,
            row.seen.send_number,
            int(row.marked),
            row.doubted_sends,
            row.doubted_until,
            int(row.fresh),
        ]
        for row in rows
        if row.seen is not None
    ]
    return changed + (tx.changed(_AGAIN, again) if again else 0)


def settle(tx: Tx, rows: Sequence[Settle]) -> int:
    """Settle sends; returns how many fences held."""
    return tx.changed(
        _SETTLE,
        [
            [
                *row.key.values(),
                row.incarnation,
                row.send_number,
                row.state.value,
                row.outcome.outcome.value,
                row.outcome.reason,
                int(row.outcome.retryable),
                row.outcome.retry_after_seconds,
                row.outcome.receipt_due_seconds,
                row.outcome.external_id,
                scores_text(row.outcome),
                row.outcome.cost_micros,
                row.sends_back,
                row.marks_back,
                _micros(row.occupied_seconds),
                int(row.doubt_over),
            ]
            for row in rows
        ],
    )


def vacate(tx: Tx, row: Settle, cost_micros: int) -> None:
    """Return the permit of a settle that lost to evidence, and add `cost_micros`."""
    occupied = _micros(row.occupied_seconds)
    fence = [*row.key.values(), row.incarnation, row.send_number]
    if not tx.changed(_VACATE, [[*fence, occupied, cost_micros]]) and cost_micros:
        tx.execute(_ADD_COST, [[*row.key.values(), cost_micros]])
