"""What a task shows after its receipts: a function of their set, contradictions listed."""

from __future__ import annotations

from itertools import permutations

import pytest

from kernel.attempt import RESULT_LOST
from kernel.lifecycle import State
from kernel.receipt import Disposition, ReceiptFact, ReceiptState, Shown, after_receipts


def fact(
    receipt_id: str, state: str, at: int = 0, score: float | None = None, job: str = "job-1"
) -> ReceiptFact:
    scores = None if score is None else {"violence": score}
    return ReceiptFact(receipt_id, ReceiptState(state), at, scores, external_id=job)


EARLY = fact("early", "SUCCEEDED", 1, 0.1)
LATER = fact("later", "SUCCEEDED", 2, 0.95)
FAILED = fact("failed", "FAILED", 3)


def arriving(order: tuple[ReceiptFact, ...], duplicates: int = 0) -> tuple[Shown, dict[str, str]]:
    """The task after receipts that came one by one; which of them are listed as what."""
    shown = Shown(State.UNKNOWN, None, after_receipts(State.UNKNOWN, None, 0, []).merged, "", {})
    listed: dict[str, str] = {}
    for size in range(1, len(order) + 1):
        shown = after_receipts(shown.state, shown.scores, duplicates, order[:size])
        newest = order[size - 1].receipt_id
        for receipt_id, disposition in shown.dispositions.items():
            if receipt_id == newest or disposition is Disposition.CONFLICT:
                listed[receipt_id] = disposition
    return shown, listed


@pytest.mark.parametrize("order", [*permutations((EARLY, LATER, FAILED))])
def test_i6_the_success_dated_first_is_shown_whatever_came_first(
    order: tuple[ReceiptFact, ...],
) -> None:
    shown, listed = arriving(order)
    assert (shown.state, shown.scores) == (State.SUCCEEDED, {"violence": 0.1})
    conflicts = {name for name, what in listed.items() if what is Disposition.CONFLICT}
    assert {"later", "failed"} <= conflicts


@pytest.mark.parametrize("order", [*permutations((EARLY, FAILED))])
def test_i6_a_failure_beside_a_success_is_listed_in_both_orders(
    order: tuple[ReceiptFact, ...],
) -> None:
    shown, listed = arriving(order)
    assert shown.state is State.SUCCEEDED
    assert listed["failed"] is Disposition.CONFLICT


def test_i3_a_failure_is_the_end_only_when_every_possible_execution_failed() -> None:
    one, _ = arriving((fact("a", "FAILED", job="job-1"),), duplicates=1)
    assert one.state is State.UNKNOWN
    assert one.dispositions == {"a": Disposition.STORED}
    again, _ = arriving(
        (fact("a", "FAILED", job="job-1"), fact("b", "FAILED", job="job-1")), duplicates=1
    )
    assert again.state is State.UNKNOWN
    both, _ = arriving(
        (fact("a", "FAILED", job="job-1"), fact("b", "FAILED", job="job-2")), duplicates=1
    )
    assert both.state is State.FAILED
    rescued, _ = arriving(
        (fact("a", "FAILED", job="job-1"), fact("b", "SUCCEEDED", 1, 0.2, job="job-2")),
        duplicates=1,
    )
    assert (rescued.state, rescued.scores) == (State.SUCCEEDED, {"violence": 0.2})


def test_a_success_without_its_result_is_a_failure_and_never_undoes_one() -> None:
    lost, listed = arriving((fact("a", "SUCCEEDED"),))
    assert (lost.state, lost.reason) == (State.FAILED, RESULT_LOST)
    assert listed == {"a": Disposition.APPLIED}
    stays = after_receipts(State.FAILED, None, 0, [fact("a", "SUCCEEDED")])
    assert stays.state is State.FAILED


def test_scores_that_a_call_brought_are_not_changed_by_a_receipt() -> None:
    shown = after_receipts(State.SUCCEEDED, {"violence": 0.5}, 0, [EARLY])
    assert shown.scores == {"violence": 0.5}
    assert shown.dispositions == {"early": Disposition.CONFLICT}
