"""The verdict: a pure function of the whole child set, the pinned policy and the time.

Receives a `Snapshot`. Hands on a `Decision`, which the aggregator writes by compare-and-set;
for a single result whether it may still take part (`adopt`); and what of a policy says nothing
sensible (`policy_violations`). A count is never trusted: duplicates, old versions and cancelled
children pollute counts. Source: DESIGN section 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kernel.attempt import BUDGET_EXHAUSTED, NO_PERMIT, RATE_LIMITED
from kernel.errors import FieldViolation
from kernel.lifecycle import CLOSED, CaseState, State


class Requirement(StrEnum):
    """Whether a model's result is needed."""

    REQUIRED = "REQUIRED"
    OPTIONAL = "OPTIONAL"
    SHADOW = "SHADOW"  # recorded, never decides


class Adoption(StrEnum):
    """What a result is worth."""

    ADOPTED = "ADOPTED"
    LATE = "LATE"  # kept as evidence, and decides nothing


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds in [0, 1] of one category; "*" is every category without its own rule."""

    category: str
    reject_at: float | None = None
    review_at: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """An immutable policy version."""

    policy_id: str
    version: int
    rules: tuple[Rule, ...]
    on_deadline: CaseState = CaseState.IN_REVIEW
    on_required_failed: CaseState = CaseState.IN_REVIEW

    def rule_for(self, category: str) -> Rule | None:
        """The category's own rule, else the "*" rule, else None."""
        by_name = {rule.category: rule for rule in self.rules}
        return by_name.get(category) or by_name.get("*")


