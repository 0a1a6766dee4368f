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
        "calls",
        sa.Column("caller", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("vendor", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("idempotency_key", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("reference", kernel.store.dialect.Key(128), nullable=True),
        sa.Column("task_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("tenant_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("pool", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fenced_attempt", sa.Integer(), nullable=False),
        sa.Column(
            "fingerprint",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=False,
        ),
        sa.Column("incarnation", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("send_number", sa.Integer(), nullable=False),
        sa.Column("sends", sa.Integer(), nullable=False),
        sa.Column("max_sends", sa.Integer(), nullable=False),
        sa.Column("granted_sends", sa.Integer(), nullable=False),
        sa.Column("on_unknown", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("max_duplicates", sa.Integer(), nullable=False),
        sa.Column(
            "max_cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("outcome", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("retryable", sa.Integer(), nullable=False),
        sa.Column("retry_after_seconds", sa.Float(), nullable=True),
        sa.Column("receipt_due_seconds", sa.Float(), nullable=False),
        sa.Column("external_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "scores",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=True,
        ),
        sa.Column("possible_duplicates", sa.Integer(), nullable=False),
        sa.Column(
            "cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("doubted_sends", sa.Integer(), nullable=False),
        sa.Column(
            "doubted_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "first_send_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("begun_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column(
            "last_byte_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "settled_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "occupied_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "not_found_asked_at",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("last_query_answer", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "last_query_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.CheckConstraint(
            "state in ('FENCED', 'PREPARED', 'SETTLED', 'UNKNOWN')", name="ck_calls_state"
        ),
        sa.PrimaryKeyConstraint("caller", "vendor", "idempotency_key"),
        sa.UniqueConstraint("vendor", "reference", name="uk_calls_reference"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.create_index("ix_calls_external", ["vendor", "external_id"], unique=False)
        batch_op.create_index("ix_calls_occupied", ["occupied_until"], unique=False)

    op.create_table(
        "incarnations",
        sa.Column("id", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "lease_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "pool_limits",
        sa.Column("pool", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column(
            "closed_until", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("pool"),
    )
    op.create_table(
        "raw_receipts",
        sa.Column("receipt_id", kernel.store.dialect.Key(64), nullable=False),
        sa.Column("vendor", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("event_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("reference", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("external_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("caller", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("idempotency_key", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("task_id", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("state", kernel.store.dialect.Key(32), nullable=False),
        sa.Column("vendor_status", kernel.store.dialect.Key(128), nullable=False),
        sa.Column("status_map_version", sa.Integer(), nullable=False),
        sa.Column("status_map_reviewer", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "occurred_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "received_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "scores",
            sa.Text()
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mariadb")
            .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql"),
            nullable=True,
        ),
        sa.Column(
            "cost_micros", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("reason", kernel.store.dialect.Key(128), nullable=False),
        sa.Column(
            "sealed_body",
            sa.LargeBinary()
            .with_variant(mysql.LONGBLOB(), "mariadb")
            .with_variant(mysql.LONGBLOB(), "mysql"),
            nullable=False,
        ),
        sa.Column("copies", sa.Integer(), nullable=False),
        sa.Column("forward", kernel.store.dialect.Key(32), nullable=False),
        sa.Column(
            "forward_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("forward_tries", sa.Integer(), nullable=False),
        sa.Column("disposition", kernel.store.dialect.Key(32), nullable=False),
        sa.CheckConstraint(
            "(forward_at is not null) = (forward = 'PENDING')", name="ck_raw_receipts_forward_at"
        ),
        sa.CheckConstraint(
            "forward in ('NONE', 'PENDING', 'DONE')", name="ck_raw_receipts_forward"
        ),
        sa.CheckConstraint(
            "state in ('ACCEPTED', 'SUCCEEDED', 'FAILED', 'UNMAPPED')", name="ck_raw_receipts_state"
        ),
        sa.PrimaryKeyConstraint("receipt_id"),
    )
    with op.batch_alter_table("raw_receipts", schema=None) as batch_op:
        batch_op.create_index("ix_raw_receipts_external", ["vendor", "external_id"], unique=False)
        batch_op.create_index("ix_raw_receipts_forward", ["forward_at"], unique=False)
        batch_op.create_index("ix_raw_receipts_reference", ["vendor", "reference"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("raw_receipts", schema=None) as batch_op:
        batch_op.drop_index("ix_raw_receipts_reference")
        batch_op.drop_index("ix_raw_receipts_forward")
        batch_op.drop_index("ix_raw_receipts_external")

    op.drop_table("raw_receipts")
    op.drop_table("pool_limits")
    op.drop_table("incarnations")
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.drop_index("ix_calls_occupied")
        batch_op.drop_index("ix_calls_external")

    op.drop_table("calls")
