"""Receives single results; checks whether each may still take part in its case."""

from __future__ import annotations

import pytest

from kernel.decision import Adoption, adopt

DEADLINE = 1_000


@pytest.mark.parametrize(
    ("result_at", "expected"),
    [
        (DEADLINE - 1, Adoption.ADOPTED),
        (DEADLINE, Adoption.ADOPTED),
        (DEADLINE + 1, Adoption.LATE),
    ],
)
def test_i5_a_result_takes_part_up_to_the_deadline(result_at: int, expected: Adoption) -> None:
    assert adopt(result_at=result_at, deadline=DEADLINE) is expected
