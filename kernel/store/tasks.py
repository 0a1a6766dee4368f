"""Tasks as rows: inserted once, read by key, by pool and by due time. Moves are in `moves`.

Receives the open transaction. Hands on `Task`s. Pages of them are in `task_lists`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from kernel.attempt import OnUnknown, OnUnknownMode, TaskFacts
from kernel.decision import Child, Requirement
from kernel.identity import task_id
from kernel.lifecycle import State
from kernel.store.dialect import Statement
from kernel.store.transaction import Tx

TaskKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task about to be planned; `deadline` in microseconds since the epoch."""

    parent_id: str
    n: int
    tenant_id: str
    requirement: Requirement
    model_id: str
    model_version: str
    input_digest: str
    input_kind: str
    payload_ref: str
    units: Mapping[str, int]
    positions: tuple[str, ...]
    vendor: str
    pool: str
    priority: str
    idempotency_key: str
    on_unknown: OnUnknown
    max_sends: int
    deadline: int


@dataclass(frozen=True, slots=True)
class Task:
    """A stored task. Times in microseconds since the epoch, costs in millionths."""

    parent_id: str
    n: int
    tenant_id: str
    requirement: Requirement
    model_id: str
    model_version: str
    input_digest: str
    input_kind: str
    payload_ref: str
    units: Mapping[str, int]
    positions: tuple[str, ...]
    vendor: str
    pool: str
    priority: str
    start_tag: int
    idempotency_key: str
    on_unknown: OnUnknown
    state: State
    revision: int
    attempt: int
    owner: str
    tries: int
    sends: int
    max_sends: int
    granted_sends: int
    maybe_executed: bool
    needs_operator: bool
    possible_duplicates: int
    cost_micros: int
    reason: str
    external_id: str
    scores: Mapping[str, float] | None
    result_at: int | None
    claimed_at: int | None
    unknown_since: int | None
    created_at: int
    deadline: int
    wake_at: int | None

    @property
    def key(self) -> TaskKey:
        """The row's primary key."""
        return (self.parent_id, self.n)

    @property
    def task_id(self) -> str:
        """The name that callers use."""
        return task_id(self.parent_id, self.n)

    def facts(self, *, wanted: bool = True) -> TaskFacts:
        """What the rules of `kernel.attempt` need to know."""
        return TaskFacts(
            attempt=self.attempt,
            sends=self.sends,
            max_sends=self.max_sends,
            deadline=self.deadline,
            maybe_executed=self.maybe_executed,
            wanted=wanted,
            tries=self.tries,
        )

    def child(self) -> Child:
        """What the decision needs to know."""
        return Child(
            task_id=self.task_id,
            requirement=self.requirement,
            state=self.state,
            model_id=self.model_id,
            model_version=self.model_version,
            input_digest=self.input_digest,
            attempt=self.attempt,
            reason=self.reason,
            scores=self.scores,
        )

    @classmethod
    def of(cls, row: Row[Any]) -> Task:
        """From a row of `COLUMNS`."""
        values = dict(row._mapping)
        values["requirement"] = Requirement(values["requirement"])
        values["state"] = State(values["state"])
        values["units"] = orjson.loads(values["units"])
        values["positions"] = tuple(orjson.loads(values["positions"]))
        values["scores"] = orjson.loads(values["scores"]) if values["scores"] else None
        values["maybe_executed"] = bool(values["maybe_executed"])
        values["needs_operator"] = bool(values["needs_operator"])
        values["on_unknown"] = OnUnknown(
            OnUnknownMode(values["on_unknown"]),
            values.pop("max_duplicates"),
            values.pop("max_cost_micros"),
        )
        return cls(**values)


_NAMES = (
    "parent_id, n, tenant_id, requirement, model_id, model_version, input_digest, input_kind, "
    "payload_ref, units, positions, vendor, pool, priority, start_tag, idempotency_key, "
    "on_unknown, max_duplicates, max_cost_micros, state, revision, attempt, owner, tries, sends, "
    "max_sends, granted_sends, maybe_executed, needs_operator, possible_duplicates, cost_micros, "
    "reason, external_id, scores, result_at, claimed_at, unknown_since, created_at, deadline, "
    "wake_at"
)
COLUMNS = ", ".join(f"t.{name}" for name in _NAMES.split(", "))

_KEYS = {"parent_id": "text", "n": "int"}

