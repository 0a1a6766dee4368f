"""Receives drawn outcomes, queries and facts; checks what no settlement may ever do."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernel.attempt import (
    NO_PERMIT,
    CallOutcome,
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
from kernel.lifecycle import CLOSED, Mover, State, allowed
from kernel.retry import Backoff

steady = settings(derandomize=True, max_examples=400, deadline=None)

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
WAITS = WaitRules(
    backoff=Backoff(base_seconds=2.0, cap_seconds=30.0),
    query_backoff=Backoff(base_seconds=4.0, cap_seconds=60.0),
    draw=0.5,
)

calls = st.builds(
    CallOutcome,
    outcome=st.sampled_from(Outcome),
    reason=st.sampled_from(["", NO_PERMIT, "busy"]),
    retryable=st.booleans(),
    scores=st.none() | st.just({"a": 0.5}),
    external_id=st.sampled_from(["", "v-1"]),
    retry_after_seconds=st.none() | st.floats(0, 1e6),
    sends=st.integers(0, 6),
    receipt_due_seconds=st.sampled_from([0.0, 30.0]),
    settles_key=st.booleans(),
)
facts_drawn = st.builds(
    TaskFacts,
    attempt=st.integers(0, 6),
    sends=st.integers(0, 6),
    max_sends=st.integers(1, 6),
    deadline=st.integers(NOW - 60 * SECOND, NOW + 60 * SECOND),
    maybe_executed=st.booleans(),
    wanted=st.booleans(),
    tries=st.integers(0, 40),
)
queries = st.builds(
    QueryOutcome,
    answer=st.sampled_from(QueryAnswer),
    call=st.none() | calls,
    retry_after_seconds=st.floats(0, 600),
    resend=st.sampled_from(Resend),
)
# A ledger row that is settled, as a fence or a query tells it: never for want of a permit.
settled_calls = calls.filter(
    lambda c: (
        c.outcome not in (Outcome.IN_PROGRESS, Outcome.STALE_ATTEMPT, Outcome.UNKNOWN)
        and not (c.outcome is Outcome.NOT_SENT and c.reason == NO_PERMIT)
    )
)


def keeps_the_promises(settled: Settlement, facts: TaskFacts) -> None:
    assert (settled.wake_at is None) is (settled.state in CLOSED)
    if settled.state in CLOSED:
        assert not settled.maybe_executed
    if settled.state in (State.UNKNOWN, State.ACCEPTED):
        assert settled.maybe_executed
    if settled.state is State.RETRY_WAIT:
        assert settled.wake_at is not None
        assert settled.wake_at <= facts.deadline
    if settled.needs_operator:
        assert settled.state is State.UNKNOWN


@steady
@given(calls, facts_drawn)
def test_i3_a_call_never_closes_without_success_what_may_have_executed(
    answer: CallOutcome, facts: TaskFacts
) -> None:
    settled = after_call(answer, facts, NOW, WAITS)
    keeps_the_promises(settled, facts)
    lost = answer.outcome is Outcome.COMPLETED  # the vendor's own word: executed, without a result
    if facts.maybe_executed and not lost and not answer.settles_key:
        assert settled.state not in (State.FAILED, State.CANCELLED, State.EXPIRED)
        assert settled.maybe_executed or settled.state is State.SUCCEEDED


@steady
@given(queries, facts_drawn)
def test_i3_a_query_closes_what_may_have_executed_only_by_evidence(
    query: QueryOutcome, facts: TaskFacts
) -> None:
    settled = after_query(query, facts, NOW, WAITS)
    keeps_the_promises(settled, facts)
    evidence = query.answer in (QueryAnswer.SETTLED, QueryAnswer.NOT_FOUND)
    if facts.maybe_executed and not evidence:
        assert settled.maybe_executed
        assert settled.state not in CLOSED


@steady
@given(settled_calls, facts_drawn)
def test_i3_a_settled_row_fails_what_may_have_executed_only_when_nothing_is_in_doubt(
    answer: CallOutcome, facts: TaskFacts
) -> None:
    settled = after_settled(answer, facts, NOW, WAITS)
    keeps_the_promises(settled, facts)
    if settled.state is not State.UNKNOWN:
        flag = settled.maybe_executed
        assert allowed(State.UNKNOWN, settled.state, Mover.RESOLVER, maybe_executed=flag)
    lost = answer.outcome is Outcome.COMPLETED
    if facts.maybe_executed and not lost and not answer.settles_key:
        assert settled.maybe_executed


@steady
@given(facts_drawn)
def test_a_proof_that_nothing_was_begun_always_clears_the_doubt(facts: TaskFacts) -> None:
    settled = after_fence_never_begun(facts, NOW, WAITS)
    keeps_the_promises(settled, facts)
    assert not settled.maybe_executed
    expected = (
        State.CANCELLED
        if not facts.wanted
        else State.EXPIRED
        if facts.deadline <= NOW
        else State.RETRY_WAIT
    )
    assert settled.state is expected


@steady
@given(calls, queries, facts_drawn)
def test_i12_a_spent_budget_never_retries(
    answer: CallOutcome, query: QueryOutcome, facts: TaskFacts
) -> None:
    assume(max(answer.sends, facts.sends) >= facts.max_sends)
    assert after_call(answer, facts, NOW, WAITS).state is not State.RETRY_WAIT
    if facts.sends >= facts.max_sends:
        assert after_query(query, facts, NOW, WAITS).state is not State.RETRY_WAIT


@steady
@given(calls, facts_drawn)
def test_i6_every_settlement_of_a_held_task_is_a_move_of_the_table(
    answer: CallOutcome, facts: TaskFacts
) -> None:
    settled = after_call(answer, facts, NOW, WAITS)
    flag = settled.maybe_executed
    assert allowed(State.IN_FLIGHT, settled.state, Mover.SETTLE, maybe_executed=flag)


@steady
@given(settled_calls, queries, facts_drawn, st.sampled_from([Mover.RESOLVER, Mover.OPERATOR]))
def test_i6_every_settlement_of_a_task_in_doubt_is_a_move_of_the_table_or_stays(
    answer: CallOutcome, query: QueryOutcome, facts: TaskFacts, mover: Mover
) -> None:
    if query.answer is QueryAnswer.SETTLED:
        query = replace(query, call=answer)
    for settled in (
        after_call(answer, facts, NOW, WAITS),
        after_query(query, facts, NOW, WAITS),
        after_fence_never_begun(facts, NOW, WAITS),
    ):
        if settled.state is not State.UNKNOWN:
            flag = settled.maybe_executed
            assert allowed(State.UNKNOWN, settled.state, mover, maybe_executed=flag)
