"""Receives first attempts and retries of one pool; checks that retries stay a share of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.budget import RetryBudget

steady = settings(derandomize=True, max_examples=200, deadline=None)


@steady
@given(st.lists(st.integers(0, 20) | st.none(), max_size=200), st.sampled_from([0.1, 0.5, 1.0]))
def test_retries_never_exceed_their_share_and_the_burst(
    steps: list[int | None], share: float
) -> None:
    budget = RetryBudget(share=share, burst=5.0, tokens=5.0)
    first = retries = 0
    for step in steps:
        if step is None:
            retries += budget.spend()
        else:
            budget.earn(step)
            first += step
        assert 0.0 <= budget.tokens <= budget.burst
        assert retries <= share * first + 5.0 + 1e-6


def test_an_empty_budget_refuses_and_a_first_attempt_earns_its_share() -> None:
    budget = RetryBudget(share=0.5, burst=2.0, tokens=0.0)
    assert not budget.spend()
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    assert not budget.spend()


def test_what_is_saved_is_bounded_by_the_burst() -> None:
    budget = RetryBudget(share=1.0, burst=3.0, tokens=0.0)
    budget.earn(100)
    assert [budget.spend() for _ in range(4)] == [True, True, True, False]
