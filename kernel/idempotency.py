"""Sameness: keys, digests, fingerprints, and what a key met again means.

Receives requests and ledger rows as plain facts. Hands on the vendor key, the first field
that differs, and for a key met again a `Meeting`: send, replay, join, or a typed refusal.
Pure. Source: DESIGN sections 3 and 7; the four words are TigerBeetle's (created, exists,
exists with different, already failed).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID, uuid5

import orjson

from kernel.attempt import CallOutcome, OnUnknown, OnUnknownMode, Resend
from kernel.environment import micros

_KEY_NAMESPACE = UUID("6d5c8f0e-7a43-5b0e-9d57-51a1ce000001")


def idempotency_key(task_id: str, vendor: str) -> str:
    """The key a vendor sees: one per (task, vendor), the same at every attempt (UUIDv5)."""
    return str(uuid5(_KEY_NAMESPACE, f"{task_id}\n{vendor}"))


@dataclass(frozen=True, slots=True)
class Hasher:
    """Keyed digests (HMAC-SHA256): a plain hash of a short text is as good as the text."""

    key: bytes

    def digest(self, purpose: str, content: bytes) -> str:
        """64 hex digits; `purpose` keeps digests of different kinds apart."""
        return hmac.new(self.key, purpose.encode() + b"\0" + content, hashlib.sha256).hexdigest()

    def fingerprint(self, fields: Mapping[str, object]) -> dict[str, str]:
        """One short digest a field, so that a difference can be named without the content."""
        return {
            name: self.digest("field:" + name, canonical(value))[:16]
            for name, value in sorted(fields.items())
        }


def canonical(value: object) -> bytes:
    """The bytes by which two values are the same: JSON ignores the order of its keys."""
    if isinstance(value, bytes):
        try:
            parsed: object = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
        return orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def first_difference(stored: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    """The alphabetically first field whose digest differs, None when the requests are equal."""
    for name in sorted(stored.keys() | given.keys()):
        if stored.get(name) != given.get(name):
            return name
    return None


class CallState(StrEnum):
    """Where a row of the call ledger stands."""

    FENCED = "FENCED"  # closed before anything was begun
    PREPARED = "PREPARED"  # durable before the wire; it may be on the wire
    SETTLED = "SETTLED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one vendor can do. Times in seconds.

    `authoritative`: its "not found" proves that it never executed, `consistency_lag_seconds`
    after the last possible byte. `key_window_seconds`: how long it remembers a key.
    """

    dedupe: bool = False
    query_by_key: bool = False
    query_by_id: bool = False
    authoritative: bool = False
    consistency_lag_seconds: float = 0.0
    key_window_seconds: float = 86_400.0
    receipts: bool = False
    cancel: bool = False

    def can_query(self, external_id: str) -> bool:
        """Whether a call can be asked about, given what is known of it."""
        return self.query_by_key or (self.query_by_id and bool(external_id))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What the ledger knows of one key. Times in microseconds since the epoch.

    `first_send_at`: when the first send was begun. `last_byte_at`: after it no byte of any
    send so far can leave. `owner_until`: until when the owner of a PREPARED row may write.
    """

    state: CallState
    attempt: int
    fenced_attempt: int
    fingerprint: Mapping[str, str]
    sends: int
    max_sends: int
    outcome: CallOutcome | None
    external_id: str
    possible_duplicates: int
    first_send_at: int
    last_byte_at: int
    owner_until: int
    not_found_asked_at: int
    granted_sends: int = 0


class Meeting(StrEnum):
    """What to do about a key."""

    SEND = "SEND"
    SEND_MARKED = "SEND_MARKED"  # may be executed twice
    REPLAY = "REPLAY"
    JOIN = "JOIN"  # the same request is in flight
    STALE = "STALE"
    MISMATCH = "MISMATCH"
    EXHAUSTED = "EXHAUSTED"


@dataclass(frozen=True, slots=True)
class Met:
    """A meeting; `field` names the difference of a MISMATCH."""

    meeting: Meeting
    field: str = ""


def resend_verdict(
    row: LedgerRow,
    able: Capabilities,
    on_unknown: OnUnknown,
    price_micros: int,
    now: int,
    granted_sends: int = 0,
) -> Resend:
    """Whether an UNKNOWN call may be sent again, by what its vendor can do (DESIGN section 7).

    `granted_sends` above what the row has used is an operator's word: it goes before the
    rules that refuse, and the send is marked.
    """
    lag = micros(able.consistency_lag_seconds)
    if able.authoritative and row.not_found_asked_at > row.last_byte_at + lag:
        return Resend.SAFE
    in_window = now < row.first_send_at + micros(able.key_window_seconds)
    if able.dedupe and in_window:
        return Resend.SAFE
    if granted_sends > row.granted_sends:
        return Resend.MARKED
    if able.authoritative and able.can_query(row.external_id):
        return Resend.REFUSED
    if on_unknown.mode is OnUnknownMode.AT_MOST_ONCE:
        return Resend.REFUSED
    duplicates = row.possible_duplicates + 1
    affordable = (
        not on_unknown.max_cost_micros or duplicates * price_micros <= on_unknown.max_cost_micros
    )
    within = duplicates <= on_unknown.max_duplicates and affordable
    return Resend.MARKED if within else Resend.REFUSED


def meet(
    row: LedgerRow | None,
    fingerprint: Mapping[str, str],
    attempt: int,
    max_sends: int,
    verdict: Resend,
    granted_sends: int = 0,
) -> Met:
    """What an Execute does about its key; `verdict` is `resend_verdict` of the row.

    The order is the promise: another request is refused even while the first is in
    flight; a fenced attempt is refused before anything is sent; what is settled for good
    is replayed to any attempt.
    """
    if row is None:
        return Met(Meeting.SEND)
    if row.state is not CallState.FENCED:
        field = first_difference(row.fingerprint, fingerprint)
        if field is not None:
            return Met(Meeting.MISMATCH, field)
    if attempt <= row.fenced_attempt or attempt < row.attempt:
        return Met(Meeting.STALE)
    granted = granted_sends > row.granted_sends
    budget_left = granted or row.sends < min(max_sends, row.max_sends or max_sends)
    match row.state:
        case CallState.FENCED:
            return Met(Meeting.SEND)
        case CallState.PREPARED:
            return Met(Meeting.JOIN)
        case CallState.SETTLED:
            open_again = row.outcome is not None and row.outcome.open_again
            if not open_again or attempt == row.attempt:
                return Met(Meeting.REPLAY)
            return Met(Meeting.SEND if budget_left else Meeting.EXHAUSTED)
        case CallState.UNKNOWN:
            if attempt == row.attempt or verdict is Resend.REFUSED:
                return Met(Meeting.REPLAY)
            if not budget_left:
                return Met(Meeting.EXHAUSTED)
            return Met(Meeting.SEND if verdict is Resend.SAFE else Meeting.SEND_MARKED)
