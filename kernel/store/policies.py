"""Policy versions: stored once, never edited.

Receives a policy. Hands on the version that a submit pins, and any version by number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.decision import Policy, Rule
from kernel.lifecycle import CaseState
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy version with who put it there and when (microseconds since the epoch)."""

    policy: Policy
    author: str
    created_at: int


_INSERT = Statement(
    """insert into policies (policy_id, version, body, author, created_at)
       values (:policy_id, :version, :body, :author, {now})"""
)
_GET = Statement(
    """select policy_id, version, body, author, created_at from policies
       where policy_id = :policy_id and version = :version"""
)
_NEWEST = Statement(
    """select policy_id, version, body, author, created_at from policies
       where policy_id = :policy_id order by version desc limit 1"""
)
_LIST = Statement(
    """select policy_id, version, body, author, created_at from policies
       where :policy_id = '' or policy_id = :policy_id order by policy_id, version"""
)


def insert(tx: Tx, policy: Policy, author: str) -> None:
    """Store a new version; raises IntegrityError when the version is taken."""
    tx.execute(
        _INSERT,
        policy_id=policy.policy_id,
        version=policy.version,
        body=_body(policy),
        author=author,
    )


def put_missing(tx: Tx, declared: Iterable[Policy], author: str) -> Policy | None:
    """Store those of the declared versions that are not there; stored ones are never edited.

    Returns the first declared version that is stored with another body, and then stores
    nothing; None: all declared versions are stored as declared. Raises IntegrityError when
    another process stores one of them at the same time.
    """
    missing = []
    for policy in declared:
        stored = get(tx, policy.policy_id, policy.version)
        if stored is None:
            missing.append(policy)
        elif stored.policy != policy:
            return policy
    for policy in missing:
        insert(tx, policy, author)
    return None


def get(tx: Tx, policy_id: str, version: int) -> StoredPolicy | None:
    """One version."""
    row = tx.one(_GET, policy_id=policy_id, version=version)
    return _stored(row) if row else None


def newest(tx: Tx, policy_id: str) -> StoredPolicy | None:
    """The highest version, which new submits pin."""
    row = tx.one(_NEWEST, policy_id=policy_id)
    return _stored(row) if row else None


def listed(tx: Tx, policy_id: str = "") -> list[StoredPolicy]:
    """All versions of one policy, or of all."""
    return [_stored(row) for row in tx.query(_LIST, policy_id=policy_id)]


def _body(policy: Policy) -> str:
    return orjson.dumps(
        {
            "rules": [[r.category, r.reject_at, r.review_at] for r in policy.rules],
            "on_deadline": policy.on_deadline,
            "on_required_failed": policy.on_required_failed,
        }
    ).decode()


def _stored(row: Row[Any]) -> StoredPolicy:
    body = orjson.loads(row.body)
    policy = Policy(
        row.policy_id,
        row.version,
        tuple(Rule(*rule) for rule in body["rules"]),
        CaseState(body["on_deadline"]),
        CaseState(body["on_required_failed"]),
    )
    return StoredPolicy(policy, row.author, row.created_at)
