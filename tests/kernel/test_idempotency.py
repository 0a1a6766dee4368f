"""Receives requests and ledger rows; checks sameness, keys, and what a key met again means."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.attempt import CallOutcome, OnUnknown, OnUnknownMode, Outcome, Resend
from kernel.idempotency import (
    CallState,
    Capabilities,
    Hasher,
    LedgerRow,
    Meeting,
    Met,
    canonical,
    first_difference,
    idempotency_key,
    meet,
    resend_verdict,
)

steady = settings(derandomize=True, max_examples=300, deadline=None)

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
SAME = {"body": "11", "pool": "22"}
TASK = "0190a1b2c3d4e5f60718293a4b5c6d7e.3"

ROW = LedgerRow(
    state=CallState.UNKNOWN,
    attempt=2,
    fenced_attempt=0,
    fingerprint=SAME,
    sends=1,
    max_sends=4,
    outcome=CallOutcome(Outcome.UNKNOWN),
    external_id="",
    possible_duplicates=0,
    first_send_at=NOW - 10 * SECOND,
    last_byte_at=NOW - 5 * SECOND,
    owner_until=0,
    not_found_asked_at=0,
)


def settled(outcome: str, *, retryable: bool = False) -> LedgerRow:
    answer = CallOutcome(Outcome(outcome), retryable=retryable)
    return replace(ROW, state=CallState.SETTLED, outcome=answer)


def met(
    row: LedgerRow | None,
    attempt: int,
    verdict: Resend = Resend.REFUSED,
    *,
    fingerprint: dict[str, str] | None = None,
    max_sends: int = 4,
    granted_sends: int = 0,
) -> Met:
    return meet(row, fingerprint or SAME, attempt, max_sends, verdict, granted_sends)


# ---- keys -------------------------------------------------------------------------------


def test_case_1_02_a_key_is_the_same_in_every_process_and_at_every_attempt() -> None:
    # Rows and vendors hold keys that were made by an earlier version of this program.
    assert idempotency_key(TASK, "acme") == "0d5a0768-c1f4-54f5-b8bf-083e3a1bb70d"
    assert uuid.UUID(idempotency_key(TASK, "acme")).version == 5


def test_case_1_02_a_key_shows_nothing_of_its_task() -> None:
    key = idempotency_key(TASK, "acme")
    assert "acme" not in key
    assert TASK.split(".")[0][:12] not in key.replace("-", "")


@steady
@given(st.text("ab\n.1", max_size=4), st.text("ab\n.1", max_size=4))
def test_case_1_02_no_two_pairs_of_task_and_vendor_share_a_key(task: str, vendor: str) -> None:
    other = idempotency_key(task, vendor + "x")
    assert other != idempotency_key(task, vendor)
    assert other != idempotency_key(task + "x", vendor)


# ---- sameness ---------------------------------------------------------------------------


def test_case_1_07_the_order_of_json_keys_is_no_difference() -> None:
    assert canonical(b'{"to":"A","n":1}') == canonical(b'{"n": 1, "to": "A"}')
    assert canonical(b'{"to":"B","n":1}') != canonical(b'{"to":"A","n":1}')
    assert canonical({"to": "A", "n": 1}) == canonical({"n": 1, "to": "A"})
    assert canonical(b"not json") == b"not json"
    assert canonical(b"[1,2]") != canonical(b"[2,1]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@steady
@given(json_values)
def test_case_1_07_what_is_written_canonically_stays_as_it_is(value: object) -> None:
    once = canonical(value)
    assert canonical(once) == once


def test_a_difference_is_named_by_the_first_field_in_order() -> None:
    hasher = Hasher(b"k" * 32)
    stored = hasher.fingerprint({"parts": [1], "deadline": 5, "labels": {"a": "b"}})
    assert first_difference(stored, dict(stored)) is None
    given_later = hasher.fingerprint({"parts": [2], "deadline": 6, "labels": {"a": "b"}})
    assert first_difference(stored, given_later) == "deadline"
    assert first_difference(stored, {k: v for k, v in stored.items() if k != "parts"}) == "parts"
    assert first_difference({}, {"parts": "x"}) == "parts"


def test_i8_digests_are_keyed_and_apart_by_purpose() -> None:
    one, other = Hasher(b"a" * 32), Hasher(b"b" * 32)
    assert one.digest("input", b"123456") != other.digest("input", b"123456")
    assert one.digest("input", b"123456") != one.digest("address", b"123456")
    assert len(one.digest("input", b"")) == 64
    assert "123456" not in "".join(one.fingerprint({"code": "123456"}).values())


# ---- a key met again --------------------------------------------------------------------


def test_a_key_never_met_is_sent() -> None:
    assert met(None, 1) == Met(Meeting.SEND)


MET_AGAIN = [
    # row, lower attempt (1), the same attempt (2), a higher attempt (3)
    (settled("COMPLETED"), Meeting.STALE, Meeting.REPLAY, Meeting.REPLAY),
    (settled("ACCEPTED"), Meeting.STALE, Meeting.REPLAY, Meeting.REPLAY),
    (settled("REJECTED"), Meeting.STALE, Meeting.REPLAY, Meeting.REPLAY),
    (settled("REJECTED", retryable=True), Meeting.STALE, Meeting.REPLAY, Meeting.SEND),
    (settled("THROTTLED"), Meeting.STALE, Meeting.REPLAY, Meeting.SEND),
    (settled("NOT_SENT"), Meeting.STALE, Meeting.REPLAY, Meeting.SEND),
    (replace(ROW, state=CallState.PREPARED), Meeting.STALE, Meeting.JOIN, Meeting.JOIN),
    (ROW, Meeting.STALE, Meeting.REPLAY, Meeting.REPLAY),
]


@pytest.mark.parametrize(("row", "lower", "same", "higher"), MET_AGAIN)
def test_a_key_met_again_is_answered_as_section_7_says(
    row: LedgerRow, lower: Meeting, same: Meeting, higher: Meeting
) -> None:
    assert [met(row, attempt).meeting for attempt in (1, 2, 3)] == [lower, same, higher]


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("row", [row for row, *_ in MET_AGAIN])
def test_case_1_07_another_body_is_refused_before_anything_else(
    row: LedgerRow, attempt: int
) -> None:
    fenced = replace(row, fenced_attempt=9)
    for each, verdict in itertools.product((row, fenced), Resend):
        assert met(each, attempt, verdict, fingerprint={**SAME, "body": "99"}) == Met(
            Meeting.MISMATCH, "body"
        )


@pytest.mark.parametrize("row", [row for row, *_ in MET_AGAIN])
def test_case_2_02_a_fenced_attempt_is_stale_whatever_the_row_says(row: LedgerRow) -> None:
    fenced = replace(row, fenced_attempt=3)
    assert {met(fenced, attempt, Resend.SAFE).meeting for attempt in (1, 2, 3)} == {Meeting.STALE}


def test_a_fence_before_anything_was_begun_lets_a_later_attempt_through() -> None:
    fenced = replace(ROW, state=CallState.FENCED, attempt=0, fenced_attempt=2, sends=0, max_sends=0)
    meetings = [met(fenced, attempt).meeting for attempt in (1, 2, 3)]
    assert meetings == [Meeting.STALE, Meeting.STALE, Meeting.SEND]
    # There was no request before, so none can differ.
    assert met(fenced, 3, fingerprint={"body": "99"}).meeting is Meeting.SEND


@pytest.mark.parametrize(
    ("verdict", "attempt", "meeting"),
    [
        (Resend.REFUSED, 3, Meeting.REPLAY),
        (Resend.SAFE, 3, Meeting.SEND),
        (Resend.MARKED, 3, Meeting.SEND_MARKED),
        (Resend.SAFE, 2, Meeting.REPLAY),
        (Resend.MARKED, 2, Meeting.REPLAY),
    ],
)
def test_i3_a_call_in_doubt_is_sent_again_only_by_a_verdict_and_a_higher_attempt(
    verdict: Resend, attempt: int, meeting: Meeting
) -> None:
    assert met(ROW, attempt, verdict).meeting is meeting


@pytest.mark.parametrize("row", [replace(ROW, sends=4), replace(settled("THROTTLED"), sends=4)])
def test_i12_a_spent_budget_is_exhausted_whatever_the_request_allows(row: LedgerRow) -> None:
    assert met(row, 3, Resend.SAFE, max_sends=99).meeting is Meeting.EXHAUSTED
    smaller = replace(row, sends=2)
    assert met(smaller, 3, Resend.SAFE, max_sends=2).meeting is Meeting.EXHAUSTED
    assert met(smaller, 3, Resend.SAFE, max_sends=3).meeting is Meeting.SEND


def test_a_send_that_an_operator_granted_goes_beyond_budget_and_rules_once() -> None:
    spent = replace(ROW, sends=4)
    assert resend_verdict(spent, BY_KEY, ONCE, 1, NOW, granted_sends=1) is Resend.MARKED
    assert met(spent, 3, Resend.MARKED, granted_sends=1).meeting is Meeting.SEND_MARKED
    used = replace(spent, sends=5, granted_sends=1)
    assert resend_verdict(used, BY_KEY, ONCE, 1, NOW, granted_sends=1) is Resend.REFUSED
    assert met(used, 3, Resend.MARKED, granted_sends=1).meeting is Meeting.EXHAUSTED
    # What is safe by the vendor's means needs no grant and no mark.
    assert resend_verdict(spent, DEDUPE, ONCE, 1, NOW, granted_sends=1) is Resend.SAFE


def test_i12_a_replay_costs_nothing_and_is_given_even_when_the_budget_is_spent() -> None:
    assert met(replace(settled("COMPLETED"), sends=4), 9).meeting is Meeting.REPLAY
    assert met(replace(ROW, sends=4), 9, Resend.REFUSED).meeting is Meeting.REPLAY


# ---- may an unknown call be sent again --------------------------------------------------

NEITHER = Capabilities()
DEDUPE = Capabilities(dedupe=True, key_window_seconds=60.0)
BY_KEY = Capabilities(query_by_key=True, authoritative=True, consistency_lag_seconds=2.0)
BY_ID = Capabilities(query_by_id=True, authoritative=True)
ONCE = OnUnknown(OnUnknownMode.AT_MOST_ONCE)
AGAIN = OnUnknown(OnUnknownMode.AT_LEAST_ONCE, max_duplicates=1)

STALE_KEY = replace(ROW, first_send_at=NOW - 60 * SECOND)
PROVED = replace(ROW, not_found_asked_at=ROW.last_byte_at + 2 * SECOND + 1)
TOO_SOON = replace(ROW, not_found_asked_at=ROW.last_byte_at + 2 * SECOND)
WITH_ID = replace(ROW, external_id="v-1")


@pytest.mark.parametrize(
    ("able", "row", "on_unknown", "verdict"),
    [
        # de-duplicates by key: inside the vendor's window, whatever the request says
        (DEDUPE, ROW, ONCE, Resend.SAFE),
        (DEDUPE, ROW, AGAIN, Resend.SAFE),
        # outside it, as "neither"
        (DEDUPE, STALE_KEY, ONCE, Resend.REFUSED),
        (DEDUPE, STALE_KEY, AGAIN, Resend.MARKED),
        # can be queried by our key: only after an authoritative NOT_FOUND past its lag
        (BY_KEY, ROW, AGAIN, Resend.REFUSED),
        (BY_KEY, TOO_SOON, AGAIN, Resend.REFUSED),
        (BY_KEY, PROVED, ONCE, Resend.SAFE),
        (replace(BY_KEY, authoritative=False), PROVED, ONCE, Resend.REFUSED),
        (replace(BY_KEY, authoritative=False), PROVED, AGAIN, Resend.MARKED),
        # can be queried by its own id alone
        (BY_ID, WITH_ID, AGAIN, Resend.REFUSED),
        (BY_ID, ROW, ONCE, Resend.REFUSED),
        (BY_ID, ROW, AGAIN, Resend.MARKED),
        # neither
        (NEITHER, ROW, ONCE, Resend.REFUSED),
        (NEITHER, ROW, AGAIN, Resend.MARKED),
        (NEITHER, PROVED, ONCE, Resend.REFUSED),
    ],
)
def test_i3_a_resend_is_judged_by_what_the_vendor_can_do(
    able: Capabilities, row: LedgerRow, on_unknown: OnUnknown, verdict: Resend
) -> None:
    assert resend_verdict(row, able, on_unknown, 100, NOW) is verdict


@pytest.mark.parametrize(
    ("duplicates", "on_unknown", "verdict"),
    [
        (0, OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 0), Resend.REFUSED),
        (1, OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 1), Resend.REFUSED),
        (1, OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 2), Resend.MARKED),
        (1, OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 9, 200), Resend.MARKED),
        (1, OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 9, 199), Resend.REFUSED),
        (0, OnUnknown(OnUnknownMode.AT_MOST_ONCE, 9, 999), Resend.REFUSED),
    ],
)
def test_i3_duplicates_stay_within_the_bounds_that_the_policy_allows(
    duplicates: int, on_unknown: OnUnknown, verdict: Resend
) -> None:
    row = replace(ROW, possible_duplicates=duplicates)
    assert resend_verdict(row, NEITHER, on_unknown, 100, NOW) is verdict


@steady
@given(
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "v-1"]),
    st.integers(0, 3),
    st.integers(-90, 0),
    st.integers(-90, 0),
)
def test_i3_at_most_once_is_never_marked_and_safe_always_has_a_reason(
    dedupe: bool,
    by_key: bool,
    by_id: bool,
    authoritative: bool,
    external_id: str,
    duplicates: int,
    first_send: int,
    asked: int,
) -> None:
    able = Capabilities(
        dedupe=dedupe,
        query_by_key=by_key,
        query_by_id=by_id,
        authoritative=authoritative,
        consistency_lag_seconds=2.0,
        key_window_seconds=60.0,
    )
    row = replace(
        ROW,
        external_id=external_id,
        possible_duplicates=duplicates,
        first_send_at=NOW + first_send * SECOND,
        not_found_asked_at=NOW + asked * SECOND,
    )
    assert resend_verdict(row, able, ONCE, 1, NOW) is not Resend.MARKED
    verdict = resend_verdict(row, able, AGAIN, 1, NOW)
    proved = authoritative and NOW + asked * SECOND > ROW.last_byte_at + 2 * SECOND
    remembered = dedupe and first_send > -60
    assert (verdict is Resend.SAFE) is (proved or remembered)
    if verdict is Resend.MARKED:
        assert duplicates < 1
