"""A case as it is shown: its state, what it still lacks, its tasks, and why it was decided.

Receives the open transaction and a case id. Hands on a `CaseView` of one read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from kernel.decision import Child, Requirement
from kernel.errors import FieldViolation, InvalidArgument, NotFound
from kernel.identity import is_parent_id
from kernel.lifecycle import CaseState
from kernel.store import decisions, parents, tasks
from kernel.store.decisions import LateResult, StoredDecision
from kernel.store.parents import Parent
from kernel.store.snapshots import ChildRow, Mark
from kernel.store.tasks import Task
from kernel.store.transaction import Tx
from services.aggregator.snapshot import KIND, in_time

FINAL = frozenset({CaseState.APPROVED, CaseState.REJECTED, CaseState.FAILED, CaseState.CANCELLED})
"""States in which nobody is awaited: no model and no reviewer."""

Tenants = frozenset[str] | None
"""The tenants that a caller may see; None: every one."""


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case. `missing`: required task ids that lack a success in time."""

    parent: Parent
    tasks: tuple[Task, ...]
    missing: tuple[str, ...]
    decisions: tuple[StoredDecision, ...]
    late_results: tuple[LateResult, ...]

    @property
    def case_id(self) -> str:
        """The case's id."""
        return self.parent.id

    @property
    def state(self) -> CaseState:
        """Where the case stands."""
        return self.parent.state

    @property
    def version(self) -> int:
        """The case's version: every write of the case raises it."""
        return self.parent.version

    @property
    def labels(self) -> Mapping[str, str]:
        """The caller's labels."""
        return self.parent.labels

    @property
    def content_key(self) -> tuple[str, int, int]:
        """The caller's key: content id, content version, review round."""
        content_id, version, review_round = orjson.loads(self.parent.logical_key)
        return (str(content_id), int(version), int(review_round))

    @property
    def final(self) -> bool:
        """Whether neither a model nor a reviewer is awaited any more."""
        return self.state in FINAL

    @property
    def mark(self) -> Mark:
        """See `kernel.store.snapshots.mark`."""
        return (self.version, sum(t.revision for t in self.tasks), len(self.late_results))


def read(tx: Tx, case_id: str, tenants: Tenants = None) -> CaseView:
    """The case; raises InvalidArgument for what is no id, and NotFound."""
    check_id(case_id)
    parent = visible(parents.get(tx, case_id), tenants)
    children = tasks.children(tx, case_id)
    return CaseView(
        parent=parent,
        tasks=tuple(children),
        missing=missing_of(judged(children, parent.deadline)),
        decisions=tuple(decisions.listed(tx, case_id)),
        late_results=tuple(decisions.late_results(tx, case_id)),
    )


def visible(parent: Parent | None, tenants: Tenants) -> Parent:
    """The parent; raises NotFound where it is not there, or is of another tenant."""
    if (
        parent is None
        or parent.kind != KIND
        or (tenants is not None and parent.tenant_id not in tenants)
    ):
        raise NotFound("There is no case with this id; check case_id.")
    return parent


def check_id(case_id: str) -> None:
    """Raises InvalidArgument for what has not the form of an id."""
    if not is_parent_id(case_id):
        raise InvalidArgument(FieldViolation("case_id", "must be 32 lower-case hexadecimal digits"))


def judged(children: list[Task], deadline: int) -> tuple[Child, ...]:
    """The children as a decision sees them."""
    return in_time((ChildRow(t.n, t.child(), t.result_at) for t in children), deadline)


def missing_of(children: tuple[Child, ...]) -> tuple[str, ...]:
    """Ids of required tasks that lack an adopted success."""
    return tuple(
        child.task_id
        for child in children
        if child.requirement is Requirement.REQUIRED and not child.counts
    )
