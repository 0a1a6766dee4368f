"""The call ledger: what a key met again means, and how a send is begun and settled.

Receives requests with their fingerprint, and outcomes from the wire. Hands on `Begun` for a
send that is durable, or the typed answer that needs none. The rules are
`kernel.idempotency.meet` and `resend_verdict`; the rows are `kernel.store.call*`. Functions
take the transaction first, and lists, so that concurrent calls can share a commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    `sends`, `possible_duplicates` and `cost_micros` are the row's, this send included.
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
    doubted_sends: int


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
    row = calls.look_up(tx, [asked.key], rules.write_seconds).get(asked.key)
    return _answer(asked, row, _meet(asked, row, rules, now), now)


def begin(
    tx: Tx, requests: Sequence[Asked], incarnation: str, rules: LedgerRules
) -> list[Begun | CallOutcome]:
    """For each request its durable send, or the answer that needs none; keys are distinct."""
    now = tx.now()
    rows = calls.look_up(tx, [asked.key for asked in requests], rules.write_seconds, lock=True)
    met = [_meet(asked, rows.get(asked.key), rules, now) for asked in requests]
    answers = [
        _answer(asked, rows.get(asked.key), meeting, now)
        for asked, meeting in zip(requests, met, strict=True)
    ]
    references = _references(tx, requests, rows)
    begins = {
        asked.key: _begin(
            asked, rows.get(asked.key), meeting, references[asked.key], incarnation, rules, now
        )
        for asked, meeting, answer in zip(requests, met, answers, strict=True)
        if answer is None
    }
    lost: dict[CallKey, StoredCall | None] = {}
    if begins:
        changed = call_sends.begin(tx, list(begins.values()))
        # MySQL counts a key that another transaction inserted first as a match.
        if changed != len(begins) or tx.dialect != "sqlite":
            now_there = calls.look_up(tx, list(begins), rules.write_seconds)
            lost = {
                key: now_there.get(key)
                for key, begun in begins.items()
                if not _is_in(begun, now_there.get(key))
            }
    results: list[Begun | CallOutcome] = []
    for asked, answer in zip(requests, answers, strict=True):
        if answer is not None:
            results.append(answer)
        elif asked.key in lost:
            row = lost[asked.key]
            again = _answer(asked, row, _meet(asked, row, rules, now), now)
            raced = CallOutcome(Outcome.NOT_SENT, "LEDGER_RACED", retryable=True)
            results.append(again or raced)
        else:
            results.append(_begun(asked, begins[asked.key], now))
    return results


def begun_by(tx: Tx, asked: Asked, incarnation: str, rules: LedgerRules) -> Begun | None:
    """The send that this incarnation has open for a key, None when it has none."""
    row = calls.look_up(tx, [asked.key], rules.write_seconds, lock=True).get(asked.key)
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
        doubted_sends=row.doubted_sends,
    )


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
            row.ledger, profile.able, request.on_unknown, profile.price_micros, now
        )
    return meet(
        None if row is None else row.ledger,
        asked.fingerprint,
        request.attempt,
        request.max_sends,
        judged,
        now,
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
    )


def _references(
    tx: Tx, requests: Sequence[Asked], rows: Mapping[CallKey, StoredCall]
) -> dict[CallKey, str]:
    """The key as the vendor will see it: the caller's own, unless another caller's call has it.

    Two callers' equal keys must not meet at a vendor that de-duplicates either.
    """
    known = {
        asked.key: rows[asked.key].reference if asked.key in rows else "" for asked in requests
    }
    unnamed = [key for key, reference in known.items() if not reference]
    if not unnamed:
        return known
    users = calls.references(tx, [(key.vendor, key.idempotency_key) for key in unnamed])
    for key in unnamed:
        user = users.get((key.vendor, key.idempotency_key))
        own = user is None or user == key
        scoped = idempotency_key(f"{key.caller}\n{key.idempotency_key}", key.vendor)
        known[key] = key.idempotency_key if own else scoped
    return known


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
    new = replace(new, max_sends=min(request.max_sends, row.ledger.max_sends or request.max_sends))
    if row.ledger.state is not CallState.UNKNOWN:
        return new
    profile = rules.vendors[asked.key.vendor]
    able = profile.able
    lag = int(able.consistency_lag_seconds * MICROS_PER_SECOND)
    if able.authoritative and row.ledger.not_found_asked_at > row.ledger.last_byte_at + lag:
        # Proved not executed; only a process frozen between check and write could still send,
        # and that is possible where the owner vanished: such a send is marked.
        window = int(able.key_window_seconds * MICROS_PER_SECOND)
        joined = able.dedupe and now < row.ledger.first_send_at + window
        return replace(new, marked=row.lost_by_owner() and not joined)
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


def _is_in(begin: call_sends.Begin, row: StoredCall | None) -> bool:
    wanted = (begin.incarnation, _number(begin))
    return row is not None and (row.incarnation, row.send_number) == wanted


def _number(begin: call_sends.Begin) -> int:
    return (begin.seen.send_number if begin.seen else 0) + 1


def _begun(asked: Asked, begin: call_sends.Begin, now: int) -> Begun:
    seen = begin.seen
    return Begun(
        asked=asked,
        reference=begin.reference,
        incarnation=begin.incarnation,
        send_number=_number(begin),
        now=now,
        sends=(seen.ledger.sends if seen else 0) + 1,
        possible_duplicates=(seen.ledger.possible_duplicates if seen else 0) + int(begin.marked),
        cost_micros=seen.cost_micros if seen else 0,
        marked=begin.marked,
        doubted_sends=begin.doubted_sends,
    )