@dataclass(frozen=True, slots=True)
class Child:
    """One task as the decision sees it."""

    task_id: str
    requirement: Requirement
    state: State
    model_id: str
    model_version: str
    input_digest: str
    attempt: int = 0
    reason: str = ""
    scores: Mapping[str, float] | None = None
    adoption: Adoption = Adoption.ADOPTED

    @property
    def counts(self) -> bool:
        """Whether this is an adopted success with a result: all that a verdict may rest on."""
        return (
            self.state is State.SUCCEEDED
            and self.scores is not None
            and self.adoption is Adoption.ADOPTED
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A case with all its children; `deadline` in microseconds since the epoch."""

    case_version: int
    state: CaseState
    deadline: int
    cancel_requested: bool
    children: tuple[Child, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """`outcome` None means wait, and `missing` says for what (required task ids)."""

    outcome: CaseState | None
    reason: str
    rule: str = ""
    missing: tuple[str, ...] = ()
    evidence: tuple[Child, ...] = ()


DEADLINE_PASSED = "DEADLINE_PASSED"
MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
REQUIRED_MODEL_FAILED = "REQUIRED_MODEL_FAILED"
REQUIRED_RESULT_MISSING = "REQUIRED_RESULT_MISSING"
DEADLINE_HAD_COME = "DEADLINE_HAD_COME"

_NOT_HAD = frozenset({BUDGET_EXHAUSTED, RATE_LIMITED})


MOST_RULES = 1_000
MOST_NAME_BYTES = 128
_WITHOUT_VERDICT = frozenset({CaseState.IN_REVIEW, CaseState.FAILED})


def policy_violations(policy: Policy, body: str = "") -> list[FieldViolation]:
    """What of a policy says nothing sensible; `body` goes before every path but the id's.

    A policy without rules would approve everything, a threshold that is no number is never
    reached, and of two rules for one category only one is read.
    """
    return [FieldViolation(*found) for found in _policy_faults(policy, body)]


def _policy_faults(policy: Policy, body: str) -> Iterator[tuple[str, str]]:
    if not _is_name(policy.policy_id):
        yield "policy_id", f"1 to {MOST_NAME_BYTES} bytes"
    if not 0 < len(policy.rules) <= MOST_RULES:
        yield f"{body}rules", f"1 to {MOST_RULES} rules"
    seen: set[str] = set()
    for at, rule in enumerate(policy.rules[:MOST_RULES]):
        if not _is_name(rule.category):
            yield f"{body}rules[{at}].category", f"1 to {MOST_NAME_BYTES} bytes"
        elif rule.category in seen:
            yield f"{body}rules[{at}].category", "stands in an earlier rule already"
        seen.add(rule.category)
        for name, fault in _threshold_faults(rule):
            yield f"{body}rules[{at}].{name}", fault
    if policy.on_deadline not in _WITHOUT_VERDICT:
        yield f"{body}on_deadline", "IN_REVIEW or FAILED"
    if policy.on_required_failed not in _WITHOUT_VERDICT:
        yield f"{body}on_required_failed", "IN_REVIEW or FAILED"


def _threshold_faults(rule: Rule) -> Iterator[tuple[str, str]]:
    for name, threshold in (("reject_at", rule.reject_at), ("review_at", rule.review_at)):
        # A comparison with NaN is false both ways, so that it would never be reached.
        if threshold is not None and not (math.isfinite(threshold) and 0.0 <= threshold <= 1.0):
            yield name, "a number from 0 to 1"
    if (
        rule.reject_at is not None
        and rule.review_at is not None
        and rule.review_at > rule.reject_at
    ):
        yield "review_at", "at most reject_at"


def _is_name(text: str) -> bool:
    return 0 < len(text.encode()) <= MOST_NAME_BYTES


def adopt(*, result_at: int, deadline: int) -> Adoption:
    """Whether a task's result may take part; both times in microseconds since the epoch.

    Only its time can rule it out. What it answers is not in question: a result reaches a task
    by the key of that task alone, which belongs to one case (content, version and round), one
    model version and one input, so that a result of another version or round never comes here.
    """
    return Adoption.LATE if result_at > deadline else Adoption.ADOPTED


def decide(snapshot: Snapshot, policy: Policy, now: int) -> Decision:
    """The decision for this set of children at `now` (microseconds); the order is the rule."""
    if snapshot.state is not CaseState.PENDING:
        return Decision(None, "ALREADY_DECIDED")
    children = _distinct(snapshot.children)
    required = [c for c in children if c.requirement is Requirement.REQUIRED]
    missing = tuple(c.task_id for c in required if not c.counts)
    evidence = evidence_of(children)
    if snapshot.cancel_requested:
        return Decision(
            CaseState.CANCELLED, "CANCELLED_BY_CALLER", missing=missing, evidence=evidence
        )
    demanded = _first_hit(policy, tuple(c for c in required if c.counts), review=True)
    if demanded:
        return Decision(CaseState.IN_REVIEW, "REVIEW_DEMANDED", demanded, missing, evidence)
    if now >= snapshot.deadline:
        tried = any(
            c.task_id in missing and c.attempt > 0 and c.reason != NO_PERMIT for c in required
        )
        reason = MODEL_UNAVAILABLE if tried else DEADLINE_PASSED
        return Decision(policy.on_deadline, reason, missing=missing, evidence=evidence)
    lost = [c for c in required if c.state in CLOSED and not c.counts]
    if lost:
        unavailable = [c for c in lost if c.state is State.EXPIRED or c.reason in _NOT_HAD]
        if unavailable:
            return Decision(
                CaseState.IN_REVIEW,
                MODEL_UNAVAILABLE,
                unavailable[0].model_id,
                missing,
                evidence,
            )
        return Decision(
            policy.on_required_failed,
            REQUIRED_MODEL_FAILED,
            lost[0].model_id,
            missing,
            evidence,
        )
    # A set that requires nothing is not a complete set: nothing was judged.
    if missing or not required:
        return Decision(None, "WAITING", missing=missing)
    return judge(policy, evidence)


def decide_again(children: Iterable[Child], policy: Policy, *, deadline_had_come: bool) -> Decision:
    """The verdict of stored scores under another policy version; it always has an outcome.

    Without an adopted success of every required model the case is a person's; and never
    approved is a case whose deadline had come before its first decision (I5).
    """
    distinct = _distinct(children)
    required = [c for c in distinct if c.requirement is Requirement.REQUIRED]
    missing = tuple(c.task_id for c in required if not c.counts)
    evidence = evidence_of(distinct)
    if missing or not required:
        return Decision(
            CaseState.IN_REVIEW, REQUIRED_RESULT_MISSING, missing=missing, evidence=evidence
        )
    judged = judge(policy, evidence)
    if deadline_had_come and judged.outcome is CaseState.APPROVED:
        return Decision(CaseState.IN_REVIEW, DEADLINE_HAD_COME, evidence=evidence)
    return judged


def evidence_of(children: Iterable[Child]) -> tuple[Child, ...]:
    """The results that may take part: adopted successes, save those of shadow models."""
    return tuple(c for c in children if c.requirement is not Requirement.SHADOW and c.counts)


def judge(policy: Policy, evidence: tuple[Child, ...]) -> Decision:
    """The verdict of complete evidence under a policy."""
    demanded = _first_hit(policy, evidence, review=True)
    if demanded:
        return Decision(CaseState.IN_REVIEW, "REVIEW_DEMANDED", demanded, evidence=evidence)
    rejected = _first_hit(policy, evidence, review=False)
    if rejected:
        return Decision(CaseState.REJECTED, "SCORE_ABOVE_THRESHOLD", rejected, evidence=evidence)
    return Decision(CaseState.APPROVED, "ALL_BELOW_THRESHOLDS", evidence=evidence)


def review_demanded(policy: Policy, children: Iterable[Child]) -> bool:
    """Whether one of these results alone sends its case to a person."""
    required = (c for c in children if c.requirement is Requirement.REQUIRED and c.counts)
    return bool(_first_hit(policy, tuple(required), review=True))


def _distinct(children: Iterable[Child]) -> list[Child]:
    """Each task once and in the order of their numbers, however the set was read."""
    by_id = {child.task_id: child for child in children}
    return [by_id[name] for name in sorted(by_id, key=lambda name: (len(name), name))]


def _first_hit(policy: Policy, children: tuple[Child, ...], *, review: bool) -> str:
    """The first category that reaches its threshold, as "category>=threshold", else "".

    A score that reaches the rejection threshold does not demand review: it is past doubt.
    """
    for child in sorted(children, key=lambda c: (len(c.task_id), c.task_id)):
        for category, score in sorted((child.scores or {}).items()):
            rule = policy.rule_for(category)
            if rule is None:
                continue
            rejects = rule.reject_at is not None and score >= rule.reject_at
            if not review and rejects:
                return f"{category}>={rule.reject_at}"
            doubtful = rule.review_at is not None and score >= rule.review_at
            if review and doubtful and not rejects:
                return f"{category}>={rule.review_at}"
    return ""
