"""The tables of the mesh's database: parents, tasks, their evidence, and what is to be told.

Receives the rules' enums. Hands on `MESH`, the declared schema. All times are microseconds
since the epoch, by the database's clock. A row is closed exactly when its `wake_at` is null.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from kernel.decision import Requirement
from kernel.fairness import Priority
from kernel.lifecycle import CLOSED, CaseState, State
from kernel.store.dialect import Document, Key, Micros

MESH = MetaData()

_ID, _DIGEST, _WORD, _NAME = Key(32), Key(64), Key(32), Key(128)


def _one_of(column: str, values: Iterable[str], name: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} in ({listed})", name=name)


_CLOSED = ", ".join(f"'{state}'" for state in sorted(CLOSED))

parents = Table(
    "parents",
    MESH,
    Column("id", _ID, primary_key=True),
    Column("kind", _WORD, nullable=False),  # CONTENT; MESSAGE joins with its product
    Column("tenant_id", _NAME, nullable=False),
    Column("logical_key", Key(512), nullable=False),  # canonical JSON of the caller's key
    Column("fingerprint", Document, nullable=False),  # field -> digest, to name a difference
    Column("state", _WORD, nullable=False),
    Column("version", Micros, nullable=False),  # every write of the parent raises it
    Column("policy_id", _NAME, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("priority", _WORD, nullable=False),
    Column("labels", Document, nullable=False),
    Column("root_span_id", _WORD, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("deadline", Micros, nullable=False),
    Column("decided_at", Micros),
    Column("cancel_requested_at", Micros),
    Column("wake_at", Micros),
    UniqueConstraint("tenant_id", "kind", "logical_key", name="uk_parents_intent"),
    Index("ix_parents_due", "wake_at"),
    _one_of("state", CaseState, "ck_parents_state"),
    CheckConstraint(
        "(wake_at is null) = (state <> 'PENDING')", name="ck_parents_wake_at_iff_pending"
    ),
)

tasks = Table(
    "tasks",
    MESH,
    Column("parent_id", _ID, nullable=False),
    Column("n", Integer, nullable=False),
    Column("tenant_id", _NAME, nullable=False),
    Column("requirement", _WORD, nullable=False),
    Column("model_id", _NAME, nullable=False),
    Column("model_version", _NAME, nullable=False),
    Column("input_digest", _DIGEST, nullable=False),
    Column("input_kind", _WORD, nullable=False),
    Column("payload_ref", _NAME, nullable=False),
    Column("units", Document, nullable=False),
    Column("positions", Document, nullable=False),
    Column("vendor", _NAME, nullable=False),
    Column("pool", _NAME, nullable=False),
    Column("priority", _WORD, nullable=False),
    Column("start_tag", Micros, nullable=False),  # order of service within a pool and class
    Column("idempotency_key", _NAME, nullable=False),
    Column("on_unknown", _WORD, nullable=False),
    Column("max_duplicates", Integer, nullable=False),
    Column("max_cost_micros", Micros, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("revision", Integer, nullable=False),  # rises with every recorded move
    Column("attempt", Integer, nullable=False),
    Column("owner", _NAME, nullable=False),
    # Retries that failed in a row, or rounds of asking: what the back-off grows with.
    Column("tries", Integer, nullable=False),
    Column("sends", Integer, nullable=False),
    Column("max_sends", Integer, nullable=False),
    Column("granted_sends", Integer, nullable=False),  # by an operator, beyond the rules
    Column("maybe_executed", Boolean(create_constraint=False), nullable=False),
    Column("needs_operator", Boolean(create_constraint=False), nullable=False),
    Column("possible_duplicates", Integer, nullable=False),
    Column("cost_micros", Micros, nullable=False),
    Column("reason", _NAME, nullable=False),
    Column("external_id", _NAME, nullable=False),
    Column("scores", Document),
    Column("result_at", Micros),
    Column("claimed_at", Micros),
    Column("unknown_since", Micros),
    Column("created_at", Micros, nullable=False),
    Column("deadline", Micros, nullable=False),
    Column("wake_at", Micros),
    PrimaryKeyConstraint("parent_id", "n"),
    UniqueConstraint(
        "parent_id", "model_id", "model_version", "input_digest", name="uk_tasks_logical"
    ),
    Index("ix_tasks_due", "wake_at"),
    Index("ix_tasks_unknown", "unknown_since", "parent_id", "n"),
    Index("ix_tasks_order", "pool", "state", "priority", "start_tag", "parent_id", "n"),
    _one_of("state", State, "ck_tasks_state"),
    _one_of("requirement", Requirement, "ck_tasks_requirement"),
    _one_of("priority", Priority, "ck_tasks_priority"),
    CheckConstraint(
        f"(wake_at is null) = (state in ({_CLOSED}))", name="ck_tasks_wake_at_iff_open"
    ),
    CheckConstraint(
        "(state = 'UNKNOWN') = (unknown_since is not null)", name="ck_tasks_unknown_since"
    ),
    sqlite_with_rowid=False,
)

attempts = Table(
    "attempts",
    MESH,
    Column("parent_id", _ID, nullable=False),
    Column("n", Integer, nullable=False),
    Column("revision", Integer, nullable=False),  # the task's, after the move
    Column("attempt", Integer, nullable=False),
    Column("mover", _WORD, nullable=False),
    Column("from_state", _WORD, nullable=False),
    Column("to_state", _WORD, nullable=False),
    Column("outcome", _WORD, nullable=False),
    Column("reason", _NAME, nullable=False),
    Column("owner", _NAME, nullable=False),
    Column("idempotency_key", _NAME, nullable=False),
    Column("vendor", _NAME, nullable=False),
    Column("external_id", _NAME, nullable=False),
    Column("cost_micros", Micros, nullable=False),
    Column("started_at", Micros),
    Column("at", Micros, nullable=False),
    PrimaryKeyConstraint("parent_id", "n", "revision"),
    sqlite_with_rowid=False,
)

receipts = Table(
    "receipts",
    MESH,
    Column("receipt_id", _NAME, primary_key=True),
    Column("parent_id", _ID, nullable=False),
    Column("n", Integer, nullable=False),
    Column("source", _WORD, nullable=False),  # receipt, or late_attempt: a settle without fence
    Column("attempt", Integer, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("vendor_status", _NAME, nullable=False),
    Column("external_id", _NAME, nullable=False),
    Column("reason", _NAME, nullable=False),
    Column("scores", Document),
    Column("cost_micros", Micros, nullable=False),
    Column("occurred_at", Micros, nullable=False),
    Column("received_at", Micros, nullable=False),
    Column("disposition", _WORD, nullable=False),
    Index("ix_receipts_task", "parent_id", "n"),
)

change_markers = Table(
    "change_markers",
    MESH,
    Column("id", Micros, primary_key=True, autoincrement=True),
    Column("parent_id", _ID, nullable=False),
    Index("ix_change_markers_parent", "parent_id"),
    # An id that was deleted is never given again: a marker is deleted by its id.
    sqlite_autoincrement=True,
)

decisions = Table(
    "decisions",
    MESH,
    Column("parent_id", _ID, nullable=False),
    Column("version", Integer, nullable=False),
    Column("outcome", _WORD, nullable=False),
    Column("reason", _NAME, nullable=False),
    Column("policy_id", _NAME, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("rule", Key(256), nullable=False),
    Column("evidence", Document, nullable=False),
    Column("decided_by", _NAME, nullable=False),
    Column("note", Document, nullable=False),
    Column("decided_at", Micros, nullable=False),
    PrimaryKeyConstraint("parent_id", "version"),
    sqlite_with_rowid=False,
)

late_results = Table(
    "late_results",
    MESH,
    Column("parent_id", _ID, nullable=False),
    Column("n", Integer, nullable=False),
    Column("source", _WORD, nullable=False),
    Column("scores", Document),
    Column("received_at", Micros, nullable=False),
    PrimaryKeyConstraint("parent_id", "n"),
    sqlite_with_rowid=False,
)

policies = Table(
    "policies",
    MESH,
    Column("policy_id", _NAME, nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", Document, nullable=False),
    Column("author", _NAME, nullable=False),
    Column("created_at", Micros, nullable=False),
    PrimaryKeyConstraint("policy_id", "version"),
)

operator_actions = Table(
    "operator_actions",
    MESH,
    Column("id", Micros, primary_key=True, autoincrement=True),
    Column("parent_id", _ID, nullable=False),
    Column("n", Integer, nullable=False),  # 0: the parent itself
    Column("actor", _NAME, nullable=False),
    Column("action", _WORD, nullable=False),
    Column("note", Document, nullable=False),
    Column("at", Micros, nullable=False),
    Index("ix_operator_actions_parent", "parent_id", "n"),
)

outbox = Table(
    "outbox",
    MESH,
    Column("id", Micros, primary_key=True, autoincrement=True),
    Column("topic", _NAME, nullable=False),
    Column("record_key", _NAME, nullable=False),
    Column("body", Document, nullable=False),  # ids and versions only
    Column("leased_until", Micros, nullable=False),  # 0: free
    Column("lease_owner", _NAME, nullable=False),
    Column("created_at", Micros, nullable=False),
    Index("ix_outbox_free", "leased_until", "id"),
    sqlite_autoincrement=True,
)

pool_closures = Table(
    "pool_closures",
    MESH,
    Column("pool", _NAME, primary_key=True),
    Column("closed_until", Micros, nullable=False),  # the vendor asked for silence until then
)
