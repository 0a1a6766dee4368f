"""Receives first attempts and retries of one pool; checks that retries stay a share of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.budget import RetryBudget

steady = settings(derandomize=True, max_examples=200, deadline=None)


def went(budget: RetryBudget, wanted: int = 1) -> int:
    """How many of the wanted retries may go; they are spent."""
    retries = min(wanted, budget.whole())
    budget.spend(retries)
    return retries


@steady
@given(st.lists(st.integers(0, 20) | st.none(), max_size=200), st.sampled_from([0.1, 0.5, 1.0]))
def test_retries_never_exceed_their_share_and_the_burst(
    steps: list[int | None], share: float
) -> None:
    budget = RetryBudget(share=share, burst=5.0, tokens=5.0)
    first = retries = 0
    for step in steps:
        if step is None:
            retries += went(budget)
        else:
            budget.earn(step)
            first += step
        assert 0.0 <= budget.tokens <= budget.burst
        assert retries <= share * first + 5.0 + 1e-6


def test_an_empty_budget_refuses_and_a_first_attempt_earns_its_share() -> None:
    budget = RetryBudget(share=0.5, burst=2.0, tokens=0.0)
    assert went(budget) == 0
    budget.earn()
    assert went(budget) == 0
    budget.earn()
    assert went(budget) == 1
    assert went(budget) == 0


def test_what_is_saved_is_bounded_by_the_burst() -> None:
    budget = RetryBudget(share=1.0, burst=3.0, tokens=0.0)
    budget.earn(100)
    assert went(budget, 9) == 3


def test_time_alone_gives_a_few_so_that_a_retry_does_not_wait_for_its_deadline() -> None:
    budget = RetryBudget(burst=3.0, tokens=0.0, trickle_per_second=0.5)
    budget.pass_time(1000.0)
    assert went(budget) == 0  # the first look only sets the clock
    budget.pass_time(1002.0)
    assert went(budget) == 1
    assert went(budget) == 0
    budget.pass_time(9999.0)
    assert went(budget, 9) == 3
