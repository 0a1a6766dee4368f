"""Receives drawn sets of receipts; checks that what is shown is a function of the set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.lifecycle import CLOSED, Mover, State, allowed
from kernel.receipt import Merged, ReceiptFact, ReceiptState, merge, move_for

steady = settings(derandomize=True, max_examples=120, deadline=None)

RANK = {None: 0, State.ACCEPTED: 1, State.FAILED: 2, State.SUCCEEDED: 3}


@st.composite
def receipts(draw: st.DrawFn) -> list[ReceiptFact]:
    ids = draw(st.lists(st.integers(1, 50), unique=True, max_size=6))
    facts = []
    for number in ids:
        state = draw(st.sampled_from(ReceiptState))
        scores = draw(st.none() | st.dictionaries(st.just("a"), st.sampled_from([0.0, 0.5, 1.0])))
        facts.append(
            ReceiptFact(
                receipt_id=f"r{number}",
                state=state,
                occurred_at=draw(st.integers(0, 3)),
                scores=scores if state is ReceiptState.SUCCEEDED else None,
                external_id=draw(st.sampled_from(["", "v-1", "v-2"])),
                reason=draw(st.sampled_from(["", "busy"])),
                cost_micros=draw(st.integers(0, 9)),
            )
        )
    return facts


@steady
@given(receipts(), st.data())
def test_i6_the_order_of_receipts_never_matters(
    facts: list[ReceiptFact], data: st.DataObject
) -> None:
    assert merge(data.draw(st.permutations(facts))) == merge(facts)


@steady
@given(receipts(), st.data())
def test_i6_a_receipt_told_again_says_nothing_new(
    facts: list[ReceiptFact], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(facts))) if facts else []
    assert merge([*facts, *again]) == merge(facts)


@steady
@given(receipts(), receipts())
def test_i6_more_receipts_never_lower_the_rank_the_cost_or_a_conflict(
    facts: list[ReceiptFact], more: list[ReceiptFact]
) -> None:
    known = {fact.receipt_id for fact in facts}
    union = [*facts, *(fact for fact in more if fact.receipt_id not in known)]
    before, after = merge(facts), merge(union)
    assert RANK[after.state] >= RANK[before.state]
    assert after.cost_micros >= before.cost_micros
    assert after.conflict or not before.conflict


@steady
@given(st.sampled_from(State), receipts())
def test_i6_a_task_moves_only_by_the_table_and_a_held_one_stays(
    state: State, facts: list[ReceiptFact]
) -> None:
    merged = merge(facts)
    target = move_for(state, merged)
    if target is None:
        return
    assert target is merged.state
    assert state is not State.IN_FLIGHT
    assert allowed(state, target, Mover.RECEIPT)


@steady
@given(receipts(), st.data())
def test_i6_one_by_one_in_any_order_a_task_ends_where_the_set_says(
    facts: list[ReceiptFact], data: st.DataObject
) -> None:
    ends = set()
    for order in (facts, data.draw(st.permutations(facts))):
        state = State.ACCEPTED
        for size in range(1, len(order) + 1):
            state = move_for(state, merge(order[:size])) or state
        ends.add(state)
    assert ends == {merge(facts).state or State.ACCEPTED}


@steady
@given(st.sampled_from(State), receipts())
def test_i6_a_closed_task_is_only_ever_moved_to_a_success(
    state: State, facts: list[ReceiptFact]
) -> None:
    if state in CLOSED:
        assert move_for(state, merge(facts)) in (None, State.SUCCEEDED)


def fact(name: str, state: str, at: int = 1, **scores: float) -> ReceiptFact:
    return ReceiptFact(name, ReceiptState(state), at, scores or None)


def test_case_5_01_a_success_beside_a_failure_shows_the_success_and_a_conflict() -> None:
    facts = [fact("r1", "FAILED", 9), fact("r2", "SUCCEEDED", 1, a=0.1)]
    for order in itertools.permutations(facts):
        merged = merge(order)
        assert (merged.state, merged.conflict) == (State.SUCCEEDED, True)
        assert merged.scores == {"a": 0.1}


def test_of_two_different_successes_the_one_dated_first_is_shown_as_a_conflict() -> None:
    merged = merge([fact("r1", "SUCCEEDED", 5, a=0.9), fact("r2", "SUCCEEDED", 4, a=0.1)])
    assert (merged.scores, merged.conflict) == ({"a": 0.1}, True)
    alike = merge([fact("r1", "SUCCEEDED", 5, a=0.1), fact("r2", "SUCCEEDED", 4, a=0.1)])
    assert not alike.conflict


@pytest.mark.parametrize("facts", [[], [fact("r1", "UNMAPPED")]])
def test_a_word_that_nobody_mapped_moves_nothing(facts: list[ReceiptFact]) -> None:
    assert merge(facts) == Merged(None)
    assert all(move_for(state, merge(facts)) is None for state in State)
