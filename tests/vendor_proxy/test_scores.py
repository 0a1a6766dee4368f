"""What a vendor may call a score: few short words with numbers from 0 to 1."""

from __future__ import annotations

import math

import pytest

from services.vendor_proxy.adapters.replies import scores_of


def test_short_words_with_numbers_are_scores() -> None:
    found = scores_of({"violence": 1, "sexual/minors": 0.25, "self-harm": 0.0})
    assert found == {"violence": 1.0, "sexual/minors": 0.25, "self-harm": 0.0}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"a": -0.1},
        {"a": 1.1},
        {"a": math.nan},
        {"a": "0.5"},
        {"a": True},
        {"": 0.5},
        {"x" * 65: 0.5},
        {"what the user wrote,\nword for word": 0.5},
        {"a\0": 0.5},
        {f"category {n}": 0.5 for n in range(257)},
    ],
)
def test_i8_anything_else_is_no_result_and_is_not_kept(value: object) -> None:
    assert scores_of(value) is None
