"""The transaction that accepts a case: the case, its tasks and its outbox rows, or nothing.

Receives the open transaction and a draft whose payloads lie in the vault. Hands on the stored
case, which a read-back finds by the caller's key. Source: DESIGN section 5; case 3-09.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel.environment import MICROS_PER_SECOND
from kernel.fairness import Priority
from kernel.idempotency import idempotency_key
from kernel.identity import task_id
from kernel.runtime.settings import PlanningSettings
from kernel.runtime.wakeups import ready_topic
from kernel.store import outbox, parents, policies, tasks
from kernel.store.parents import NewParent, Parent
from kernel.store.tasks import NewTask, Task
from kernel.store.transaction import Tx
from services.intake.admission import Content
from services.intake.planning import PlannedTask
from services.intake.sameness import KIND


@dataclass(frozen=True, slots=True)
class Draft:
    """A case about to be accepted; `refs` are its payloads in the vault, by input digest."""

    case_id: str
    root_span_id: str
    content: Content
    key: str
    fingerprint: dict[str, str]
    planned: list[PlannedTask]
    refs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Known:
    """A stored case with its tasks."""

    case: Parent
    children: list[Task]


def look_up(tx: Tx, tenant_id: str, key: str) -> tuple[Known | None, int]:
    """The case under a caller's key, and the database's now."""
    case = parents.by_logical_key(tx, tenant_id, KIND, key)
    known = None if case is None else Known(case, tasks.children(tx, case.id))
    return known, tx.now()


def deadline_of(content: Content, rules: PlanningSettings, now: int) -> int:
    """The caller's deadline, else the planning's; microseconds."""
    if content.deadline is not None:
        return content.deadline
    return now + int(rules.deadline_seconds * MICROS_PER_SECOND)


def accept(tx: Tx, draft: Draft, rules: PlanningSettings) -> int:
    """Store the case, its tasks and one outbox row a pool; returns when it was accepted.

    Pins the newest policy version that this transaction sees. Raises IntegrityError when the
    caller's key is taken.
    """
    content = draft.content
    policy = policies.newest(tx, rules.policy)
    if policy is None:
        raise LookupError("the planning's policy is not stored: was the service started?")
    deadline = deadline_of(content, rules, tx.now())
    priority = content.priority or Priority.NORMAL
    parents.insert(
        tx,
        [
            NewParent(
                id=draft.case_id,
                kind=KIND,
                tenant_id=content.tenant_id,
                logical_key=draft.key,
                fingerprint=draft.fingerprint,
                policy_id=policy.policy.policy_id,
                policy_version=policy.policy.version,
                priority=priority,
                labels=dict(sorted(content.labels.items())),
                root_span_id=draft.root_span_id,
                deadline=deadline,
            )
        ],
    )
    tasks.insert(tx, [_new_task(draft, task, priority, deadline) for task in draft.planned])
    topics = sorted({ready_topic(task.model.pool) for task in draft.planned})
    outbox.append(
        tx, [(topic, draft.case_id, {"id": draft.case_id, "version": 1}) for topic in topics]
    )
    stored = parents.get(tx, draft.case_id)
    if stored is None:
        raise LookupError("a case that was just inserted is not there")
    return stored.created_at


def _new_task(draft: Draft, task: PlannedTask, priority: str, deadline: int) -> NewTask:
    return NewTask(
        parent_id=draft.case_id,
        n=task.n,
        tenant_id=draft.content.tenant_id,
        requirement=task.model.requirement,
        model_id=task.model.model,
        model_version=task.model.version,
        input_digest=task.input.digest,
        input_kind=task.input.kind,
        payload_ref=draft.refs[task.input.digest],
        units=task.units,
        positions=task.positions,
        vendor=task.vendor,
        pool=task.model.pool,
        priority=priority,
        idempotency_key=idempotency_key(task_id(draft.case_id, task.n), task.vendor),
        on_unknown=task.on_unknown,
        max_sends=task.model.max_sends,
        deadline=deadline,
    )
