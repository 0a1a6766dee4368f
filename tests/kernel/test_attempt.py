"""Receives outcomes, fences and queries; checks the settlement that each one demands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel.attempt import (
    NO_PERMIT,
    CallOutcome,
    FenceAnswer,
    Outcome,
    QueryAnswer,
    QueryOutcome,
    Resend,
    Settlement,
    TaskFacts,
    WaitRules,
    after_call,
    after_fence_never_begun,
    after_query,
    after_settled,
)
from kernel.lifecycle import State
from kernel.retry import Backoff

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
FACTS = TaskFacts(attempt=1, sends=1, max_sends=4, deadline=NOW + 60 * SECOND, maybe_executed=False)
WAITS = WaitRules(
    backoff=Backoff(base_seconds=2.0, cap_seconds=30.0),
    query_backoff=Backoff(base_seconds=4.0, cap_seconds=60.0),
    draw=0.5,
)
# What the settlement of a call leaves: state, reason, seconds until its next event, flag.
Row = tuple[State, str, float | None, bool]


def told(settlement: Settlement) -> Row:
    wake = settlement.wake_at
    seconds = None if wake is None else (wake - NOW) / SECOND
    return settlement.state, settlement.reason, seconds, settlement.maybe_executed


def call(outcome: str, **more: object) -> CallOutcome:
    return replace(CallOutcome(Outcome(outcome), sends=1), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "row"),
    [
        (call("COMPLETED", scores={"a": 0.1}), (State.SUCCEEDED, "", None, False)),
        (call("COMPLETED"), (State.FAILED, "RESULT_LOST", None, False)),
        (call("ACCEPTED"), (State.ACCEPTED, "", 60.0, True)),
        (call("ACCEPTED", receipt_due_seconds=9.0), (State.ACCEPTED, "", 9.0, True)),
        (call("NOT_SENT", reason=NO_PERMIT), (State.READY, NO_PERMIT, 60.0, False)),
        (call("NOT_SENT", reason="DNS"), (State.RETRY_WAIT, "DNS", 1.0, False)),
        (
            call("THROTTLED", retry_after_seconds=7.0),
            (State.RETRY_WAIT, "THROTTLED", 8.0, False),
        ),
        (call("REJECTED", retryable=True, reason="busy"), (State.RETRY_WAIT, "busy", 1.0, False)),
        (call("REJECTED", reason="unsafe"), (State.FAILED, "unsafe", None, False)),
        (call("REQUEST_MISMATCH"), (State.FAILED, "REQUEST_MISMATCH", None, False)),
        (call("BUDGET_EXHAUSTED"), (State.FAILED, "BUDGET_EXHAUSTED", None, False)),
        (call("UNKNOWN", reason="RESET"), (State.UNKNOWN, "RESET", 0.0, True)),
        (call("STALE_ATTEMPT"), (State.UNKNOWN, "STALE_ATTEMPT", 0.0, True)),
        (call("IN_PROGRESS"), (State.UNKNOWN, "IN_PROGRESS", 2.0, True)),
    ],
    ids=lambda value: f"{value.outcome}-{value.reason}" if hasattr(value, "outcome") else "",
)
def test_each_outcome_of_a_call_leads_to_its_move(answer: CallOutcome, row: Row) -> None:
    assert told(after_call(answer, FACTS, NOW, WAITS)) == row


def test_every_outcome_has_a_settlement() -> None:
    for outcome in Outcome:
        assert after_call(CallOutcome(outcome), FACTS, NOW, WAITS).state in State


@pytest.mark.parametrize("outcome", ["REJECTED", "REQUEST_MISMATCH", "BUDGET_EXHAUSTED"])
def test_i3_a_refusal_after_a_possible_execution_is_for_a_person_and_not_failed(
    outcome: str,
) -> None:
    settled = after_call(call(outcome), replace(FACTS, maybe_executed=True), NOW, WAITS)
    assert told(settled) == (State.UNKNOWN, outcome, 3600.0, True)
    assert settled.needs_operator


@pytest.mark.parametrize(("outcome", "reason"), [("THROTTLED", "RATE_LIMITED")])
def test_case_1_09_a_spent_budget_fails_with_the_reason_of_the_last_refusal(
    outcome: str, reason: str
) -> None:
    spent = replace(FACTS, sends=4)
    assert told(after_call(call(outcome, sends=4), spent, NOW, WAITS)) == (
        State.FAILED,
        reason,
        None,
        False,
    )
    rejected = call("REJECTED", retryable=True, sends=4)
    assert after_call(rejected, spent, NOW, WAITS).reason == "BUDGET_EXHAUSTED"
    last_but_one = after_call(call(outcome, sends=3), replace(FACTS, sends=3), NOW, WAITS)
    assert last_but_one.state is State.RETRY_WAIT


def test_i12_the_higher_count_of_sends_is_the_one_that_counts() -> None:
    throttled = call("THROTTLED", sends=1)
    assert after_call(throttled, replace(FACTS, sends=4), NOW, WAITS).state is State.FAILED


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        (FACTS, (State.RETRY_WAIT, "NEVER_BEGUN", 1.0, False)),
        (replace(FACTS, maybe_executed=True), (State.RETRY_WAIT, "NEVER_BEGUN", 1.0, False)),
        (
            replace(FACTS, wanted=False, maybe_executed=True),
            (State.CANCELLED, "CANCELLED_BEFORE_SEND", None, False),
        ),
        (replace(FACTS, deadline=NOW), (State.EXPIRED, "DEADLINE_PASSED", None, False)),
        (
            replace(FACTS, deadline=NOW + SECOND // 2),
            (State.RETRY_WAIT, "NEVER_BEGUN", 0.5, False),
        ),
    ],
)
def test_a_fence_that_proves_nothing_was_begun_clears_the_doubt(facts: TaskFacts, row: Row) -> None:
    assert told(after_fence_never_begun(facts, NOW, WAITS)) == row


DOUBT = replace(FACTS, maybe_executed=True)
CANNOT_TELL = QueryOutcome(QueryAnswer.CANNOT_TELL, resend=Resend.MARKED)


@pytest.mark.parametrize(
    ("query", "facts", "row"),
    [
        (
            QueryOutcome(QueryAnswer.SETTLED, call("COMPLETED", scores={"a": 1.0})),
            DOUBT,
            (State.SUCCEEDED, "", None, False),
        ),
        (QueryOutcome(QueryAnswer.SETTLED), DOUBT, (State.UNKNOWN, "SETTLED", 2.0, True)),
        (
            QueryOutcome(QueryAnswer.RUNNING, call("ACCEPTED", external_id="v-1")),
            DOUBT,
            (State.ACCEPTED, "RUNNING", 2.0, True),
        ),
        (
            QueryOutcome(QueryAnswer.RUNNING, call("ACCEPTED")),
            DOUBT,
            (State.UNKNOWN, "RUNNING", 2.0, True),
        ),
        (
            QueryOutcome(QueryAnswer.NOT_FOUND),
            DOUBT,
            (State.RETRY_WAIT, "NEVER_BEGUN", 1.0, False),
        ),
        (
            QueryOutcome(QueryAnswer.NOT_FOUND),
            replace(DOUBT, wanted=False),
            (State.CANCELLED, "CANCELLED_BEFORE_SEND", None, False),
        ),
        (
            QueryOutcome(QueryAnswer.NOT_FOUND),
            replace(DOUBT, deadline=NOW),
            (State.EXPIRED, "DEADLINE_PASSED", None, False),
        ),
        (
            QueryOutcome(QueryAnswer.NOT_FOUND),
            replace(DOUBT, sends=4),
            (State.FAILED, "BUDGET_EXHAUSTED", None, False),
        ),
        (
            QueryOutcome(QueryAnswer.TOO_EARLY, retry_after_seconds=3.0),
            DOUBT,
            (State.UNKNOWN, "TOO_EARLY", 3.0, True),
        ),
        (CANNOT_TELL, DOUBT, (State.RETRY_WAIT, "RESEND_MARKED", 1.0, True)),
        (
            replace(CANNOT_TELL, resend=Resend.SAFE),
            DOUBT,
            (State.RETRY_WAIT, "RESEND_SAFE", 1.0, True),
        ),
        (
            replace(CANNOT_TELL, resend=Resend.REFUSED, reason="MUTE"),
            DOUBT,
            (State.UNKNOWN, "MUTE", 3600.0, True),
        ),
        (CANNOT_TELL, replace(DOUBT, wanted=False), (State.UNKNOWN, "CANNOT_TELL", 3600.0, True)),
        (CANNOT_TELL, replace(DOUBT, deadline=NOW), (State.UNKNOWN, "CANNOT_TELL", 3600.0, True)),
        (CANNOT_TELL, replace(DOUBT, sends=4), (State.UNKNOWN, "CANNOT_TELL", 3600.0, True)),
    ],
)
def test_each_answer_to_a_query_leads_to_its_move(
    query: QueryOutcome, facts: TaskFacts, row: Row
) -> None:
    settled = after_query(query, facts, NOW, WAITS)
    assert told(settled) == row
    assert settled.needs_operator is (row[2] == 3600.0)


@pytest.mark.parametrize(
    ("answer", "facts", "row"),
    [
        # The ledger vouches for every send of the key: the refusal is the whole truth.
        (
            call("REJECTED", reason="unsafe", settles_key=True),
            DOUBT,
            (State.FAILED, "unsafe", None, False),
        ),
        # The last send was refused; of an earlier one nobody knows.
        (call("REJECTED", reason="unsafe"), DOUBT, (State.UNKNOWN, "unsafe", 3600.0, True)),
        (call("THROTTLED"), DOUBT, (State.RETRY_WAIT, "THROTTLED", 1.0, True)),
        (
            call("THROTTLED"),
            replace(DOUBT, wanted=False),
            (State.RETRY_WAIT, "THROTTLED", 1.0, True),
        ),
        (
            call("THROTTLED", settles_key=True),
            DOUBT,
            (State.RETRY_WAIT, "THROTTLED", 1.0, False),
        ),
        (
            call("THROTTLED", settles_key=True),
            replace(DOUBT, wanted=False),
            (State.CANCELLED, "CANCELLED_BEFORE_SEND", None, False),
        ),
        (
            call("REJECTED", retryable=True, reason="busy", settles_key=True),
            replace(DOUBT, deadline=NOW),
            (State.EXPIRED, "DEADLINE_PASSED", None, False),
        ),
        (
            call("COMPLETED", scores={"a": 0.1}, sends=3),
            replace(DOUBT, wanted=False),
            (State.SUCCEEDED, "", None, False),
        ),
    ],
)
def test_a_settled_row_clears_the_doubt_where_the_ledger_vouches_for_the_key(
    answer: CallOutcome, facts: TaskFacts, row: Row
) -> None:
    settled = after_settled(answer, facts, NOW, WAITS)
    assert told(settled) == row
    assert settled.needs_operator is (row[2] == 3600.0)


def test_the_answers_of_a_fence_are_the_four_of_the_contract() -> None:
    assert set(FenceAnswer) == {"NEVER_BEGUN", "IN_PROGRESS", "SETTLED", "UNKNOWN"}
