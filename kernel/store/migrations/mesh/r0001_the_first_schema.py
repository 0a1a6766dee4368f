"""the first schema

Revision 0001, from an empty database.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

import kernel.store.dialect

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("mover", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("from_state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("to_state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("outcome", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("owner", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("idempotency_key", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("vendor", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("external_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "started_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("parent_id", "n", "revision"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "change_markers",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("change_markers", schema=None) as batch_op:
        batch_op.create_index("ix_change_markers_parent", ["parent_id"], unique=False)

    op.create_table(
        "decisions",
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("outcome", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("policy_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("rule", kernel.store.dialect.Key(256), nullable=False),
        sa.Column(
            "evidence",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("decided_by", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "note",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column(
            "decided_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("parent_id", "version"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "late_results",
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("source", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "scores",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=True,
        ),
        sa.Column(
            "received_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("parent_id", "n"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "operator_actions",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("actor", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("action", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "note",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("operator_actions", schema=None) as batch_op:
        batch_op.create_index("ix_operator_actions_parent", ["parent_id", "n"], unique=False)

    op.create_table(
        "outbox",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("topic", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("record_key", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "body",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column(
            "leased_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("lease_owner", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "created_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index("ix_outbox_free", ["leased_until", "id"], unique=False)

    op.create_table(
        "parents",
        sa.Column("id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("kind", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("tenant_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("logical_key", kernel.store.dialect.Key(512), nullable=False),
        sa.Column(
            "fingerprint",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("policy_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("priority", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "labels",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("root_span_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "created_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("deadline", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "decided_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "cancel_requested_at",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=True,
        ),
        sa.Column("wake_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.CheckConstraint(
            "(wake_at is null) = (state <> 'PENDING')", name="ck_parents_wake_at_iff_pending"
        ),
        sa.CheckConstraint(
            "state in ('PENDING', 'APPROVED', 'REJECTED', 'IN_REVIEW', 'FAILED', 'CANCELLED')",
            name="ck_parents_state",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant_id", "kind", "logical_key", name="uk_parents_intent"),
    )
    with op.batch_alter_table("parents", schema=None) as batch_op:
        batch_op.create_index("ix_parents_due", ["wake_at"], unique=False)

    op.create_table(
        "policies",
        sa.Column("policy_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "body",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("author", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "created_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("policy_id", "version"),
    )
    op.create_table(
        "pool_closures",
        sa.Column("pool", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "closed_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("pool"),
    )
    op.create_table(
        "receipts",
        sa.Column("receipt_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("source", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("vendor_status", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("external_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "scores",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=True,
        ),
        sa.Column(
            "cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "occurred_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "received_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("disposition", kernel.store.dialect.Key(32), nullable=False),
        sa.PrimaryKeyConstraint("receipt_id"),
    )
    with op.batch_alter_table("receipts", schema=None) as batch_op:
        batch_op.create_index("ix_receipts_task", ["parent_id", "n"], unique=False)

    op.create_table(
        "tasks",
        sa.Column("parent_id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("tenant_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("requirement", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("model_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("model_version", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("input_digest", kernel.store.dialect.Key(64), nullable=False),
        sa.Column("input_kind", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("payload_ref", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "units",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column(
            "positions",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("vendor", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("pool", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("priority", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "start_tag", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("idempotency_key", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("on_unknown", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("max_duplicates", sa.Integer(), nullable=False),
        sa.Column(
            "max_cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("sends", sa.Integer(), nullable=False),
        sa.Column("max_sends", sa.Integer(), nullable=False),
        sa.Column("granted_sends", sa.Integer(), nullable=False),
        sa.Column("maybe_executed", sa.Boolean(), nullable=False),
        sa.Column("needs_operator", sa.Boolean(), nullable=False),
        sa.Column("possible_duplicates", sa.Integer(), nullable=False),
        sa.Column(
            "cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("external_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "scores",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=True,
        ),
        sa.Column("result_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column(
            "claimed_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "unknown_since", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "created_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("deadline", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("wake_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.CheckConstraint(
            "(state = 'UNKNOWN') = (unknown_since is not null)", name="ck_tasks_unknown_since"
        ),
        sa.CheckConstraint(
            "(wake_at is null) = (state in ('CANCELLED', 'EXPIRED', 'FAILED', 'SUCCEEDED'))",
            name="ck_tasks_wake_at_iff_open",
        ),
        sa.CheckConstraint("priority in ('CRITICAL', 'NORMAL', 'BULK')", name="ck_tasks_priority"),
        sa.CheckConstraint(
            "requirement in ('REQUIRED', 'OPTIONAL', 'SHADOW')", name="ck_tasks_requirement"
        ),
        sa.CheckConstraint(
            "state in ('PLANNED', 'READY', 'IN_FLIGHT', 'ACCEPTED', 'RETRY_WAIT', 'UNKNOWN', 'SUCCEEDED', 'FAILED', 'EXPIRED', 'CANCELLED')",
            name="ck_tasks_state",
        ),
        sa.PrimaryKeyConstraint("parent_id", "n"),
        sa.UniqueConstraint(
            "parent_id", "model_id", "model_version", "input_digest", name="uk_tasks_logical"
        ),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index("ix_tasks_due", ["wake_at"], unique=False)
        batch_op.create_index(
            "ix_tasks_order",
            ["pool", "state", "priority", "start_tag", "parent_id", "n"],
            unique=False,
        )
        batch_op.create_index("ix_tasks_unknown", ["unknown_since", "parent_id", "n"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index("ix_tasks_unknown")
        batch_op.drop_index("ix_tasks_order")
        batch_op.drop_index("ix_tasks_due")

    op.drop_table("tasks")
    with op.batch_alter_table("receipts", schema=None) as batch_op:
        batch_op.drop_index("ix_receipts_task")

    op.drop_table("receipts")
    op.drop_table("pool_closures")
    op.drop_table("policies")
    with op.batch_alter_table("parents", schema=None) as batch_op:
        batch_op.drop_index("ix_parents_due")

    op.drop_table("parents")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.drop_index("ix_outbox_free")

    op.drop_table("outbox")
    with op.batch_alter_table("operator_actions", schema=None) as batch_op:
        batch_op.drop_index("ix_operator_actions_parent")

    op.drop_table("operator_actions")
    op.drop_table("late_results")
    op.drop_table("decisions")
    with op.batch_alter_table("change_markers", schema=None) as batch_op:
        batch_op.drop_index("ix_change_markers_parent")

    op.drop_table("change_markers")
    op.drop_table("attempts")
