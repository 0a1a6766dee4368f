"""Receives what a test cares about; hands on coherent parents, tasks and policies.

Rows enter through the store's own functions and tasks move by `moves.move`, so that a test
never stands on a row that the program could not have made.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kernel.attempt import OnUnknown
from kernel.decision import Policy, Requirement, Rule
from kernel.idempotency import idempotency_key
from kernel.identity import task_id
from kernel.lifecycle import CLOSED, Mover, State
from kernel.receipt import ReceiptState
from kernel.store import moves, parents, policies, tasks
from kernel.store.parents import NewParent
from kernel.store.receipts import NewReceipt
from kernel.store.tasks import NewTask, Task, TaskKey
from kernel.store.transaction import Tx

SECOND = 1_000_000
_numbers = itertools.count(1)


def policy(
    reject_at: float | None = 0.8, review_at: float | None = None, *, version: int = 1
) -> Policy:
    """One rule for every category."""
    return Policy("default", version, (Rule("*", reject_at, review_at),))


def parent(now: int, *, seconds: float = 60.0, tenant_id: str = "acme", **more: str) -> NewParent:
    """A case of `tenant_id` whose deadline is `seconds` after `now` (microseconds)."""
    number = next(_numbers)
    return NewParent(
        id=f"{now // 1_000:012x}{number:020x}",
        kind="CONTENT",
        tenant_id=tenant_id,
        logical_key=f'["post-{number}",3,1]',
        fingerprint={"parts": "0" * 16},
        policy_id=more.get("policy_id", "default"),
        policy_version=int(more.get("policy_version", "1")),
        priority="NORMAL",
        labels={"source": "test"},
        root_span_id="00f067aa0ba902b7",
        deadline=now + int(seconds * SECOND),
    )


def task(
    of: NewParent,
    n: int,
    model_id: str,
    requirement: Requirement = Requirement.REQUIRED,
) -> NewTask:
    """Child `n` of a parent, judged by `model_id` at the vendor `vendor-<model>`."""
    vendor = f"vendor-{model_id}"
    return NewTask(
        parent_id=of.id,
        n=n,
        tenant_id=of.tenant_id,
        requirement=requirement,
        model_id=model_id,
        model_version="1",
        input_digest=f"{n:064x}",
        input_kind="TEXT",
        payload_ref=f"ref-{n}",
        units={"requests": 1},
        positions=("0",),
        vendor=vendor,
        pool=f"pool-{model_id}",
        priority=of.priority,
        idempotency_key=idempotency_key(task_id(of.id, n), vendor),
        on_unknown=OnUnknown(),
        max_sends=4,
        deadline=of.deadline,
    )


def add_policy(tx: Tx, *wanted: Policy) -> None:
    """Store policy versions."""
    policies.put_missing(tx, wanted, "tests")


def add_case(tx: Tx, of: NewParent, children: Sequence[NewTask]) -> None:
    """Parent and tasks, as intake stores them: in one transaction."""
    parents.insert(tx, [of])
    tasks.insert(tx, children)


def claim(tx: Tx, key: TaskKey, owner: str = "worker-1") -> Task:
    """READY -> IN_FLIGHT, with a lease of 30 s."""
    found = _get(tx, key)
    won = moves.move(
        tx,
        [
            moves.TaskMove(
                found,
                Mover.CLAIM,
                State.IN_FLIGHT,
                "",
                tx.now() + 30 * SECOND,
                found.maybe_executed,
                new_owner=owner,
                new_attempt=found.attempt + 1,
            )
        ],
    )
    assert won.changed == 1
    return _get(tx, key)


def settle(
    tx: Tx,
    key: TaskKey,
    state: State = State.SUCCEEDED,
    *,
    scores: Mapping[str, float] | None = None,
    reason: str = "",
    mover: Mover = Mover.SETTLE,
) -> Task:
    """Move a task to `state` as its holder would, or for READY -> EXPIRED as the timer."""
    found = _get(tx, key)
    if found.state is State.READY and mover is Mover.SETTLE:
        found = claim(tx, key)
    maybe = state in (State.UNKNOWN, State.ACCEPTED)
    won = moves.move(
        tx,
        [
            moves.TaskMove(
                found,
                mover,
                state,
                reason,
                None if state in CLOSED else tx.now() + 60 * SECOND,
                maybe,
                outcome="COMPLETED" if state is State.SUCCEEDED else state.value,
                scores=scores,
            )
        ],
    )
    assert won.changed == 1
    return _get(tx, key)


def receipt(
    key: TaskKey,
    state: ReceiptState = ReceiptState.SUCCEEDED,
    *,
    scores: Mapping[str, float] | None = None,
    receipt_id: str = "",
    occurred_at: int = 1,
    source: str = "receipt",
) -> NewReceipt:
    """A receipt of a task, with an id of its own where none is given."""
    if state is ReceiptState.SUCCEEDED and scores is None:
        scores = {"spam": 0.1}
    return NewReceipt(
        receipt_id=receipt_id or f"receipt-{next(_numbers)}",
        parent_id=key[0],
        n=key[1],
        state=state,
        source=source,
        scores=scores,
        occurred_at=occurred_at,
    )


def _get(tx: Tx, key: TaskKey) -> Task:
    found = tasks.get(tx, key)
    assert found is not None
    return found
