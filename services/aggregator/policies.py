"""A policy that somebody wants to store: checked, then a new version that never changes.

Receives a body and its author. Hands on the stored version, newest + 1.
"""

from __future__ import annotations

from kernel.decision import MOST_NAME_BYTES, Policy, policy_violations
from kernel.errors import FieldViolation, InvalidArgument
from kernel.store import policies
from kernel.store.policies import StoredPolicy
from kernel.store.transaction import Tx


def check(policy: Policy, author: str) -> None:
    """Raises InvalidArgument, every bad field named."""
    bad = policy_violations(policy, "body.")
    if not 0 < len(author.encode()) <= MOST_NAME_BYTES:
        bad.append(FieldViolation("author", f"1 to {MOST_NAME_BYTES} bytes, caller included"))
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
