"""Receives drawn sets of children; checks what no set may ever lead to, and the order of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.attempt import BUDGET_EXHAUSTED, NO_PERMIT, RATE_LIMITED
from kernel.decision import (
    Adoption,
    Child,
    Decision,
    Policy,
    Requirement,
    Rule,
    Snapshot,
    decide,
    decide_again,
    judge,
)
from kernel.lifecycle import CLOSED, CaseState, State

PARENT = "0" * 32
DEADLINE = 1_000
VERDICTS = {CaseState.APPROVED, CaseState.REJECTED}
thresholds = st.sampled_from([None, 0.0, 0.25, 0.5, 0.75, 1.0])
steady = settings(derandomize=True, max_examples=120, deadline=None)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    categories = draw(st.lists(st.sampled_from(["*", "a", "b"]), unique=True, max_size=3))
    rules = tuple(Rule(name, draw(thresholds), draw(thresholds)) for name in categories)
    without_verdict = st.sampled_from([CaseState.IN_REVIEW, CaseState.FAILED])
    return Policy("p", 1, rules, draw(without_verdict), draw(without_verdict))


@st.composite
def children(draw: st.DrawFn, n: int) -> Child:
    state = draw(st.sampled_from(State))
    scores: Mapping[str, float] | None = None
    if state is State.SUCCEEDED:
        scores = draw(
            st.none()
            | st.dictionaries(
                st.sampled_from(["a", "b", "c"]), st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0])
            )
        )
    return Child(
        task_id=f"{PARENT}.{n}",
        requirement=draw(st.sampled_from(Requirement)),
        state=state,
        model_id=f"model-{n}",
        model_version="1",
        input_digest="d",
        attempt=draw(st.integers(0, 3)),
        reason=draw(st.sampled_from(["", NO_PERMIT, RATE_LIMITED, "REFUSED"])),
        scores=scores,
        adoption=draw(st.sampled_from(Adoption)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    amount = draw(st.integers(0, 6))
    return Snapshot(
        case_version=1,
        state=CaseState.PENDING,
        deadline=DEADLINE,
        cancel_requested=draw(st.booleans()),
        children=tuple(draw(children(n)) for n in range(1, amount + 1)),
    )


times = st.integers(0, 2 * DEADLINE)


def lacks(child: Child) -> bool:
    """Written apart from `Child.counts`, so that one checks the other."""
    had = child.state is State.SUCCEEDED and child.scores is not None
    return child.requirement is Requirement.REQUIRED and not (
        had and child.adoption is Adoption.ADOPTED
    )


@steady
@given(snapshots(), policies(), times)
def test_i5_no_verdict_while_a_required_model_lacks_an_adopted_success(
    snapshot: Snapshot, policy: Policy, now: int
) -> None:
    if any(lacks(child) for child in snapshot.children):
        assert decide(snapshot, policy, now).outcome not in VERDICTS


@steady
@given(snapshots(), policies(), st.integers(DEADLINE, 2 * DEADLINE))
def test_i5_no_verdict_at_or_after_the_deadline_and_never_a_wait(
    snapshot: Snapshot, policy: Policy, now: int
) -> None:
    assert decide(snapshot, policy, now).outcome not in {*VERDICTS, None}


@steady
@given(snapshots(), policies(), times)
def test_a_set_that_requires_nothing_is_not_complete(
    snapshot: Snapshot, policy: Policy, now: int
) -> None:
    others = tuple(c for c in snapshot.children if c.requirement is not Requirement.REQUIRED)
    assert decide(replace(snapshot, children=others), policy, now).outcome not in VERDICTS


@steady
@given(snapshots(), policies(), times, st.data())
def test_a_shadow_model_never_matters(
    snapshot: Snapshot, policy: Policy, now: int, data: st.DataObject
) -> None:
    shadow = replace(data.draw(children(99)), requirement=Requirement.SHADOW)
    with_shadow = replace(snapshot, children=(*snapshot.children, shadow))
    assert decide(with_shadow, policy, now) == decide(snapshot, policy, now)


@steady
@given(snapshots(), policies(), times, st.data())
def test_the_order_of_children_never_matters(
    snapshot: Snapshot, policy: Policy, now: int, data: st.DataObject
) -> None:
    shuffled = tuple(data.draw(st.permutations(snapshot.children)))
    assert decide(replace(snapshot, children=shuffled), policy, now) == decide(
        snapshot, policy, now
    )


@steady
@given(snapshots(), policies(), times, st.data())
def test_case_6_03_a_child_that_is_seen_twice_counts_once(
    snapshot: Snapshot, policy: Policy, now: int, data: st.DataObject
) -> None:
    if not snapshot.children:
        return
    again = data.draw(st.lists(st.sampled_from(snapshot.children), min_size=1))
    doubled = replace(snapshot, children=(*snapshot.children, *again))
    assert decide(doubled, policy, now) == decide(snapshot, policy, now)


@steady
@given(snapshots(), policies(), times)
def test_what_is_missing_is_what_is_required_and_was_not_had(
    snapshot: Snapshot, policy: Policy, now: int
) -> None:
    decision = decide(snapshot, policy, now)
    lacking = tuple(child.task_id for child in snapshot.children if lacks(child))
    assert decision.missing == lacking or (decision.outcome is not None and not lacking)
    assert all(not lacks(c) and c.scores is not None for c in decision.evidence)


@steady
@given(snapshots(), policies(), times)
def test_a_case_waits_only_while_a_required_model_is_open(
    snapshot: Snapshot, policy: Policy, now: int
) -> None:
    required = [c for c in snapshot.children if c.requirement is Requirement.REQUIRED]
    if decide(snapshot, policy, now).outcome is None:
        assert not required or any(c.state not in CLOSED for c in required)


@steady
@given(snapshots(), policies(), times, st.sampled_from([s for s in CaseState if s != "PENDING"]))
def test_i6_a_decided_case_is_not_decided_again_by_itself(
    snapshot: Snapshot, policy: Policy, now: int, state: CaseState
) -> None:
    assert decide(replace(snapshot, state=state), policy, now).outcome is None


@steady
@given(snapshots(), policies(), st.booleans())
def test_i5_a_re_decision_approves_only_a_full_set_in_time(
    snapshot: Snapshot, policy: Policy, deadline_had_come: bool
) -> None:
    decision = decide_again(snapshot.children, policy, deadline_had_come=deadline_had_come)
    assert decision.outcome in {*VERDICTS, CaseState.IN_REVIEW}
    if deadline_had_come:
        assert decision.outcome is not CaseState.APPROVED
    if any(lacks(child) for child in snapshot.children):
        assert decision.outcome is CaseState.IN_REVIEW


def child(
    n: int,
    state: State = State.SUCCEEDED,
    requirement: Requirement = Requirement.REQUIRED,
    reason: str = "",
    attempt: int = 1,
    **scores: float,
) -> Child:
    given = (scores or {"a": 0.0}) if state is State.SUCCEEDED else None
    return Child(
        f"{PARENT}.{n}", requirement, state, f"model-{n}", "1", "d", attempt, reason, given
    )


STRICT = Policy("p", 1, (Rule("a", 0.8, 0.5), Rule("*", 0.9)))
LENIENT = replace(STRICT, on_deadline=CaseState.FAILED, on_required_failed=CaseState.FAILED)
EARLY, LATE = DEADLINE - 1, DEADLINE


@pytest.mark.parametrize(
    ("set_", "policy", "now", "expected"),
    [
        ((child(1),), STRICT, EARLY, ("APPROVED", "ALL_BELOW_THRESHOLDS", "")),
        ((child(1, a=0.8),), STRICT, EARLY, ("REJECTED", "SCORE_ABOVE_THRESHOLD", "a>=0.8")),
        ((child(1, b=0.9),), STRICT, EARLY, ("REJECTED", "SCORE_ABOVE_THRESHOLD", "b>=0.9")),
        ((child(1, a=0.5),), STRICT, EARLY, ("IN_REVIEW", "REVIEW_DEMANDED", "a>=0.5")),
        # Review comes before rejection, and before the rest of the set.
        (
            (child(1, a=0.6), child(2, a=0.9)),
            STRICT,
            EARLY,
            ("IN_REVIEW", "REVIEW_DEMANDED", "a>=0.5"),
        ),
        (
            (child(1, a=0.6), child(2, State.READY)),
            STRICT,
            EARLY,
            ("IN_REVIEW", "REVIEW_DEMANDED", "a>=0.5"),
        ),
        # A score past doubt waits for the rest; so does an optional one that is in doubt.
        ((child(1, a=0.9), child(2, State.READY)), STRICT, EARLY, (None, "WAITING", "")),
        (
            (child(1, State.READY), child(2, requirement=Requirement.OPTIONAL, a=0.6)),
            STRICT,
            EARLY,
            (None, "WAITING", ""),
        ),
        (
            (child(1), child(2, requirement=Requirement.OPTIONAL, a=0.9)),
            STRICT,
            EARLY,
            ("REJECTED", "SCORE_ABOVE_THRESHOLD", "a>=0.8"),
        ),
        (
            (child(1), child(2, State.FAILED, Requirement.OPTIONAL)),
            STRICT,
            EARLY,
            ("APPROVED", "ALL_BELOW_THRESHOLDS", ""),
        ),
        # The deadline comes before a failure, and a demand for review before the deadline.
        ((child(1),), LENIENT, LATE, ("FAILED", "DEADLINE_PASSED", "")),
        ((child(1, a=0.6),), LENIENT, LATE, ("IN_REVIEW", "REVIEW_DEMANDED", "a>=0.5")),
        ((child(1, State.FAILED),), LENIENT, LATE, ("FAILED", "MODEL_UNAVAILABLE", "")),
        ((child(1, State.READY, attempt=0),), STRICT, LATE, ("IN_REVIEW", "DEADLINE_PASSED", "")),
        (
            (child(1, State.READY, reason=NO_PERMIT),),
            STRICT,
            LATE,
            ("IN_REVIEW", "DEADLINE_PASSED", ""),
        ),
        # A model that cannot be had is a person's, whatever the policy says of failures.
        (
            (child(1, State.FAILED, reason="REFUSED"), child(2, State.READY)),
            LENIENT,
            EARLY,
            ("FAILED", "REQUIRED_MODEL_FAILED", "model-1"),
        ),
        (
            (child(1, State.FAILED, reason="REFUSED"), child(2, State.EXPIRED)),
            LENIENT,
            EARLY,
            ("IN_REVIEW", "MODEL_UNAVAILABLE", "model-2"),
        ),
        (
            (child(1, State.FAILED, reason=BUDGET_EXHAUSTED),),
            LENIENT,
            EARLY,
            ("IN_REVIEW", "MODEL_UNAVAILABLE", "model-1"),
        ),
        # A success without a result judged nothing.
        (
            (replace(child(1), scores=None),),
            STRICT,
            EARLY,
            ("IN_REVIEW", "REQUIRED_MODEL_FAILED", "model-1"),
        ),
        ((child(1, State.UNKNOWN),), STRICT, EARLY, (None, "WAITING", "")),
        ((), STRICT, EARLY, (None, "WAITING", "")),
    ],
)
def test_the_rules_in_their_order(
    set_: tuple[Child, ...],
    policy: Policy,
    now: int,
    expected: tuple[str | None, str, str],
) -> None:
    snapshot = Snapshot(1, CaseState.PENDING, DEADLINE, False, set_)
    decision = decide(snapshot, policy, now)
    assert (decision.outcome, decision.reason, decision.rule) == expected
    cancelled = decide(replace(snapshot, cancel_requested=True), policy, now)
    assert cancelled.outcome is CaseState.CANCELLED


def test_i5_a_full_set_is_approved_again_only_where_the_deadline_had_not_come() -> None:
    set_ = (child(1), child(2, requirement=Requirement.OPTIONAL))
    in_time = decide_again(set_, STRICT, deadline_had_come=False)
    assert (in_time.outcome, in_time.evidence) == (CaseState.APPROVED, set_)
    after = decide_again(set_, STRICT, deadline_had_come=True)
    assert (after.outcome, after.reason) == (CaseState.IN_REVIEW, "DEADLINE_HAD_COME")
    rejected = decide_again((child(1, a=0.9),), STRICT, deadline_had_come=True)
    assert rejected.outcome is CaseState.REJECTED


def test_the_tenth_child_comes_after_the_second() -> None:
    late_and_early = (child(10, State.FAILED, reason="X"), child(2, State.FAILED, reason="X"))
    snapshot = Snapshot(1, CaseState.PENDING, DEADLINE, False, late_and_early)
    assert decide(snapshot, STRICT, EARLY).rule == "model-2"


def test_a_category_without_a_rule_decides_nothing() -> None:
    policy = Policy("p", 1, (Rule("a", 0.1),))
    assert judge(policy, (child(1, b=1.0),)) == Decision(
        CaseState.APPROVED, "ALL_BELOW_THRESHOLDS", evidence=(child(1, b=1.0),)
    )
