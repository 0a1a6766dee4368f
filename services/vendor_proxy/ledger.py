"""The call ledger: what a key met again means, and how a send is begun and settled.

Receives requests with their fingerprint, and outcomes from the wire. Hands on `Begun` for a
send that is durable, or the typed answer that needs none. The rules are
`kernel.idempotency.meet` and `resend_verdict`; the rows are `kernel.store.call*`. Functions
take the transaction first, and never commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernel.attempt import CallOutcome, CallRequest, Outcome, Resend
from kernel.environment import MICROS_PER_SECOND
from kernel.idempotency import (
    CallState,
    Hasher,
    Meeting,
    Met,
    idempotency_key,
    meet,
    resend_verdict,
)
from kernel.store import call_sends, calls
from kernel.store.calls import CallKey, StoredCall
from kernel.store.proxy_schema import OPEN_END
from kernel.store.transaction import Tx
from kernel.vendor import VendorProfile


@dataclass(frozen=True, slots=True)
class Asked:
    """An Execute, scoped by its caller and fingerprinted."""

    key: CallKey
    request: CallRequest
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Begun:
    """A send that is durable and may go on the wire. `now`: the database's, in microseconds.

    `sends`, `possible_duplicates` and `cost_micros` are the row's, this send included;
    `grants` are those that it used. `one_execution`: its vendor takes it and all earlier sends
    in doubt for one piece of work.
    """

    asked: Asked
    reference: str
    incarnation: str
    send_number: int
    now: int
    sends: int
    possible_duplicates: int
    cost_micros: int
    marked: bool
    grants: int
    doubted_sends: int
    one_execution: bool


@dataclass(frozen=True, slots=True)
class LedgerRules:
    """What the ledger's decisions depend on besides the rows."""

    vendors: Mapping[str, VendorProfile]
    write_seconds: float


def fingerprint(hasher: Hasher, request: CallRequest) -> dict[str, str]:
    """One digest a field of what is asked; never of the attempt, the deadline or a trace."""
    payload: object = request.payload_ref or request.payload
    return hasher.fingerprint(
        {
            "payload": payload,
            "model": [request.model_id, request.model_version],
            "pool": request.pool,
            "kind": request.kind,
            "units": dict(request.units),
            "tenant_id": request.tenant_id,
        }
    )


def look(tx: Tx, asked: Asked, rules: LedgerRules) -> CallOutcome | None:
    """The answer to a request that needs no send, None when it would be sent."""
    now = tx.now()
    row = calls.look_up(tx, asked.key, rules.write_seconds)
    return _answer(asked, row, _meet(asked, row, rules, now), now)


def begin(tx: Tx, asked: Asked, incarnation: str, rules: LedgerRules) -> Begun | CallOutcome:
    """A request's durable send, or the answer that needs none."""
    now = tx.now()
    row = calls.look_up(tx, asked.key, rules.write_seconds, lock=True)
    met = _meet(asked, row, rules, now)
    answer = _answer(asked, row, met, now)
    if answer is not None:
        return answer
    send = _begin(asked, row, met, _reference(tx, asked.key, row), incarnation, rules, now)
    if call_sends.begin(tx, send):
        return _begun(asked, send, rules, now)
    row = calls.look_up(tx, asked.key, rules.write_seconds)
    again = _answer(asked, row, _meet(asked, row, rules, now), now)
    return again or CallOutcome(Outcome.NOT_SENT, "LEDGER_RACED", retryable=True)


def begun_by(tx: Tx, asked: Asked, incarnation: str, rules: LedgerRules) -> Begun | None:
    """The send that this incarnation has open for a key, None when it has none.

    What it was before is not known any more: a mark and a grant that it used stay used.
    """
    row = calls.look_up(tx, asked.key, rules.write_seconds, lock=True)
    if row is None or row.incarnation != incarnation or row.settled_at is not None:
        return None
    return Begun(
        asked=asked,
        reference=row.reference,
        incarnation=incarnation,
        send_number=row.send_number,
        now=0,
        sends=row.ledger.sends,
        possible_duplicates=row.ledger.possible_duplicates,
        cost_micros=row.cost_micros,
        marked=False,
        grants=0,
        doubted_sends=row.doubted_sends,
        one_execution=one_execution(row, rules.vendors[asked.key.vendor]),
    )


