"""Receives policies; checks which say nothing sensible, each fault named by its place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernel.decision import MOST_RULES, Policy, Rule, policy_violations
from kernel.lifecycle import CaseState

SOUND = Policy("default", 1, (Rule("spam", 0.8, 0.5), Rule("*", None, 0.5), Rule("hate")))


def faults(policy: Policy, body: str = "") -> list[str]:
    return [violation.field for violation in policy_violations(policy, body)]


def ruled(*rules: Rule) -> Policy:
    return replace(SOUND, rules=rules)


def test_a_policy_whose_thresholds_can_be_reached_has_no_violation() -> None:
    assert faults(SOUND) == []
    assert faults(ruled(Rule("*", 0.0, 0.0), Rule("a", 1.0, 1.0))) == []


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (ruled(), ["rules"]),
        (ruled(*(Rule(f"c{n}") for n in range(MOST_RULES + 1))), ["rules"]),
        (ruled(Rule("a"), Rule("b"), Rule("a")), ["rules[2].category"]),
        (ruled(Rule("")), ["rules[0].category"]),
        (ruled(Rule("é" * 65)), ["rules[0].category"]),
        (ruled(Rule("a", 0.4, 0.5)), ["rules[0].review_at"]),
        (
            ruled(Rule("a", 1.1), Rule("b", None, -0.1)),
            ["rules[0].reject_at", "rules[1].review_at"],
        ),
        (ruled(Rule("a", math.nan, math.inf)), ["rules[0].reject_at", "rules[0].review_at"]),
        (replace(SOUND, policy_id=""), ["policy_id"]),
        (replace(SOUND, policy_id="x" * 129), ["policy_id"]),
        (replace(SOUND, on_deadline=CaseState.APPROVED), ["on_deadline"]),
        (replace(SOUND, on_required_failed=CaseState.REJECTED), ["on_required_failed"]),
    ],
)
def test_what_says_nothing_sensible_is_named(policy: Policy, fields: list[str]) -> None:
    assert faults(policy) == fields


def test_the_body_of_a_policy_may_stand_anywhere_in_a_request() -> None:
    bad = replace(SOUND, policy_id="", rules=(), on_deadline=CaseState.PENDING)
    assert faults(bad, "body.") == ["policy_id", "body.rules", "body.on_deadline"]
