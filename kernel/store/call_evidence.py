"""Evidence in the call ledger: what settles, fences or takes over a send from outside.

Receives the open transaction and verified answers: receipts, queries, cancels, fences, and
the lease ends of dead incarnations. Hands on whether they took. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel.attempt import CallOutcome, QueryAnswer
from kernel.environment import MICROS_PER_SECOND
from kernel.store.calls import (
    KEY_COLUMNS,
    KEY_MATCH,
    OWNER_LOST,
    CallKey,
    StoredCall,
    scores_text,
)
from kernel.store.dialect import Statement, joined_update
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx

# A verified terminal answer, from a receipt, a query or a cancel, settles the row it was judged on.
_EVIDENCE = joined_update(
    "calls",
    {
        **KEY_COLUMNS,
        "seen_number": "int",
        "new_outcome": "text",
        "new_reason": "text",
        "new_external": "text",
        "new_scores": "text",
        "new_cost": "int",
        "frees": "int",
    },
    assign="""state = 'SETTLED', outcome = b.new_outcome, reason = b.new_reason, retryable = 0,
      retry_after_seconds = null, scores = b.new_scores,
      external_id = case when b.new_external = '' then external_id else b.new_external end,
      cost_micros = cost_micros + b.new_cost, settled_at = {now},
      occupied_until = case when b.frees = 1 then null else occupied_until end""",
    where=KEY_MATCH + " and t.send_number = b.seen_number",
)
# The vendor's id for a call, from an answer that does not end it.
_LEARN = joined_update(
    "calls",
    {**KEY_COLUMNS, "seen_number": "int", "new_external": "text"},
    assign="external_id = b.new_external",
    where=KEY_MATCH + " and t.send_number = b.seen_number and t.external_id = ''",
)
_FENCE_SQL = """insert into calls (caller, vendor, idempotency_key, task_id, tenant_id, pool, state,
    attempt, fenced_attempt, fingerprint, incarnation, send_number, sends, max_sends, on_unknown,
    max_duplicates, max_cost_micros, outcome, reason, retryable, receipt_due_seconds, external_id,
    possible_duplicates, cost_micros, doubted_sends, doubted_until, first_send_at, last_byte_at,
    not_found_asked_at, last_query_answer)
  values (:caller, :vendor, :key, '', '', '', 'FENCED', 0, :attempt, '{}', '', 0, 0, 0,
    'AT_MOST_ONCE', 0, 0, '', '', 0, 0, '', 0, 0, 0, 0, 0, 0, 0, '')"""
# Close all attempts up to one, with a row of its own where there is none.
_FENCE = Statement(
    _FENCE_SQL
    + """ on conflict (caller, vendor, idempotency_key) do update set
       fenced_attempt = max(calls.fenced_attempt, excluded.fenced_attempt)""",
    mysql=_FENCE_SQL
    + " on duplicate key update fenced_attempt = greatest(fenced_attempt, :attempt)",
)
# Keep what a vendor answered to a query; a proof that it never executed frees its permit.
_QUERY = joined_update(
    "calls",
    {
        **KEY_COLUMNS,
        "seen_number": "int",
        "new_answer": "text",
        "new_asked_at": "int",
        "new_external": "text",
    },
    assign="""last_query_answer = b.new_answer, last_query_at = {now},
      occupied_until = case when b.new_asked_at > 0 then null else occupied_until end,
      not_found_asked_at = case when b.new_asked_at > not_found_asked_at then b.new_asked_at
        else not_found_asked_at end,
      external_id = case when external_id = '' then b.new_external else external_id end""",
    where=KEY_MATCH + " and t.send_number = b.seen_number",
)
_DEAD = """t.occupied_until = :open_end and t.vendor = v.of_vendor and i.id = t.incarnation
  and i.lease_until + :write <= {now}"""
_LONGEST = "i.lease_until + :write"
_VENDORS = {"of_vendor": "text", "longest": "int"}


def _adopt(assign: str, which: str) -> Statement:
    where = f"{_DEAD} and t.state {which} 'PREPARED'"
    return Statement(
        f"update calls as t set {assign} from incarnations i, {{batch}} v where {where}",  # noqa: S608
        dict(_VENDORS),
        mysql=f"update calls t join incarnations i join {{batch}} v on {where} set {assign}",  # noqa: S608
    )


# Dead owners' open rows: what was PREPARED is in doubt from now on.
_ADOPT_PREPARED = _adopt(
    f"""state = 'UNKNOWN', outcome = 'UNKNOWN', reason = '{OWNER_LOST}', settled_at = {{now}},
      last_byte_at = {_LONGEST}, occupied_until = {_LONGEST} + v.longest""",
    "=",
)
# Dead owners' rows that evidence had settled: only their permit was open.
_ADOPT_SETTLED = _adopt(f"occupied_until = {_LONGEST} + v.longest", "<>")


def add_evidence(
    tx: Tx, call: StoredCall, outcome: CallOutcome, *, frees: bool, cost_micros: int
) -> bool:
    """Settle `call` by a terminal answer; False when a newer send began meanwhile."""
    row = [
        *call.key.values(),
        call.send_number,
        outcome.outcome.value,
        outcome.reason,
        outcome.external_id,
        scores_text(outcome),
        cost_micros,
        int(frees),
    ]
    return tx.changed(_EVIDENCE, [row]) == 1


def learn_external_id(tx: Tx, call: StoredCall, external_id: str) -> None:
    """Keep the vendor's id for a call that has none yet."""
    tx.execute(_LEARN, [[*call.key.values(), call.send_number, external_id]])


def fence(tx: Tx, key: CallKey, attempt: int) -> None:
    """Close `attempt` and all before it to new sends."""
    tx.execute(
        _FENCE, caller=key.caller, vendor=key.vendor, key=key.idempotency_key, attempt=attempt
    )


def keep_query(
    tx: Tx, call: StoredCall, answer: QueryAnswer, not_found_asked_at: int, external_id: str
) -> bool:
    """Keep a vendor's answer; False when a newer send began meanwhile.

    `not_found_asked_at` in microseconds, 0 unless the answer proves that nothing executed.
    """
    row = [*call.key.values(), call.send_number, answer.value, not_found_asked_at, external_id]
    return tx.changed(_QUERY, [row]) == 1


def adopt(tx: Tx, write_seconds: float, max_execution_seconds: Mapping[str, float]) -> int:
    """Take over open rows of dead incarnations; returns how many calls are in doubt now."""
    if not max_execution_seconds:
        return 0
    vendors = [
        (vendor, int(seconds * MICROS_PER_SECOND))
        for vendor, seconds in sorted(max_execution_seconds.items())
    ]
    bound = {"open_end": OPEN_END, "write": int(write_seconds * MICROS_PER_SECOND)}
    adopted = tx.changed(_ADOPT_PREPARED, vendors, **bound)
    tx.changed(_ADOPT_SETTLED, vendors, **bound)
    return adopted