def row_of(tx: Tx, key: CallKey, rules: LedgerRules) -> StoredCall:
    """The row of a key that the ledger has, for a write."""
    row = calls.look_up(tx, key, rules.write_seconds, lock=True)
    assert row is not None  # noqa: S101 - rows of the ledger are never deleted
    return row


def one_execution(row: StoredCall, profile: VendorProfile) -> bool:
    """Whether all sends of the row are one piece of work for the vendor."""
    known = _knows_key(profile, row.ledger.first_send_at, row.begun_at or 0)
    return row.doubted_sends == 0 or known


def shown(row: StoredCall) -> CallOutcome:
    """The row's standing as an answer: its outcome with the counts of the whole key."""
    stored = row.outcome or CallOutcome(Outcome.UNKNOWN)
    return _counted(replace(stored, replayed=True), row)


def in_doubt(row: StoredCall) -> CallOutcome:
    """UNKNOWN, whatever the latest send's own answer was: an earlier one is still in doubt."""
    last = row.outcome
    reason = last.reason if last is not None and last.outcome is Outcome.UNKNOWN else "IN_DOUBT"
    return _counted(CallOutcome(Outcome.UNKNOWN, reason, replayed=True), row)


def verdict(row: StoredCall, profile: VendorProfile, now: int) -> Resend:
    """What an Execute with a higher attempt would do with this row."""
    if row.ledger.state is not CallState.UNKNOWN:
        return Resend.REFUSED
    return resend_verdict(row.ledger, profile.able, row.on_unknown, profile.price_micros, now)


def _meet(asked: Asked, row: StoredCall | None, rules: LedgerRules, now: int) -> Met:
    profile = rules.vendors[asked.key.vendor]
    request = asked.request
    judged = Resend.REFUSED
    if row is not None and row.ledger.state is CallState.UNKNOWN:
        judged = resend_verdict(
            row.ledger,
            profile.able,
            request.on_unknown,
            profile.price_micros,
            now,
            request.granted_sends,
        )
    return meet(
        None if row is None else row.ledger,
        asked.fingerprint,
        request.attempt,
        request.max_sends,
        judged,
        request.granted_sends,
    )


def _answer(asked: Asked, row: StoredCall | None, met: Met, now: int) -> CallOutcome | None:
    if met.meeting in (Meeting.SEND, Meeting.SEND_MARKED):
        if now >= asked.request.deadline:
            refused = CallOutcome(Outcome.NOT_SENT, "DEADLINE_PASSED")
            return refused if row is None else _counted(refused, row)
        return None
    assert row is not None  # noqa: S101 - a key that is not there is sent
    match met.meeting:
        case Meeting.REPLAY if row.ledger.state is CallState.UNKNOWN:
            same_attempt = asked.request.attempt == row.ledger.attempt
            return shown(row) if same_attempt else in_doubt(row)
        case Meeting.REPLAY:
            return shown(row)
        case Meeting.JOIN:
            return _counted(CallOutcome(Outcome.IN_PROGRESS, "IN_PROGRESS"), row)
        case Meeting.STALE:
            return _counted(CallOutcome(Outcome.STALE_ATTEMPT, "STALE_ATTEMPT"), row)
        case Meeting.MISMATCH:
            return CallOutcome(Outcome.REQUEST_MISMATCH, "REQUEST_MISMATCH", field=met.field)
        case _:
            return _counted(CallOutcome(Outcome.BUDGET_EXHAUSTED, "BUDGET_EXHAUSTED"), row)


def _counted(outcome: CallOutcome, row: StoredCall) -> CallOutcome:
    return replace(
        outcome,
        external_id=outcome.external_id or row.ledger.external_id,
        sends=row.ledger.sends,
        possible_duplicates=row.ledger.possible_duplicates,
        cost_micros=row.cost_micros,
        settles_key=row.ledger.state is CallState.SETTLED,
    )


