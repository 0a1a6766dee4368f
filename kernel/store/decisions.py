"""Statements of decisions, late results and operator actions: appended, never edited.

Receives the open transaction and what was decided, by whom and from which evidence. Hands on
rows for people and for a later decision. Source: DESIGN sections 8 and 12, I13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.decision import Child
from kernel.lifecycle import CaseState
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx

BY_POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A result that took part in a decision."""

    task_id: str
    model_id: str
    model_version: str
    input_digest: str
    scores: Mapping[str, float]

    @classmethod
    def of(cls, child: Child) -> Evidence:
        """What is kept of a child that counts."""
        return cls(
            child.task_id,
            child.model_id,
            child.model_version,
            child.input_digest,
            dict(child.scores or {}),
        )


@dataclass(frozen=True, slots=True)
class NewDecision:
    """A decision version; 1 is the first. `decided_by`: "policy", or a reviewer's name."""

    parent_id: str
    version: int
    outcome: CaseState
    reason: str
    policy_id: str
    policy_version: int
    rule: str
    evidence: tuple[Evidence, ...]
    decided_by: str = BY_POLICY
    note: str = ""


@dataclass(frozen=True, slots=True)
class StoredDecision(NewDecision):
    """A decision with its time, in microseconds since the epoch."""

    decided_at: int = 0


@dataclass(frozen=True, slots=True)
class LateResult:
    """A result that came after the decision. `received_at` in microseconds since the epoch.

    `source`: attempt, receipt or late_attempt.
    """

    parent_id: str
    n: int
    source: str
    scores: Mapping[str, float]
    received_at: int


_APPEND = Statement(
    """insert into decisions (parent_id, version, outcome, reason, policy_id, policy_version,
         rule, evidence, decided_by, note, decided_at)
       select parent_id, version, outcome, reason, policy_id, policy_version, rule, evidence,
         decided_by, note, {now} from {batch} b""",
    {
        "parent_id": "text",
        "version": "int",
        "outcome": "text",
        "reason": "text",
        "policy_id": "text",
        "policy_version": "int",
        "rule": "text",
        "evidence": "text",
        "decided_by": "text",
        "note": "text",
    },
)
_LISTED = Statement(
    """select parent_id, version, outcome, reason, policy_id, policy_version, rule, evidence,
         decided_by, note, decided_at
       from decisions where parent_id = :parent_id order by version"""
)
_FIRST_EVIDENCE = Statement(
    """select d.parent_id, d.evidence from {batch} b
       join decisions d on d.parent_id = b.parent_id and d.version = 1""",
    {"parent_id": "text"},
)
# A late result of a task is kept once; the primary key lets the first one in.
_KEEP_LATE = Statement(
    """insert or ignore into late_results (parent_id, n, source, scores, received_at)
       values (:parent_id, :n, :source, :scores, :received_at)""",
    mysql="""insert ignore into late_results (parent_id, n, source, scores, received_at)
       values (:parent_id, :n, :source, :scores, :received_at)""",
)
_LATE = Statement(
    """select parent_id, n, source, scores, received_at from late_results
       where parent_id = :parent_id order by received_at, n"""
)
_LATE_AMOUNT = Statement("select count(*) as amount from late_results where parent_id = :parent_id")
_RECORD_ACTION = Statement(
    """insert into operator_actions (parent_id, n, actor, action, note, at)
       values (:parent_id, :n, :actor, :action, :note, {now})"""
)
_ACTIONS = Statement(
    """select id, parent_id, n, actor, action, note, at from operator_actions
       where parent_id = :parent_id and (:n = 0 or n = :n) order by id"""
)


def append(tx: Tx, rows: Iterable[NewDecision]) -> None:
    """Append decision versions; raises IntegrityError when a version is taken."""
    batch = [
        (
            row.parent_id,
            row.version,
            row.outcome,
            row.reason[:128],
            row.policy_id,
            row.policy_version,
            row.rule.encode()[:256].decode(errors="ignore"),
            _packed(row.evidence),
            row.decided_by,
            row.note,
        )
        for row in rows
    ]
    if batch:
        tx.execute(_APPEND, batch)


def listed(tx: Tx, parent_id: str) -> list[StoredDecision]:
    """All decisions of a parent, the first version first; the last one stands."""
    return [_decision(row) for row in tx.query(_LISTED, parent_id=parent_id)]


def seen_first(tx: Tx, parent_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """The task ids in the evidence of each parent's first decision; none: not decided yet."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    return {
        row.parent_id: frozenset(each[0] for each in orjson.loads(row.evidence))
        for row in (tx.query(_FIRST_EVIDENCE, rows) if rows else [])
    }


def keep_late(tx: Tx, late: LateResult) -> int:
    """Keep a late result; its number among the parent's (from 1), 0 when it was kept before.

    The caller holds the parent's lock, so that numbers rise in the order of commits.
    """
    kept = tx.changed(
        _KEEP_LATE,
        parent_id=late.parent_id,
        n=late.n,
        source=late.source,
        scores=orjson.dumps(dict(late.scores)).decode(),
        received_at=late.received_at,
    )
    if not kept:
        return 0
    row = tx.one(_LATE_AMOUNT, parent_id=late.parent_id)
    return int(row.amount) if row else 0


def late_results(tx: Tx, parent_id: str) -> list[LateResult]:
    """The late results of a parent, in order of their arrival."""
    return [
        LateResult(row.parent_id, row.n, row.source, orjson.loads(row.scores), row.received_at)
        for row in tx.query(_LATE, parent_id=parent_id)
    ]


def record_action(tx: Tx, parent_id: str, n: int, actor: str, action: str, note: str = "") -> None:
    """Record what a person did to a task, or with n = 0 to the parent itself."""
    tx.execute(_RECORD_ACTION, parent_id=parent_id, n=n, actor=actor, action=action, note=note)


def actions(tx: Tx, parent_id: str, n: int = 0) -> Sequence[Row[Any]]:
    """What people did to a parent and its tasks, or to one task, the oldest first."""
    return tx.query(_ACTIONS, parent_id=parent_id, n=n)


def _packed(evidence: Iterable[Evidence]) -> str:
    return orjson.dumps(
        [[e.task_id, e.model_id, e.model_version, e.input_digest, dict(e.scores)] for e in evidence]
    ).decode()


def _decision(row: Row[Any]) -> StoredDecision:
    return StoredDecision(
        row.parent_id,
        row.version,
        CaseState(row.outcome),
        row.reason,
        row.policy_id,
        row.policy_version,
        row.rule,
        tuple(Evidence(*each) for each in orjson.loads(row.evidence)),
        row.decided_by,
        row.note,
        row.decided_at,
    )
