"""Decisions after the first one: a reviewer's, and a policy version's from stored scores.

Receives the open transaction and who decides what. Hands on whether the case moved. Each
appends a decision version and never edits one; no vendor is called. Source: DESIGN sections
2 and 8; I5.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.decision import DEADLINE_PASSED, Decision, decide_again
from kernel.errors import FieldViolation, InvalidArgument, LostRace, NotAllowedInState, NotFound
from kernel.lifecycle import CaseMover, CaseState, case_allowed
from kernel.store import decisions, parents, policies, tasks
from kernel.store.decisions import BY_POLICY, Evidence, NewDecision, StoredDecision
from kernel.store.parents import Parent
from kernel.store.transaction import Tx
from services.aggregator.case import Tenants, check_id, judged, visible
from services.aggregator.verdicts import announce

REVIEWED = "REVIEWED"
_NAME_BYTES, _NOTE_BYTES = 128, 1024


@dataclass(frozen=True, slots=True)
class Review:
    """A reviewer's decision on the version of the case that they saw.

    `actor` is recorded with the action: the reviewer, and the caller that spoke for them.
    """

    case_id: str
    outcome: CaseState | None
    expected_version: int
    reviewer: str
    note: str
    actor: str

    def check(self) -> None:
        """Raises InvalidArgument, every bad field named."""
        bad = []
        if self.outcome not in (CaseState.APPROVED, CaseState.REJECTED):
            bad.append(FieldViolation("decision", "APPROVED or REJECTED"))
        if self.expected_version < 1:
            bad.append(FieldViolation("expected_version", "the version of the case you saw"))
        if not self.reviewer or len(self.actor.encode()) > _NAME_BYTES:
            bad.append(FieldViolation("reviewer", f"1 to {_NAME_BYTES} bytes, caller included"))
        if len(self.note.encode()) > _NOTE_BYTES:
            bad.append(FieldViolation("note", f"at most {_NOTE_BYTES} bytes"))
        try:
            check_id(self.case_id)
        except InvalidArgument as error:
            bad.extend(error.violations)
        if bad:
            raise InvalidArgument(*bad)


def resolve(tx: Tx, review: Review, tenants: Tenants) -> None:
    """Close a case that is in review.

    Raises NotFound; LostRace, its metadata naming the current `version`; NotAllowedInState,
    naming the `state`.
    """
    parent = visible(parents.lock(tx, review.case_id), tenants)
    if parent.version != review.expected_version:
        raise LostRace(
            f"The case is at version {parent.version} now, not {review.expected_version}; nothing "
            "was changed. Read it again and decide on what it says now.",
            version=str(parent.version),
            state=parent.state.value,
        )
    outcome = review.outcome
    if outcome is None or not case_allowed(parent.state, outcome, CaseMover.REVIEWER):
        raise NotAllowedInState(
            f"The case is {parent.state}, not IN_REVIEW; nothing was changed.",
            state=parent.state.value,
            version=str(parent.version),
        )
    before = decisions.listed(tx, parent.id)
    # A person sees every result that is stored, also a late one.
    known = [task.child() for task in tasks.children(tx, parent.id) if task.scores is not None]
    decided = NewDecision(
        parent_id=parent.id,
        version=before[-1].version + 1,
        outcome=outcome,
        reason=REVIEWED,
        policy_id=parent.policy_id,
        policy_version=parent.policy_version,
        rule="",
        evidence=tuple(Evidence.of(child) for child in known if child.counts),
        decided_by=review.reviewer,
        note=review.note,
    )
    _write(tx, parent, decided, parent.policy_version)
    decisions.record_action(tx, parent.id, 0, review.actor, f"REVIEW_{outcome}", review.note)


def redecide(tx: Tx, case_id: str, policy_version: int, tenants: Tenants) -> bool:
    """Decide again under another version of the case's own policy; True when it moved.

    Asked again with nothing new to say it appends nothing. Raises NotFound for the case or
    the version, and NotAllowedInState, naming the `state`.
    """
    parent = visible(parents.lock(tx, case_id), tenants)
    if not case_allowed(parent.state, parent.state, CaseMover.REDECIDE):
        raise NotAllowedInState(
            f"The case is {parent.state}; only APPROVED, REJECTED and IN_REVIEW are decided "
            "again. Nothing was changed.",
            state=parent.state.value,
            version=str(parent.version),
        )
    stored = policies.get(tx, parent.policy_id, policy_version)
    if stored is None:
        raise NotFound(
            f"Policy {parent.policy_id} has no version {policy_version}; nothing was changed.",
            policy_id=parent.policy_id,
        )
    before = decisions.listed(tx, parent.id)
    children = judged(tasks.children(tx, parent.id), parent.deadline)
    decision = decide_again(
        children, stored.policy, deadline_had_come=_deadline_had_come(parent, before[0])
    )
    decided = _next_version(parent, decision, policy_version, before[-1])
    if _says(decided) == _says(before[-1]):
        return len(before) > 1 and before[-1].outcome is not before[-2].outcome
    _write(tx, parent, decided, policy_version)
    return decided.outcome is not parent.state


def _deadline_had_come(parent: Parent, first: StoredDecision) -> bool:
    """Whether the first decision was made because of, or after, the deadline."""
    return first.reason == DEADLINE_PASSED or first.decided_at >= parent.deadline


def _says(decision: NewDecision) -> tuple[object, ...]:
    return (
        decision.decided_by,
        decision.policy_version,
        decision.outcome,
        decision.evidence,
    )


def _next_version(
    parent: Parent, decision: Decision, policy_version: int, last: StoredDecision
) -> NewDecision:
    if decision.outcome is None:
        raise AssertionError("a re-decision always has an outcome")
    return NewDecision(
        parent_id=parent.id,
        version=last.version + 1,
        outcome=decision.outcome,
        reason=decision.reason,
        policy_id=parent.policy_id,
        policy_version=policy_version,
        rule=decision.rule,
        evidence=tuple(Evidence.of(child) for child in decision.evidence),
        decided_by=BY_POLICY,
    )


def _write(tx: Tx, parent: Parent, decided: NewDecision, policy_version: int) -> None:
    """The parent is locked, so this cannot lose."""
    if not parents.decide(
        tx, parent, decided.outcome, policy_version=policy_version, any_time=True
    ):
        raise LostRace(
            "The case moved meanwhile; nothing was changed. Try again.",
            version=str(parent.version),
        )
    decisions.append(tx, [decided])
    announce(tx, [(parent, decided.outcome)])
