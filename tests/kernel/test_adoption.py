"""Receives single results; checks whether each may still take part in its case."""

from __future__ import annotations

import pytest

from kernel.decision import Adoption, adopt
from kernel.lifecycle import CaseState

DEADLINE = 1_000


@pytest.mark.parametrize(
    ("state", "result_at", "digest", "version", "expected"),
    [
        (CaseState.PENDING, DEADLINE - 1, "d", "1", Adoption.ADOPTED),
        (CaseState.PENDING, DEADLINE, "d", "1", Adoption.ADOPTED),
        (CaseState.PENDING, DEADLINE + 1, "d", "1", Adoption.LATE),
        (CaseState.APPROVED, 1, "d", "1", Adoption.LATE),
        (CaseState.IN_REVIEW, 1, "d", "1", Adoption.LATE),
        (CaseState.CANCELLED, DEADLINE + 1, "d", "1", Adoption.LATE),
        (CaseState.PENDING, 1, "other", "1", Adoption.STALE),
        (CaseState.PENDING, 1, "d", "0", Adoption.STALE),
        (CaseState.APPROVED, DEADLINE + 1, "d", "0", Adoption.STALE),
    ],
)
def test_a_result_is_judged_by_what_it_answers_and_when(
    state: CaseState, result_at: int, digest: str, version: str, expected: Adoption
) -> None:
    worth = adopt(
        case_state=state,
        deadline=DEADLINE,
        result_at=result_at,
        answers_digest=digest,
        answers_version=version,
        task_digest="d",
        task_version="1",
    )
    assert worth is expected
