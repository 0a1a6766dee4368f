"""A policy that somebody wants to store: checked, then a new version that never changes.

Receives a body and its author. Hands on the stored version, newest + 1.
"""

from __future__ import annotations

import math

from kernel.decision import Policy, Rule
from kernel.errors import FieldViolation, InvalidArgument
from kernel.lifecycle import CaseState
from kernel.store import policies
from kernel.store.policies import StoredPolicy
from kernel.store.transaction import Tx

_NAME_BYTES = 128
_MOST_RULES = 1_000
_WITHOUT_VERDICT = frozenset({CaseState.IN_REVIEW, CaseState.FAILED})


def check(policy: Policy, author: str) -> None:
    """Raises InvalidArgument, every bad field named."""
    bad = []
    if not 0 < len(policy.policy_id.encode()) <= _NAME_BYTES:
        bad.append(FieldViolation("policy_id", f"1 to {_NAME_BYTES} bytes"))
    if not 0 < len(author.encode()) <= _NAME_BYTES:
        bad.append(FieldViolation("author", f"1 to {_NAME_BYTES} bytes"))
    if not 0 < len(policy.rules) <= _MOST_RULES:
        bad.append(FieldViolation("body.rules", f"1 to {_MOST_RULES} rules"))
    seen: set[str] = set()
    for at, rule in enumerate(policy.rules[:_MOST_RULES]):
        bad += _rule_violations(f"body.rules[{at}]", rule, seen)
        seen.add(rule.category)
    if policy.on_deadline not in _WITHOUT_VERDICT:
        bad.append(FieldViolation("body.on_deadline", "IN_REVIEW or FAILED"))
    if policy.on_required_failed not in _WITHOUT_VERDICT:
        bad.append(FieldViolation("body.on_required_failed", "IN_REVIEW or FAILED"))
    if bad:
        raise InvalidArgument(*bad)


def put(tx: Tx, body: Policy, author: str) -> StoredPolicy:
    """Store the next version; the body's own version number is not used.

    Raises IntegrityError when somebody else took the number.
    """
    newest = policies.newest(tx, body.policy_id)
    version = newest.policy.version + 1 if newest else 1
    policy = Policy(body.policy_id, version, body.rules, body.on_deadline, body.on_required_failed)
    policies.insert(tx, policy, author)
    stored = policies.get(tx, body.policy_id, version)
    if stored is None:
        raise LookupError("a policy version that was just inserted is not there")
    return stored


def same_body(one: Policy, other: Policy) -> bool:
    """Whether two versions would decide alike."""
    return (one.rules, one.on_deadline, one.on_required_failed) == (
        other.rules,
        other.on_deadline,
        other.on_required_failed,
    )


def _rule_violations(at: str, rule: Rule, seen: set[str]) -> list[FieldViolation]:
    bad = []
    if not 0 < len(rule.category.encode()) <= _NAME_BYTES:
        bad.append(FieldViolation(f"{at}.category", f"1 to {_NAME_BYTES} bytes"))
    elif rule.category in seen:
        bad.append(FieldViolation(f"{at}.category", "stands in an earlier rule already"))
    for name, threshold in (("reject_at", rule.reject_at), ("review_at", rule.review_at)):
        # A comparison with NaN is false both ways, so that it would never be reached.
        if threshold is not None and not (math.isfinite(threshold) and 0.0 <= threshold <= 1.0):
            bad.append(FieldViolation(f"{at}.{name}", "a number from 0 to 1"))
    if (
        rule.reject_at is not None
        and rule.review_at is not None
        and rule.review_at > rule.reject_at
    ):
        bad.append(FieldViolation(f"{at}.review_at", "at most reject_at"))
    return bad
