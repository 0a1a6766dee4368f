"""From what was read to what is written: rulings, and the one transaction that writes them.

Receives a `Look`. Hands on which parents were decided. A ruling is made without the store;
its write is a compare-and-set on the parent's version that also tests the deadline, with the
decision, its evidence, one event and the deletion of exactly the markers that were read.
A ruling that lost keeps its markers: it is read again. Source: DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from kernel.decision import Decision, Policy, decide
from kernel.lifecycle import CaseMover, CaseState, case_allowed
from kernel.store import decisions, markers, outbox, parents
from kernel.store.decisions import Evidence, NewDecision
from kernel.store.parents import Parent
from kernel.store.transaction import Tx
from services.aggregator import late
from services.aggregator.snapshot import Case, Look, snapshot_of

_log = structlog.get_logger("sluice.aggregator")

TOPIC = "sluice.verdicts"
POLICY_MISSING = "POLICY_MISSING"

POSTPONE_MICROS = 5_000_000
"""A due parent that cannot be decided is looked at again after this time."""

# An automatic verdict holds only before the deadline; the other outcomes at any time (I5).
_ONLY_IN_TIME = frozenset({CaseState.APPROVED, CaseState.REJECTED})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be written for one case; `decision` None: nothing but its late results."""

    case: Case
    decision: Decision | None
    keep_markers: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Ids of parents that were decided, and of those whose write lost; counts of the rest."""

    decided: tuple[str, ...]
    lost: tuple[str, ...]
    late: int
    markers: int

    @property
    def progress(self) -> int:
        """How much less there is to do."""
        return len(self.decided) + self.markers


def rule(found: Look) -> list[Ruling]:
    """One ruling for each case of a look; a case that cannot be judged holds up no other."""
    rulings = []
    for case in found.cases:
        if case.waits:
            continue
        try:
            rulings.append(_rule(case, found))
        except Exception as error:
            # The type only: an exception's text can hold what must not be logged.
            _log.error("ruling_failed", case_id=case.parent_id, error=type(error).__name__)
            rulings.append(Ruling(case, None, keep_markers=True))
    return rulings


def _rule(case: Case, found: Look) -> Ruling:
    if case.parent is None or case.children is None:
        return Ruling(case, None)
    policy = found.policies.get((case.parent.policy_id, case.parent.policy_version))
    snapshot = snapshot_of(case.parent, case.children)
    if policy is None:
        # Never approve by a rule that nobody can read: with no policy a person decides.
        nothing = Policy(case.parent.policy_id, case.parent.policy_version, ())
        seen = decide(snapshot, nothing, found.now)
        if seen.outcome is not CaseState.CANCELLED:
            seen = Decision(
                CaseState.IN_REVIEW, POLICY_MISSING, missing=seen.missing, evidence=seen.evidence
            )
        return Ruling(case, seen)
    return Ruling(case, decide(snapshot, policy, found.now))


def write(tx: Tx, rulings: Sequence[Ruling]) -> Written:
    """Write rulings in the order of their parents' ids; a loser changes nothing."""
    decided: list[str] = []
    lost: list[str] = []
    rows: list[NewDecision] = []
    seen_markers: list[int] = []
    late_kept = 0
    for ruling in sorted(rulings, key=lambda each: each.case.parent_id):
        case, decision = ruling.case, ruling.decision
        if case.parent is not None and decision is not None and decision.outcome is not None:
            if not _move(tx, case.parent, decision.outcome):
                lost.append(case.parent_id)
                continue
            decided.append(case.parent_id)
            rows.append(_first_version(case.parent, decision, decision.outcome))
        elif case.due:
            parents.postpone(tx, case.parent_id, POSTPONE_MICROS)
        late_kept += late.keep(tx, case.late)
        if not ruling.keep_markers:
            seen_markers += case.markers
    decisions.append(tx, rows)
    by_id = {r.case.parent_id: r.case.parent for r in rulings if r.case.parent is not None}
    announce(tx, ((by_id[row.parent_id], row.outcome) for row in rows))
    markers.delete(tx, seen_markers)
    return Written(tuple(decided), tuple(lost), late_kept, len(seen_markers))


def announce(tx: Tx, moved: Iterable[tuple[Parent, CaseState]]) -> None:
    """One event for each parent that was moved, given as it stood before; versions rise."""
    outbox.append(
        tx,
        [
            (
                TOPIC,
                parent.id,
                {"case_id": parent.id, "version": parent.version + 1, "state": state},
            )
            for parent, state in moved
        ],
    )


def _move(tx: Tx, parent: Parent, outcome: CaseState) -> bool:
    if not case_allowed(parent.state, outcome, CaseMover.AGGREGATOR):
        raise AssertionError(f"the aggregator may not take a case from {parent.state} to {outcome}")
    return parents.decide(tx, parent, outcome, any_time=outcome not in _ONLY_IN_TIME)


def _first_version(parent: Parent, decision: Decision, outcome: CaseState) -> NewDecision:
    return NewDecision(
        parent_id=parent.id,
        version=1,
        outcome=outcome,
        reason=decision.reason,
        policy_id=parent.policy_id,
        policy_version=parent.policy_version,
        rule=decision.rule,
        evidence=tuple(Evidence.of(child) for child in decision.evidence),
    )