# Plan tasks: READY at once, in order of arrival.
_INSERT = Statement(
    """insert into tasks (parent_id, n, tenant_id, requirement, model_id, model_version,
         input_digest, input_kind, payload_ref, units, positions, vendor, pool, priority,
         start_tag, idempotency_key, on_unknown, max_duplicates, max_cost_micros, state, revision,
         attempt, owner, tries, sends, max_sends, granted_sends, maybe_executed, needs_operator,
         possible_duplicates, cost_micros, reason, external_id, created_at, deadline, wake_at)
       select parent_id, n, tenant_id, requirement, model_id, model_version, input_digest,
         input_kind, payload_ref, units, positions, vendor, pool, priority, {now},
         idempotency_key, on_unknown, max_duplicates, max_cost_micros, 'READY', 1, 0, '', 0, 0,
         max_sends, 0, 0, 0, 0, 0, '', '', {now}, deadline, deadline
       from {batch} b""",
    {
        "parent_id": "text",
        "n": "int",
        "tenant_id": "text",
        "requirement": "text",
        "model_id": "text",
        "model_version": "text",
        "input_digest": "text",
        "input_kind": "text",
        "payload_ref": "text",
        "units": "text",
        "positions": "text",
        "vendor": "text",
        "pool": "text",
        "priority": "text",
        "idempotency_key": "text",
        "on_unknown": "text",
        "max_duplicates": "int",
        "max_cost_micros": "int",
        "max_sends": "int",
        "deadline": "int",
    },
)
_GET = Statement(f"select {COLUMNS} from tasks t where t.parent_id = :parent_id and t.n = :n")  # noqa: S608
_CHILDREN = Statement(
    f"select {COLUMNS} from tasks t where t.parent_id = :parent_id order by t.n"  # noqa: S608
)
_LOCK = Statement(
    f"""select {COLUMNS} from {{batch}} b join tasks t
          on t.parent_id = b.parent_id and t.n = b.n order by t.parent_id, t.n""",  # noqa: S608
    _KEYS,
    mysql=f"""select {COLUMNS} from {{batch}} b join tasks t
          on t.parent_id = b.parent_id and t.n = b.n
          order by t.parent_id, t.n for update""",  # noqa: S608
)
# The next tasks of one pool and class, in their order; what cannot start in time is left to
# the timer.
_NEXT_READY = Statement(
    f"""select {COLUMNS} from tasks t
        where t.pool = :pool and t.state = 'READY' and t.priority = :priority
          and t.deadline > {{now}}
        order by t.start_tag, t.parent_id, t.n limit :most""",  # noqa: S608
    mysql=f"""select {COLUMNS} from tasks t
        where t.pool = :pool and t.state = 'READY' and t.priority = :priority
          and t.deadline > {{now}}
        order by t.start_tag, t.parent_id, t.n limit :most for update skip locked""",  # noqa: S608
)
_POOLS_WITH_READY = Statement(
    """select b.pool_name from {batch} b where exists
         (select 1 from tasks t where t.pool = b.pool_name and t.state = 'READY')""",
    {"pool_name": "text"},
)
# All recovery is this one range scan.
_DUE = Statement(
    f"select {COLUMNS} from tasks t where t.wake_at <= {{now}} order by t.wake_at limit :most"  # noqa: S608
)
# Tasks whose parent is to be cancelled.
_UNWANTED = Statement(
    """select p.id from {batch} b join parents p on p.id = b.parent_id
       where p.cancel_requested_at is not null""",
    {"parent_id": "text"},
)


def insert(tx: Tx, tasks: Iterable[NewTask]) -> None:
    """Plan tasks."""
    tx.execute(
        _INSERT,
        [
            (
                t.parent_id,
                t.n,
                t.tenant_id,
                t.requirement,
                t.model_id,
                t.model_version,
                t.input_digest,
                t.input_kind,
                t.payload_ref,
                orjson.dumps(dict(t.units)).decode(),
                orjson.dumps(t.positions).decode(),
                t.vendor,
                t.pool,
                t.priority,
                t.idempotency_key,
                t.on_unknown.mode,
                t.on_unknown.max_duplicates,
                t.on_unknown.max_cost_micros,
                t.max_sends,
                t.deadline,
            )
            for t in tasks
        ],
    )


def get(tx: Tx, key: TaskKey) -> Task | None:
    """One task."""
    row = tx.one(_GET, parent_id=key[0], n=key[1])
    return Task.of(row) if row else None


def children(tx: Tx, parent_id: str) -> list[Task]:
    """The whole set of a parent: one range scan."""
    return [Task.of(row) for row in tx.query(_CHILDREN, parent_id=parent_id)]


def lock(tx: Tx, keys: Iterable[TaskKey]) -> dict[TaskKey, Task]:
    """The tasks with these keys, in key order, locked until the transaction ends."""
    found = [Task.of(row) for row in tx.query(_LOCK, sorted(set(keys)))]
    return {task.key: task for task in found}


def next_ready(tx: Tx, pool: str, priority: str, most: int) -> list[Task]:
    """The next READY tasks of a pool and class, locked, at most `most`."""
    rows = tx.query(_NEXT_READY, pool=pool, priority=priority, most=most)
    return [Task.of(row) for row in rows]


def pools_with_ready(tx: Tx, pools: Iterable[str]) -> set[str]:
    """Those of these pools that have a READY task: a look that takes no lock."""
    rows = tx.query(_POOLS_WITH_READY, [(pool,) for pool in sorted(pools)])
    return {row.pool_name for row in rows}


def due(tx: Tx, most: int) -> list[Task]:
    """Open tasks whose next event has come, the oldest first."""
    return [Task.of(row) for row in tx.query(_DUE, most=most)]


def unwanted_parents(tx: Tx, parent_ids: Iterable[str]) -> set[str]:
    """Those of these parents that are to be cancelled."""
    rows = [(parent_id,) for parent_id in sorted(set(parent_ids))]
    return {row.id for row in tx.query(_UNWANTED, rows)} if rows else set()
