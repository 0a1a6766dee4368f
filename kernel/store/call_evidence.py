"""Evidence in the call ledger: what settles, fences or takes over a send from outside.

Receives the open transaction and verified answers: receipts, queries, cancels, fences, and
the lease ends of dead incarnations. Hands on whether they took. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel.attempt import CallOutcome, QueryAnswer
from kernel.environment import MICROS_PER_SECOND
from kernel.idempotency import CallState
from kernel.store.calls import KEY_IS, OWNER_LOST, CallKey, StoredCall, scores_text
from kernel.store.dialect import Statement
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx

_SEEN = f"{KEY_IS} and send_number = :seen_number"
# A verified terminal answer, from a receipt, a query or a cancel, is the outcome of the row that
# it was judged on.
_EVIDENCE = Statement(
    f"""update calls set state = :state, outcome = :outcome, reason = :reason, retryable = 0,
         retry_after_seconds = null, scores = :scores,
         external_id = case when :external_id = '' then external_id else :external_id end,
         cost_micros = cost_micros + :cost, settled_at = {{now}},
         occupied_until = case when :frees = 1 then null else occupied_until end
       where {_SEEN}"""  # noqa: S608
)
# The vendor's id for a call, from an answer that does not end it.
_LEARN = Statement(
    f"update calls set external_id = :external_id where {_SEEN} and external_id = ''"  # noqa: S608
)
_FENCE_SQL = """insert into calls (caller, vendor, idempotency_key, task_id, tenant_id, pool, state,
    attempt, fenced_attempt, fingerprint, incarnation, send_number, sends, max_sends,
    granted_sends, on_unknown, max_duplicates, max_cost_micros, outcome, reason, retryable,
    receipt_due_seconds, external_id, possible_duplicates, cost_micros, doubted_sends,
    doubted_until, first_send_at, last_byte_at, not_found_asked_at, last_query_answer)
  values (:caller, :vendor, :key, '', '', '', 'FENCED', 0, :attempt, '{}', '', 0, 0, 0, 0,
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
_QUERY = Statement(
    f"""update calls set last_query_answer = :answer, last_query_at = {{now}},
         occupied_until = case when :asked_at > 0 then null else occupied_until end,
         not_found_asked_at = case when :asked_at > not_found_asked_at then :asked_at
           else not_found_asked_at end,
         external_id = case when external_id = '' then :external_id else external_id end
       where {_SEEN}"""  # noqa: S608
)
_DEAD = """t.occupied_until = :open_end and t.vendor = v.of_vendor and i.id = t.incarnation
  and i.lease_until + :write <= {now}"""
_LONGEST = "i.lease_until + :write"
_VENDORS = {"of_vendor": "text", "longest": "int"}


def _take_over(assign: str, which: str) -> Statement:
    where = f"{_DEAD} and t.state {which} 'PREPARED'"
    return Statement(
        f"update calls as t set {assign} from incarnations i, {{batch}} v where {where}",  # noqa: S608
        dict(_VENDORS),
        mysql=f"update calls t join incarnations i join {{batch}} v on {where} set {assign}",  # noqa: S608
    )


# Dead owners' open rows: what was PREPARED is in doubt from now on.
_TAKE_PREPARED = _take_over(
    f"""state = 'UNKNOWN', outcome = 'UNKNOWN', reason = '{OWNER_LOST}', settled_at = {{now}},
      last_byte_at = {_LONGEST}, occupied_until = {_LONGEST} + v.longest""",
    "=",
)
# Dead owners' rows that evidence had settled: only their permit was open.
_TAKE_SETTLED = _take_over(f"occupied_until = {_LONGEST} + v.longest", "<>")


def add_evidence(
    tx: Tx,
    call: StoredCall,
    outcome: CallOutcome,
    state: CallState,
    *,
    frees: bool,
) -> bool:
    """Take `call` to `state` by a terminal answer; False when a newer send began meanwhile."""
    changed = tx.changed(
        _EVIDENCE,
        None,
        **_seen(call),
        state=state.value,
        outcome=outcome.outcome.value,
        reason=outcome.reason,
        external_id=outcome.external_id,
        scores=scores_text(outcome),
        cost=outcome.cost_micros,
        frees=int(frees),
    )
    return changed == 1


def learn_external_id(tx: Tx, call: StoredCall, external_id: str) -> None:
    """Keep the vendor's id for a call that has none yet."""
    tx.execute(_LEARN, None, **_seen(call), external_id=external_id)


def fence(tx: Tx, key: CallKey, attempt: int) -> None:
    """Close `attempt` and all before it to new sends."""
    tx.execute(_FENCE, **key.params(), attempt=attempt)


def keep_query(
    tx: Tx, call: StoredCall, answer: QueryAnswer, not_found_asked_at: int, external_id: str
) -> None:
    """Keep a vendor's answer, unless a newer send began meanwhile.

    `not_found_asked_at` in microseconds, 0 unless the answer proves that nothing executed.
    """
    tx.execute(
        _QUERY,
        None,
        **_seen(call),
        answer=answer.value,
        asked_at=not_found_asked_at,
        external_id=external_id,
    )


def take_over_dead(tx: Tx, write_seconds: float, max_execution_seconds: Mapping[str, float]) -> int:
    """Take over open rows of dead incarnations; returns how many calls are in doubt now."""
    if not max_execution_seconds:
        return 0
    vendors = [
        (vendor, int(seconds * MICROS_PER_SECOND))
        for vendor, seconds in sorted(max_execution_seconds.items())
    ]
    bound = {"open_end": OPEN_END, "write": int(write_seconds * MICROS_PER_SECOND)}
    in_doubt = tx.changed(_TAKE_PREPARED, vendors, **bound)
    tx.changed(_TAKE_SETTLED, vendors, **bound)
    return in_doubt


def _seen(call: StoredCall) -> dict[str, object]:
    """The row, if no newer send has begun."""
    return {**call.key.params(), "seen_number": call.send_number}