def _reference(tx: Tx, key: CallKey, row: StoredCall | None) -> str:
    """The key as the vendor will see it: the caller's own, unless another caller's call has it.

    Two callers' equal keys must not meet at a vendor that de-duplicates either.
    """
    if row is not None and row.reference:
        return row.reference
    user = calls.by_reference(tx, key.vendor, key.idempotency_key)
    if user is None or user == key:
        return key.idempotency_key
    return idempotency_key(f"{key.caller}\n{key.idempotency_key}", key.vendor)


def _knows_key(profile: VendorProfile, first_send_at: int, at: int) -> bool:
    """Whether the vendor takes a send of that time for the same work as the first one."""
    window = int(profile.able.key_window_seconds * MICROS_PER_SECOND)
    return profile.able.dedupe and at < first_send_at + window


def _begin(
    asked: Asked,
    row: StoredCall | None,
    met: Met,
    reference: str,
    incarnation: str,
    rules: LedgerRules,
    now: int,
) -> call_sends.Begin:
    request = asked.request
    new = call_sends.Begin(
        key=asked.key,
        reference=reference,
        task_id=request.task_id,
        tenant_id=request.tenant_id,
        pool=request.pool,
        attempt=request.attempt,
        fingerprint=asked.fingerprint,
        incarnation=incarnation,
        max_sends=request.max_sends,
        on_unknown=request.on_unknown,
        seen=row,
    )
    if row is None or row.ledger.state is CallState.FENCED:
        return new
    used, budget = row.ledger.granted_sends, row.ledger.max_sends
    if request.granted_sends > used:
        # One grant is one send, whichever rule would have let it go as well.
        lifted = max(request.max_sends, budget)
        new = replace(new, max_sends=lifted, granted_sends=request.granted_sends)
    else:
        lowered = min(request.max_sends, budget or request.max_sends)
        new = replace(new, max_sends=lowered, granted_sends=used)
    if row.ledger.state is not CallState.UNKNOWN:
        return new
    profile = rules.vendors[asked.key.vendor]
    able = profile.able
    lag = int(able.consistency_lag_seconds * MICROS_PER_SECOND)
    if able.authoritative and row.ledger.not_found_asked_at > row.ledger.last_byte_at + lag:
        # Proved not executed; only a process frozen between check and write could still send,
        # and that is possible where the owner vanished: such a send is marked.
        known = _knows_key(profile, row.ledger.first_send_at, now)
        return replace(new, marked=row.lost_by_owner() and not known)
    last_doubted = row.outcome is None or row.outcome.outcome is Outcome.UNKNOWN
    busy_until = row.occupied_until or 0
    if busy_until == OPEN_END:
        longest = int(profile.max_execution_seconds * MICROS_PER_SECOND)
        busy_until = row.ledger.last_byte_at + longest
    return replace(
        new,
        marked=met.meeting is Meeting.SEND_MARKED,
        doubted_sends=row.doubted_sends + int(last_doubted),
        doubted_until=max(row.doubted_until, busy_until),
        fresh=False,
    )


def _begun(asked: Asked, send: call_sends.Begin, rules: LedgerRules, now: int) -> Begun:
    seen = send.seen
    profile = rules.vendors[asked.key.vendor]
    known = seen is not None and _knows_key(profile, seen.ledger.first_send_at, now)
    return Begun(
        asked=asked,
        reference=send.reference,
        incarnation=send.incarnation,
        send_number=(seen.send_number if seen else 0) + 1,
        now=now,
        sends=(seen.ledger.sends if seen else 0) + 1,
        possible_duplicates=(seen.ledger.possible_duplicates if seen else 0) + int(send.marked),
        cost_micros=seen.cost_micros if seen else 0,
        marked=send.marked,
        grants=send.granted_sends - (seen.ledger.granted_sends if seen else 0),
        doubted_sends=send.doubted_sends,
        one_execution=send.doubted_sends == 0 or known,
    )
